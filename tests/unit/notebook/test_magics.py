"""The magics in a shell, against a client made of plain objects (conftest.py)."""

import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections.events import Text
from monarch_nb.client.pools.infos import EndedReservation
from monarch_nb.client.pools.releasing import KeptFiles, ReleasedLater
from monarch_nb.client.presenting import panel_of
from monarch_nb.client.runs.interrupt_report import InterruptReport
from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.errors import NodeUnreachable, PickleError, RankFailure, RunFailed, TargetError, UsageError
from monarch_nb.notebook import load_ipython_extension
from monarch_nb.notebook.cells.cell import KernelCellFailed
from monarch_nb.notebook.cells.following import RunInterrupted, RunTimeout
from monarch_nb.notebook.commands.subcommands import is_called
from monarch_nb.provision import jobs, prices
from unit.notebook.fakes import FakeClient, FakeMesh, FakeReservation, FakeRun, Notebook, hello, nothing

# ---- holding ----


def test_reserve(notebook: Notebook, client: FakeClient) -> None:
    shown = notebook.ok("n = 2\n%mesh reserve dev --nodes {n} --procs $n --env A=1 --env HOME --preload numpy")
    assert shown.startswith("dev: 2 nodes × 2 procs, 4 ranks ready in ")
    (call,) = client.calls
    assert call[:4] == ("reserve", "dev", 2, 2)
    assert call[4] == {
        "env": {"A": "1", "HOME": None},
        "preload": ("numpy",),
        "files": True,
        "notebook": call[4]["notebook"],
    }
    assert call[4]["notebook"].endswith("a.ipynb")
    assert notebook.ok("%mesh reserve dev --nodes 2 --procs 2") == (
        "dev: already held, 4 ranks alive\nfiles: every node sees /project itself, nothing is copied"
    )
    client.dead = {3}
    assert "rank 3 dead" in notebook.ok("%mesh reserve dev --nodes 2 --procs 2")


def test_an_interrupted_reserve_says_so_in_a_line(notebook: Notebook, client: FakeClient) -> None:
    client.ctrl_c = 1
    error = notebook.error("%mesh reserve dev --procs 2")
    assert isinstance(error, RunInterrupted)
    assert error._render_traceback_() == ["\x1b[31mKeyboardInterrupt\x1b[39m: interrupted: nothing is reserved"]
    assert "starting local pool · stopped after" in notebook.text()
    client.cancelled = "Slurm job 12 was cancelled"
    said = "interrupted: nothing is reserved; Slurm job 12 was cancelled"
    assert str(notebook.error("%mesh reserve dev --procs 2")) == said
    client.ctrl_c, client.cancelled = 0, ""
    notebook.ok("%mesh reserve dev --procs 2")
    client.ctrl_c = 1
    assert str(notebook.error("%mesh reserve dev --procs 2")) == "interrupted: nothing has changed"


def test_whatever_is_interrupted_shows_none_of_our_stack(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeMesh, "restart", interrupted)
    monkeypatch.setattr(FakeMesh, "submit", interrupted)
    for cell in ("%mesh restart", "%%mesh\nx = 1"):
        error: Any = held.error(cell)
        assert error._render_traceback_() == ["\x1b[31mKeyboardInterrupt\x1b[39m: interrupted"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("reserve dev", "say how many ranks per node"),
        ("reserve dev --gpus 1 --procs 1", "not both"),
        ("reserve dev --nodes 0 --procs 1", "--nodes is at least 1, not 0"),
        ("reserve dev --procs many", "--procs is a whole number of at least 1, not 'many'"),
        ("resreve dev", "did you mean reserve?"),
        ("reserve dev --node 2", "did you mean --nodes?"),
        ("status", "this notebook holds no mesh yet: type %mesh reserve"),
        ("attach", "you hold no reservation: %mesh reserve"),
        ("attach dev", "no reservation 'dev'"),
        ("release dev --all", "not both"),
        ("push x", "this kernel has no variable 'x'"),
        ("push 3", "without blanks around ="),
        ("pull x -o 3", "--out is the name of a variable, not '3'"),
        ("on", "this notebook holds no mesh yet"),
    ],
)
def test_bad_lines_change_nothing(notebook: Notebook, client: FakeClient, line: str, message: str) -> None:
    error = notebook.error(f"%mesh {line}")
    assert message in str(error)
    assert len(error._render_traceback_()) == 1  # type: ignore[attr-defined]
    assert not client.calls
    assert not client.held


def test_a_cell_without_a_mesh_says_what_to_type(notebook: Notebook) -> None:
    error = notebook.error("%%mesh\nx = 1")
    assert isinstance(error, UsageError)
    assert "%mesh reserve dev" in str(error)


def test_reload_of_what_is_held_is_said(held: Notebook) -> None:
    again = "%mesh reserve dev --nodes 2 --procs 2"
    assert held.ok(f"{again} --reload off").splitlines()[-1] == "reload: off from now on"
    assert "reload" not in held.ok(again)


def test_attach_detach_release(held: Notebook, client: FakeClient) -> None:
    assert held.ok("%mesh detach") == "detached from dev; it stays held: %mesh attach dev returns to it"
    assert "holds no mesh" in str(held.error("%mesh status"))
    assert held.ok("%mesh attach") == "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert held.ok("%mesh release").startswith("dev: released 2 nodes × 2 procs in ")
    assert not client.held
    assert "holds no mesh" in str(held.error("%%mesh\nx"))
    held.ok("%mesh reserve a --procs 1\n%mesh reserve b --procs 2")
    assert "1 node × 1 proc" in held.ok("%mesh release a")
    held.ok("%mesh reserve a --procs 1")
    held.ok("%mesh release --all")
    assert not client.held
    assert held.ok("%mesh release --all") == "nothing to release"


def test_ones_own_of_a_name_is_released_beside_somebody_elses(held: Notebook, client: FakeClient) -> None:
    theirs = client.held["dev"]
    theirs.owner, theirs.is_mine = "anna", False
    client.held["dev"] = FakeReservation(client, "dev", 1, 1, None)
    assert "dev: released 1 node × 1 proc" in held.ok("%mesh release dev")
    client.held |= {"anna/dev": theirs, "dev": FakeReservation(client, "dev", 1, 1, None)}
    assert "dev" in held.ok("%mesh status"), "the notebook stays attached to theirs"


@pytest.mark.parametrize(
    ("called", "mine", "theirs"), [("dev", True, False), ("me/dev", True, False), ("anna/dev", False, True)]
)
def test_a_name_alone_means_ones_own(client: FakeClient, called: str, mine: bool, theirs: bool) -> None:
    reservation: Any = FakeReservation(client, "dev", 1, 1, None)
    assert is_called(reservation, called) is mine
    reservation.owner, reservation.is_mine = "anna", False
    assert is_called(reservation, called) is theirs


def test_a_reservation_that_can_not_be_released_does_not_keep_the_others(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> Any:
        raise NodeUnreachable("node1 does not answer")

    held.ok("%mesh reserve a --procs 1\n%mesh reserve b --procs 2")
    monkeypatch.setattr(client.held["a"], "release", unreachable)
    assert str(held.error("%mesh release --all")) == "node1 does not answer"
    assert list(client.held) == ["a"]


def test_what_ranks_wrote_is_named_when_a_reservation_goes(held: Notebook, client: FakeClient) -> None:
    client.kept = [KeptFiles("node1", "/state/kept/dev-1", 3, 12_000_000)]
    line = "kept 3 files, 12 MB, that ranks wrote on node1: /state/kept/dev-1"
    assert held.ok("%mesh reserve dev --nodes 2 --procs 2 --replace").splitlines()[-1] == line
    assert held.ok("%mesh release").splitlines()[1:] == [line]


def test_who_could_not_be_told_is_named_when_a_reservation_goes(held: Notebook, client: FakeClient) -> None:
    client.kept = [ReleasedLater("node1", pool="lab"), ReleasedLater("node2", ("node3",))]
    lines = [str(one) for one in client.kept]
    assert held.ok("%mesh reserve dev --nodes 2 --procs 2 --replace").splitlines()[-2:] == lines
    assert held.ok("%mesh release").splitlines()[1:] == lines


def test_attach_in_the_cell_that_loads_the_extension_says_it_once(held: Notebook) -> None:
    attached = "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert held.ok("%reload_ext monarch_nb.notebook\n%mesh attach dev") == attached
    assert held.ok("%mesh attach dev") == attached


def test_attach_needs_a_name_when_there_are_several(notebook: Notebook, client: FakeClient) -> None:
    client.held = {name: FakeReservation(client, name, 1, 1, "/elsewhere") for name in ("a", "b")}
    assert "you hold a, b: say which" in str(notebook.error("%mesh attach"))
    assert "attached to b" in notebook.ok("%mesh attach b")


def test_list_and_status(held: Notebook, client: FakeClient) -> None:
    shown = held.ok("%mesh list")
    assert "dev *" in shown
    assert "2 nodes × 2 procs" in shown
    assert "4 of 4" in shown
    client.dead = {1}
    shown = held.ok("%mesh status")
    assert "dev · 2 nodes × 2 procs · 3 of 4 ranks alive" in shown
    assert "0,2-3" in shown
    assert "dead: killed" in shown
    assert held.ok("%mesh") == shown


def test_the_job_is_named_when_it_is_there_and_afterwards(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "title_of_pool", {"lab": "Slurm job 12"}.__getitem__)
    reserve = "%mesh reserve dev --nodes 2 --procs 2"
    assert re.search(r"4 ranks ready in [\d.]+ m?s \(Slurm job 12\)", notebook.ok(reserve))
    assert notebook.ok(reserve).startswith("dev: already held, 4 ranks alive (Slurm job 12)")
    assert notebook.ok("%mesh status").splitlines()[0].endswith(" · 4 of 4 ranks alive · Slurm job 12")


def test_list_and_status_say_what_it_costs(held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_of = {"1": 12.4, "2": 3.5}

    def price(pool: str, name: str, ended: Collection[str]) -> float:
        assert (pool, name) == ("lab", "dev")
        return sum(each for job, each in jobs_of.items() if job not in ended)

    monkeypatch.setattr(prices, "price_per_hour", price)
    monkeypatch.setattr(prices, "ended_in", lambda _: ["2"])
    for nodes_silent, costs in ((0, "≈ $15.90 an hour"), (1, "≈ $12.40 an hour")):
        client.held["dev"].nodes_silent = nodes_silent
        assert costs in held.ok("%mesh list")
        assert held.ok("%mesh status").splitlines()[0].endswith(f"4 of 4 ranks alive · {costs}")


def test_help(notebook: Notebook) -> None:
    overview = notebook.ok("%mesh help")
    assert overview == notebook.ok("%mesh --help") == notebook.ok("%mesh")
    assert notebook.ok("%mesh help reserve") == notebook.ok("%mesh reserve --help") == notebook.ok("%mesh reserve -h")
    assert notebook.ok("%mesh help cell") == notebook.ok("%%mesh --help\nx") == notebook.ok("%%mesh --help")
    assert "did you mean reserve?" in str(notebook.error("%mesh help resrve"))


# ---- data ----


def test_push_and_pull(held: Notebook, client: FakeClient) -> None:
    held.ok("x, names = 5, 'x lr'\nlr = 1e-3")
    assert held.ok("%mesh push x lr=3e-4 d={'a': [1, 2]} -t 0") == "pushed x, lr, d to rank 0"
    assert client.calls[-1] == ("push", (0,), {"x": 5, "lr": 3e-4, "d": {"a": [1, 2]}})
    held.ok("%mesh push {names}")
    assert client.calls[-1] == ("push", (0, 1, 2, 3), {"x": 5, "lr": 1e-3})
    held.ok("pulled = %mesh pull loss[-1] + 1 -t 1,3")
    assert held.shell.user_ns["pulled"] == ["loss[-1] + 1@1", "loss[-1] + 1@3"]
    assert held.run("%mesh pull loss -o losses").result is None
    assert held.shell.user_ns["losses"][0] == "loss@0"
    assert isinstance(held.error("%mesh push y=1/0"), ZeroDivisionError)


def test_a_pull_that_fails_on_some_ranks_keeps_the_other_values(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(ranks=(0, 1, 2, 3), kept_values=[1, 2, 3, None])
    failure = RankFailure(3, "node0", "error", "NameError", "'x'")

    def pull(*_: object) -> None:
        raise RunFailed(failures=[failure], run=run)

    monkeypatch.setattr(FakeMesh, "pull", pull)
    error = held.error("%mesh pull x -o kept")
    assert isinstance(error, RunFailed)
    assert held.shell.user_ns["kept"] == [1, 2, 3, None]
    assert error._render_traceback_()[-1] == "1 of 4 ranks failed; results of the others are in kept"


def test_a_pull_whose_values_can_not_all_come_keeps_the_others(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = PickleError("can not pickle the result, a generator", ranks=[1])
    lost.run = SimpleNamespace(kept_values=[10, lost, 12, 13])

    def pull(*_: object) -> None:
        raise lost

    monkeypatch.setattr(FakeMesh, "pull", pull)
    error = held.error("%mesh pull x -o kept")
    assert isinstance(error, PickleError)
    assert str(error).splitlines()[-1] == "kept has the other ranks' values, and an error for each of these"
    assert held.shell.user_ns["kept"] == [10, lost, 12, 13]


def test_lines_are_expanded_where_they_are_typed(held: Notebook, client: FakeClient) -> None:
    held.ok("def pull(name):\n    %mesh pull {name}\npull('inner')")
    assert client.calls[-1][2] == "inner"


def test_looking(held: Notebook, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert held.ok("%mesh stacks -t 0") == "rank 0\n  File x.py, line 1"
    held.ok("%mesh logs -t 0,2")
    assert client.calls[-1] == ("logs", (0, 2), 50, None)
    assert "[0,2] hello" in capsys.readouterr().out
    assert held.ok("%mesh logs --run 2") == "run 2 printed nothing"
    assert held.ok("%mesh logs --run 2 --follow") == "", "Ctrl-C ends it, and is no error"
    held.ok("%mesh logs -n 0 --run 3")
    assert client.calls[-1] == ("logs", (0, 1, 2, 3), None, 3)


def test_how_lines_fold_is_chosen_and_remembered(held: Notebook, client: FakeClient, tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").touch()
    assert held.ok("%mesh fold") == "lines that differ only in dates and times of day are one row (the default here)"
    assert held.ok("%mesh fold numbers") == "lines that differ only in numbers are one row"
    held.ok("%reload_ext monarch_nb")
    assert held.ok("%mesh fold") == "lines that differ only in numbers are one row", "the next kernel finds it"
    assert "not 'number'; did you mean numbers?" in str(held.error("%mesh fold number"))
    assert (
        held.ok("%mesh fold default")
        == "lines that differ only in dates and times of day are one row (the default here)"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.monarch_nb]\nfold = "equal"\n')
    assert held.ok("%mesh fold") == "lines that are equal are one row (the default here)"
    (tmp_path / "pyproject.toml").write_text('[tool.monarch_nb]\nfold = "some"\n')
    assert "fold is one of numbers, times, equal, off, not 'some'" in str(held.error("%mesh fold"))


def test_whose_output_is_shown_is_chosen_and_remembered(held: Notebook, client: FakeClient) -> None:
    assert held.ok("%mesh show") == "cells show the output of all ranks"
    alone = "cells show the output of rank 0; %mesh show all shows every rank's again"
    assert held.ok("%mesh show 0") == alone
    held.ok("%reload_ext monarch_nb")
    assert held.ok("%mesh show") == alone, "the next kernel finds it"
    assert "9" in str(held.error("%mesh show 9"))
    assert held.ok("%mesh show") == alone, "nothing has changed"
    assert held.ok("%mesh show all") == "cells show the output of all ranks"


def test_doctor(held: Notebook) -> None:
    assert held.ok("%mesh doctor").splitlines() == [
        "dev",
        "  differs  here   there",
        "  numpy    2.4.0  1.26.4 on node1",
        "%mesh pip install numpy==2.4.0",
        "fine: clocks",
    ]


def test_pip_is_a_run_whose_output_is_here(held: Notebook, client: FakeClient) -> None:
    def install(run: FakeRun) -> None:
        run.say(Text(0, "stdout", "Successfully installed einops\n"))
        run.finish()

    client.on_submit = install
    shown = held.ok("%mesh pip install -U 'einops>=0.8' --quiet")
    assert client.runs[-1].title == "pip ('install', '-U', 'einops>=0.8', '--quiet')"
    assert "[0] Successfully installed einops" in shown
    assert "pip ran once for node0\nmodules that are imported already stay" in shown
    assert client.runs[-1].seen
    assert isinstance(held.error("%mesh pip"), UsageError)


def test_a_pip_that_is_interrupted_says_nothing_of_success(held: Notebook, client: FakeClient) -> None:
    client.on_submit = lambda run: None
    client.ctrl_c = 1
    assert isinstance(held.error("%mesh pip install einops"), RunInterrupted)
    assert "pip ran" not in held.text()


def test_values_that_can_not_come_leave_the_others(held: Notebook, client: FakeClient) -> None:
    lost = PickleError("can not pickle the result, a generator", ranks=[1])
    client.on_submit = lambda run: run.finish(values=[10, lost, 12, 13])
    error = held.error("%%mesh -o r\nx")
    assert isinstance(error, PickleError)
    assert "r has the other ranks' values" in str(error)
    assert held.shell.user_ns["r"] == [10, lost, 12, 13]
    client.on_submit = lambda run: run.finish(values=[lost] * 4)
    assert str(held.error("%%mesh -o r\nx")).endswith("r has an error in place of each value")


@pytest.mark.parametrize("cell", ["%%mesh", "%%mesh -t 0\n", "%%mesh -o r\n\n  \n"])
def test_an_empty_cell_runs_nothing(held: Notebook, client: FakeClient, cell: str) -> None:
    assert held.ok(cell) == "an empty cell: nothing was run"
    assert not client.runs
    assert isinstance(held.error("%%mesh --targts 0"), UsageError)


def test_restart(held: Notebook, client: FakeClient) -> None:
    assert "variables and imports are gone there, the others keep theirs" in held.ok("%mesh restart -t 3")
    assert client.calls[-1] == ("restart", "main", (3,))
    assert held.ok("%mesh restart").startswith("ranks 0-3 restarted in ")
    assert isinstance(held.error("%mesh restart -t 4"), TargetError)


# ---- cells ----


def test_a_cell_runs_on_the_ranks(held: Notebook, client: FakeClient) -> None:
    client.on_submit = hello
    shown = held.ok("%%mesh -t 1:3 -o twice --on-error abort\nx = {braces} + $dollar\n")
    (run,) = client.runs
    assert run.title == "x = {braces} + $dollar\n"
    assert run.ranks == (1, 2)
    assert run.options == {"on_error": "abort", "want_value": True, "sync": False}  # it went before
    assert run.cell_number == held.shell.execution_count - 1
    assert run.seen
    assert "hello" in shown
    assert held.shell.user_ns["twice"] == [2, 4]


def test_a_failed_cell_raises_one_error(held: Notebook, client: FakeClient) -> None:
    failure = RankFailure(3, "node1", "error", "KeyError", "'a'", "Traceback", "Cell In[1]:1")
    client.on_submit = lambda run: run.finish(values=[1, 2, 3, None], failures=[failure])
    error = held.error("%%mesh -o kept\nx")
    assert isinstance(error, RunFailed)
    assert list(error.failures) == [3]
    assert held.shell.user_ns["kept"] == [1, 2, 3, None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-t 9", "no rank 9: this mesh has ranks 0 to 3"),
        ("-t x", "can not read targets 'x'"),
        ("-t hosts=5", "hosts=5 is out of range"),
        ("--target 0", "did you mean --targets?"),
        ("--timeout never", "--timeout is a number of seconds"),
        ("-o 1x", "--out is the name of a variable"),
        ("dev", "%%mesh takes no 'dev'"),
    ],
)
def test_bad_cell_lines_run_nothing(held: Notebook, client: FakeClient, line: str, message: str) -> None:
    error = held.error(f"%%mesh {line}\nx")
    assert isinstance(error, UsageError)
    assert message in str(error)
    assert not client.runs


def test_noblock_goes_on_in_its_own_cell(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    held.ok("%%mesh --noblock -o run\ntrain()")
    (run,) = client.runs
    assert held.shell.user_ns["run"] is run
    first = held.shown.outputs[0]
    held.shell.run_cell("1 + 1")
    run.say(*(Text(rank, "stdout", "late\n") for rank in run.ranks))
    run.finish()
    last = held.shown.outputs[-1]
    assert last["update"]
    assert last["transient"] == first["transient"]
    assert "late" in last["data"]["text/plain"]


def test_a_timeout_leaves_the_run_alone(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    began = time.monotonic()
    error = held.error("%%mesh -o late --timeout 0.05\ntrain()")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, RunTimeout)
    assert time.monotonic() - began < 3
    assert "not finished after 0.05 s; the run goes on" in str(error)
    (run,) = client.runs
    assert not run.interrupts
    assert not run.seen
    assert "late" not in held.shell.user_ns
    run.finish([1, 2, 3, 4])
    for thread in threading.enumerate():
        if thread.name == "monarch_nb keeps values":
            thread.join()
    assert held.shell.user_ns["late"] == [1, 2, 3, 4]


def test_a_cell_is_free_when_what_is_left_can_not_be_reached(held: Notebook, client: FakeClient) -> None:
    def cut_off(run: FakeRun) -> None:
        run.cut_off = True
        run.interrupt = lambda kill_stuck: InterruptReport(stopped=(0, 1), unreachable={2: "node1", 3: "node1"})  # type: ignore

    client.on_submit, client.ctrl_c = cut_off, 1
    error = held.error("%%mesh -o late\ntrain()")
    assert isinstance(error, RunInterrupted)
    assert str(error).startswith("interrupted ranks 0-1; ranks 2-3 can not be reached and go on: node1 does not answer")
    assert not client.runs[0].seen, "%mesh attach follows it"
    client.runs[0].finish()


def test_local_runs_in_the_kernel_too(held: Notebook, client: FakeClient) -> None:
    held.ok("%%mesh --local\nhere = 3")
    assert held.shell.user_ns["here"] == 3
    assert client.runs[0].title == "here = 3\n"
    assert isinstance(held.error("%%mesh --local\n1/0"), KernelCellFailed)
    assert client.runs[1].seen


# ---- %mesh on ----


def test_on_and_off(held: Notebook, client: FakeClient) -> None:
    assert "%%local" in held.ok("%mesh on -t 0,1")
    assert held.ok("x = {1: 2}[1]\n%timeit -n1 -r1 x") == "on mesh dev · ranks 0-1"
    assert client.runs[-1].title == "x = {1: 2}[1]\n%timeit -n1 -r1 x\n"
    assert client.runs[-1].ranks == (0, 1)
    held.ok("%%local\nkernel = 1\n%timeit -n1 -r1 kernel")
    assert held.shell.user_ns["kernel"] == 1
    assert len(client.runs) == 1
    held.ok("%%mesh -t 3\ny")
    assert client.runs[-1].ranks == (3,)
    held.ok("front_end = 1", store_history=False)
    assert held.shell.user_ns["front_end"] == 1
    held.ok("silent = 1", silent=True)
    assert held.shell.user_ns["silent"] == 1
    assert len(client.runs) == 2
    held.ok("# enough\n%mesh off")
    held.ok("kernel = 2")
    assert held.shell.user_ns["kernel"] == 2
    held.ok("%mesh on")
    assert held.ok("z") == "on mesh dev · 4 ranks"
    held.ok("%mesh release")
    held.ok("kernel = 3")
    assert held.shell.user_ns["kernel"] == 3


def test_mesh_lines_at_the_end_of_a_cell_are_the_kernels(held: Notebook, client: FakeClient) -> None:
    held.ok("%mesh on -t 0,1")
    shown = held.ok("x = '{1}'\nx\n\n%mesh\n# and\nlosses = %mesh pull loss\n")
    assert client.runs[-1].title == "x = '{1}'\nx\n\n"
    assert client.runs[-1].ranks == (0, 1)
    assert shown.splitlines()[0] == "on mesh dev · ranks 0-1"
    assert "4 of 4 ranks alive" in shown
    assert held.shell.user_ns["losses"] == ["loss@0", "loss@1", "loss@2", "loss@3"]
    client.on_submit = lambda run: run.finish(failures=[RankFailure(0, "node0", "error", "KeyError", "1")])
    assert isinstance(held.error("fails()\n%mesh pull x -o never"), RunFailed)
    assert "never" not in held.shell.user_ns
    client.on_submit = FakeRun.finish
    held.ok("%%writefile notes.md\nType this:\n%mesh status\n")
    assert client.runs[-1].title.endswith("%mesh status\n")
    held.ok("y = 1\n%mesh off")
    held.ok("y = 2")
    assert held.shell.user_ns["y"] == 2


def test_local_without_on(notebook: Notebook) -> None:
    notebook.ok("%%local\nkernel = 1")
    assert notebook.shell.user_ns["kernel"] == 1
    notebook.ok("get_ipython().run_cell_magic('local', '', 'kernel = 2')")
    assert notebook.shell.user_ns["kernel"] == 2
    assert isinstance(notebook.error("%%local x\ny"), UsageError)
    assert isinstance(notebook.error("get_ipython().run_cell_magic('local', '', '1/0')"), KernelCellFailed)


class TestTime:
    """The time of a reservation, as the notebook tells it."""

    def test_limits_are_asked_for_and_what_is_left_is_said(self, notebook: Notebook, client: FakeClient) -> None:
        notebook.ok("%mesh reserve dev --nodes 2 --procs 2 --time 8h --idle 2h")
        options = client.calls[0][-1]
        assert (options["time"], options["idle"]) == (28800.0, 7200.0)
        client.held["dev"].left = "7 h, idle 2 h"
        assert notebook.ok("%mesh status").startswith(
            "dev · 2 nodes × 2 procs · 4 of 4 ranks alive · 7 h, idle 2 h left"
        )
        assert "7 h, idle 2 h" in notebook.ok("%mesh list")
        assert "already held, 4 ranks alive, 7 h, idle 2 h left" in notebook.ok("%mesh reserve dev --nodes 2 --procs 2")

    def test_share(self, held: Notebook, client: FakeClient) -> None:
        shares = client.held["dev"].shares
        assert held.ok("%mesh share --to bob") == "dev: bob may see what runs on it (%mesh attach me/dev --pool lab)"
        how = "%mesh attach me/dev --pool lab"
        assert held.ok("%mesh share dev --to carol --run") == f"dev: carol may run cells on it ({how})"
        assert shares == {"bob": "read", "carol": "run"}
        assert held.ok("%mesh share") == "dev: shared with bob (read), carol (run)"
        assert held.ok("%mesh share --to bob --end") == "dev: bob may not use it any more"
        assert shares == {"carol": "run"}
        assert "name the user: --to NAME" in str(held.error("%mesh share --run"))
        assert "say one of" in str(held.error("%mesh share --to bob --run --end"))

    def test_extend(self, held: Notebook, client: FakeClient) -> None:
        assert held.ok("%mesh extend 2h").startswith("dev: 2 h more, 3 h left: released at ")
        assert ("extend", "dev", 7200.0) in client.calls
        assert "TIME is a time such as 90m" in str(held.error("%mesh extend 2"))
        assert "%mesh extend needs TIME" in str(held.error("%mesh extend"))

    def test_the_warning_comes_below_the_last_cell(self, held: Notebook, client: FakeClient) -> None:
        client.on_submit = hello
        held.ok("%%mesh\nhello()")
        before = len(held.shown.outputs)
        client.held["dev"].tell_time("dev will be released at 14:02")
        held.wait_until(lambda: len(held.shown.outputs) > before)
        update = held.shown.outputs[-1]
        assert update["update"]
        assert update["data"]["text/plain"].endswith("dev will be released at 14:02")
        client.held["dev"].tell_time("")
        held.wait_until(lambda: "14:02" not in held.text())
        assert "14:02" not in held.ok("%mesh status"), "it is said once"

    def test_the_next_command_says_it_when_no_cell_can(self, held: Notebook, client: FakeClient) -> None:
        client.held["dev"].tell_time("dev will be released at 14:02")
        assert held.ok("%mesh list").startswith("dev will be released at 14:02\n")
        assert "14:02" not in held.ok("%mesh list")
        client.held["dev"].tell_time("dev will be released at 15:02")
        client.held["dev"].tell_time("")
        assert "15:02" not in held.ok("%mesh list")

    def test_a_kernel_that_detaches_does_not_keep_it_from_being_idle(self, held: Notebook, client: FakeClient) -> None:
        dev = client.held["dev"]
        held.ok("%mesh detach")
        assert ("detach", "dev") in client.calls
        dev.tell_time("dev will be released at 14:02")
        assert "14:02" not in held.ok("%mesh list")

    def test_the_next_kernel_learns_why_nothing_is_held(self, held: Notebook, client: FakeClient) -> None:
        client.held.clear()
        text = "dev was released at 14:02: its time of 8 h was up"
        client.ended = [EndedReservation("dev", "id-dev", 0.0, "its time of 8 h was up", text)]
        held.shown.outputs.clear()
        load_ipython_extension(held.shell)
        assert held.text() == f"{text}: %mesh reserve takes nodes again"
        held.shown.outputs.clear()
        load_ipython_extension(held.shell)
        assert held.text() == "", "it is said once"


class TestPanel:
    def test_where_nobody_is_in_front_it_shows_the_pool_as_it_is(self, notebook: Notebook) -> None:
        assert notebook.ok("%mesh panel").startswith("pool local · no pool 'local' is up")

    def test_it_is_completed(self, held: Notebook) -> None:
        assert held.complete("%mesh pan") == ["%mesh panel"]
        assert held.complete("%mesh panel d") == ["%mesh panel dev"]

    def test_an_object_that_shows_itself_needs_a_notebook(self) -> None:
        with pytest.raises(UsageError, match="a panel needs a notebook with the extension: %load_ext monarch_nb"):
            panel_of(None)  # type: ignore[arg-type]  # it is not looked at


def test_the_extension_is_not_for_ranks(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_TOKEN_VARIABLE, "token")
    with pytest.raises(UsageError, match="the notebook's kernel, not on the ranks"):
        load_ipython_extension(notebook.shell)
