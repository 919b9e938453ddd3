"""Magics that reserve, attach, release and share, in a shell, against a client made of plain objects (conftest.py)."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.pools.infos import EndedReservation
from monarch_nb.client.pools.leasing import KeptFiles, ReleasedLater
from monarch_nb.client.presenting import served_notebook
from monarch_nb.client.saving.saves import SaveInfo
from monarch_nb.errors import NodeUnreachable, ReservationExpired, UsageError
from monarch_nb.notebook import load_ipython_extension, unload_ipython_extension
from monarch_nb.notebook.cells import resuming
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.provision import jobs
from monarch_nb.provision.known import too_much
from monarch_nb.worker.saving.asked import Origin
from unit.notebook.fakes import FakeClient, FakeMesh, FakeReservation, Notebook, hello


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
    notebook.ok("%mesh detach")
    dev = client.held["dev"]
    dev.meshes["grown"] = FakeMesh(client, dev, dev.mesh.extent, name="grown")
    beside = "dev: already held, 4 ranks alive, and beside main grown"
    assert notebook.ok("%mesh reserve dev --nodes 2 --procs 2").startswith(beside)
    del dev.meshes["grown"]
    assert notebook.ok("%mesh reserve dev").startswith("dev: already held, 4 ranks alive"), "as it is"
    assert client.calls[-1][:4] == ("reserve", "dev", 2, 2)
    assert "say how many ranks per node" in str(notebook.error("%mesh reserve dev --pool other"))
    assert "--env NO_WHERE changes nothing: it is not set here" in notebook.ok(
        "%mesh reserve dev --nodes 2 --procs 2 --env NO_WHERE"
    )
    client.dead = {3}
    assert "rank 3 dead" in notebook.ok("%mesh reserve dev --nodes 2 --procs 2")


def test_a_second_reservation_gets_the_cells_and_says_how_to_go_back(notebook: Notebook) -> None:
    assert "stays held" not in notebook.ok("%mesh reserve dev --procs 2")
    shown = notebook.ok("%mesh reserve other --procs 2").splitlines()
    assert "cells go to other now; dev stays held: %mesh attach dev goes back" in shown
    notebook.ok("%mesh detach")
    assert "stays held" not in notebook.ok("%mesh reserve dev --procs 2")


def test_what_has_ended_does_not_stay_held(notebook: Notebook, client: FakeClient) -> None:
    notebook.ok("%mesh reserve dev --procs 2 --time 4s")
    del client.held["dev"]
    text = "dev was released at 16:08: its time of 4 s was up"
    client.ended = [EndedReservation("dev", "id-dev", 1.0, "its time of 4 s was up", text)]
    shown = notebook.ok("%mesh reserve other --procs 2")
    assert f"cells go to other now; {text}, and %mesh logs dev shows what it printed" in shown.splitlines()
    assert "stays held" not in shown


def test_what_is_held_has_names_in_the_kernel(notebook: Notebook, client: FakeClient) -> None:
    names = notebook.shell.user_ns
    shown = notebook.ok("%mesh reserve dev --procs 2")
    assert (names["dev"], names["mesh"]) == (client.held["dev"], client.held["dev"].mesh)
    assert "variable" not in shown
    notebook.ok("%mesh reserve other --procs 2")
    assert (names["dev"], names["other"]) == (client.held["dev"], client.held["other"])
    assert names["mesh"] is client.held["other"].mesh
    notebook.ok("del mesh\n%mesh attach dev")
    assert names["mesh"] is client.held["dev"].mesh
    unload_ipython_extension(notebook.shell)
    assert not {"dev", "other", "mesh"} & names.keys()
    load_ipython_extension(notebook.shell)
    assert names["dev"] is client.held["dev"], "the next kernel has it, too"


def test_without_a_name_a_second_one_of_the_same_shape_is_said(notebook: Notebook, client: FakeClient) -> None:
    assert "beside" not in notebook.ok("%mesh reserve --procs 2\n%mesh release")
    notebook.ok("%mesh reserve dev --procs 2\n%mesh detach")
    said = "no name was given: this is main, beside dev of the same shape (%mesh attach dev uses that)"
    assert said in notebook.ok("%mesh reserve --procs 2").splitlines()
    assert "no name" not in notebook.ok("%mesh reserve --procs 2"), "it is held already"
    for line in ("%mesh reserve --procs 4 --replace", "%mesh reserve named --procs 2"):
        assert "no name" not in notebook.ok(line)
    assert "no name" not in notebook.ok("%mesh release main\n%mesh reserve --procs 2"), "there are two such"
    shown = notebook.ok("%mesh release main\n%mesh release named\n%mesh attach dev\n%mesh reserve --procs 2")
    assert said.partition(" (")[0] in shown.splitlines()
    assert "cells go to main now; dev stays held: %mesh attach dev goes back" in shown


def test_a_variable_of_the_users_is_never_replaced_by_what_is_held(notebook: Notebook, client: FakeClient) -> None:
    names = notebook.shell.user_ns
    notebook.ok("dev, mesh = None, 7")
    shown = notebook.ok("%mesh reserve dev --procs 2")
    told = "your variables dev, mesh stay as before: monarch_nb.attach('dev') is the reservation"
    assert told in shown.splitlines()
    assert (names["dev"], names["mesh"]) == (None, 7)
    for again in ("reserve dev --procs 2", "attach dev", "reserve dev --procs 4 --replace"):
        assert "your variable" not in notebook.ok(f"%mesh {again}"), "said once"
    notebook.ok("del mesh\n%mesh reserve dev --procs 2 --replace")
    shown = notebook.ok("mesh = 8\n%mesh reserve other --procs 2")
    assert "your variable mesh stays as before: monarch_nb.attach('other') is the reservation" in shown
    assert names["mesh"] == 8


def test_a_line_without_its_percent_sign_is_still_a_magic(held: Notebook) -> None:
    assert "mesh" in held.shell.user_ns, "IPython leaves the line to the variable"
    assert held.ok("mesh status") == held.ok("%mesh status")
    held.ok("mesh  on -t 0")
    held.ok("%mesh off")
    assert isinstance(held.error("mesh / 2"), TypeError)


def test_ones_own_handle_of_what_is_held_is_no_other_variable(notebook: Notebook, client: FakeClient) -> None:
    notebook.ok("%mesh reserve dev --procs 2\n%mesh detach")
    notebook.shell.user_ns["dev"] = theirs = FakeReservation(client, "dev", 1, 2, None)
    assert "variable" not in notebook.ok("%mesh attach dev")
    assert notebook.shell.user_ns["dev"] is theirs


def test_ones_own_handle_of_what_has_ended_is_replaced(notebook: Notebook, client: FakeClient) -> None:
    """README's script, run in a notebook, leaves `dev` and `mesh` of a reservation that it has released."""
    names = notebook.shell.user_ns
    for is_over in (False, True):
        names["dev"] = theirs = FakeReservation(client, "dev", 1, 2, None)
        names["mesh"] = theirs.mesh
        theirs.id = theirs.mesh.id = "before"
        theirs.mesh.core.is_over = is_over
        shown = notebook.ok("%mesh reserve dev --procs 4")
        assert ("your variables dev, mesh stay" not in shown) is is_over
        assert (names["dev"] is client.held["dev"], names["mesh"] is client.held["dev"].mesh) == (is_over, is_over)
    names["mesh"] = client.held["dev"]
    client.held["dev"].mesh.core.is_over = True
    assert "your variable" not in notebook.ok("%mesh reserve other --procs 2"), "also where a reservation is a mesh's"
    assert names["mesh"] is client.held["other"].mesh


def test_a_name_that_is_none_of_pythons_or_is_a_builtin_is_not_left(notebook: Notebook) -> None:
    for name in ("my-run", "list", "class"):
        assert "variable" not in notebook.ok(f"%mesh reserve {name} --procs 2")
        assert name not in notebook.shell.user_ns
    assert notebook.shell.user_ns["mesh"].reservation.name == "class"


def test_what_may_be_too_much_is_said_at_once_and_stays(notebook: Notebook, client: FakeClient) -> None:
    much = too_much(40, 1, cores=2)
    client.steps = [much, *client.steps]
    shown = notebook.ok("%mesh reserve dev --nodes 40 --procs 1").splitlines()
    assert shown[0] == much
    assert "40 ranks ready in" in shown[1]


def test_who_holds_what_other_notebooks_use_is_told(notebook: Notebook, client: FakeClient) -> None:
    notebook.ok("%mesh reserve dev --procs 2")
    client.held["dev"].attached = (served_notebook(), "/p/b.ipynb", "/q/c.ipynb")
    told = "b.ipynb, c.ipynb use dev, too: cells wait for each other, and variables are shared"
    assert told in notebook.ok("%mesh reserve dev --procs 2")
    assert told in notebook.ok("%mesh attach dev")
    assert told in notebook.ok("%mesh status")


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


def test_bad_lines_change_nothing(notebook: Notebook, client: FakeClient) -> None:
    for line, message in (
        ("reserve dev", "say how many ranks per node"),
        ("reserve dev --gpus 1 --procs 1", "not both"),
        ("resreve dev", "did you mean reserve?"),
        ("reserve dev --node 2", "did you mean --nodes?"),
        ("status", "this notebook holds no mesh yet: type %mesh reserve"),
        ("attach", "you hold no reservation: %mesh reserve"),
        ("attach dev", "no reservation 'dev'"),
        ("release dev --all", "not both"),
        ("push x", "this kernel has no variable 'x'"),
        *((f"push {item}", "without blanks around =") for item in ("3", "a.b", "x==1", "class")),
        ("push g=lambda x: x*lr", "keep blanks together: g=(lambda x: x*lr)"),
        ("push a lr = 3", "keep blanks together: lr=3"),
        *((f"reserve dev --procs 1 --env {item}", "--env is NAME or NAME=VALUE") for item in ("=1", "A-B=1")),
        ("pull x -o 3", "--out is the name of a variable, not '3'"),
        ("on", "this notebook holds no mesh yet"),
    ):
        error = notebook.error(f"%mesh {line}")
        assert message in str(error)
        assert len(error._render_traceback_()) == 1  # type: ignore[attr-defined]
    error = notebook.error("%%mesh\nx = 1")
    assert isinstance(error, UsageError)
    assert "%mesh reserve dev" in str(error)
    assert not client.calls
    assert not client.held


def test_what_else_is_said_of_what_is_held(held: Notebook) -> None:
    again = "%mesh reserve dev --nodes 2 --procs 2"
    assert held.ok(f"{again} --reload off").splitlines()[-1] == "reload: off from now on"
    assert "reload" not in held.ok(again)
    attached = "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert held.ok("%reload_ext monarch_nb.notebook\n%mesh attach dev") == attached, "once"
    assert held.ok("%mesh attach dev") == attached


def test_attach_detach_release(held: Notebook, client: FakeClient) -> None:
    assert held.ok("%mesh detach") == "detached from dev; it stays held: %mesh attach dev returns to it"
    assert "holds no mesh" in str(held.error("%mesh status"))
    assert held.ok("%mesh attach") == "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert held.ok("%mesh release").startswith("dev: released 2 nodes × 2 procs in ")
    assert not client.held
    again = "%mesh reserve dev --nodes 2 --procs 2 --pool lab for a new one,\nor %mesh attach NAME"
    assert str(held.error("%%mesh\nx")).startswith(f"dev was released: type {again}")
    client.held["dev"] = FakeReservation(client, "dev", 1, 2, None)
    anew = "dev was released, and is held anew: %mesh attach dev uses it"
    assert str(held.error("%mesh status")) == str(held.error("%%mesh\nx")) == anew
    del client.held["dev"]
    held.ok("%mesh reserve a --procs 1\n%mesh reserve b --procs 2")
    assert "1 node × 1 proc" in held.ok("%mesh release a")
    held.ok("%mesh reserve a --procs 1")
    held.ok("%mesh release --all")
    assert not client.held
    assert held.ok("%mesh release --all") == "you hold nothing: there is nothing to release"


def test_ones_own_of_a_name_is_released_beside_somebody_elses(held: Notebook, client: FakeClient) -> None:
    theirs = client.held["dev"]
    theirs.owner, theirs.is_mine = "anna", False
    client.held["dev"] = FakeReservation(client, "dev", 1, 1, None)
    assert "dev: released 1 node × 1 proc" in held.ok("%mesh release dev")
    client.held |= {"anna/dev": theirs, "dev": FakeReservation(client, "dev", 1, 1, None)}
    assert "dev" in held.ok("%mesh status"), "the notebook stays attached to theirs"


def test_a_reservation_that_can_not_be_released_does_not_keep_the_others(
    held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable() -> Any:
        raise NodeUnreachable("node1 does not answer")

    held.ok("%mesh reserve a --procs 1\n%mesh reserve b --procs 2")
    monkeypatch.setattr(client.held["a"], "release", unreachable)
    assert str(held.error("%mesh release --all")) == "node1 does not answer"
    assert list(client.held) == ["a"]


def test_what_is_kept_and_who_was_not_told_is_named_when_a_reservation_goes(held: Notebook, client: FakeClient) -> None:
    kept = KeptFiles("node1", "/state/kept/dev-1", 3, 12_000_000)
    client.kept = [kept, ReleasedLater("node1"), ReleasedLater("node2", ("node3",))]
    lines = [str(one) for one in client.kept]
    assert lines[0] == "kept 3 files, 12 MB, that ranks wrote on node1: /state/kept/dev-1"
    assert held.ok("%mesh reserve dev --nodes 2 --procs 2 --replace").splitlines()[-3:] == lines
    assert held.ok("%mesh release").splitlines()[1:] == lines


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

    monkeypatch.setattr(jobs, "price_per_hour", price)
    monkeypatch.setattr(jobs, "ended_in", lambda _: ["2"])
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


class TestTime:
    """The time of a reservation, as the notebook tells it."""

    def test_limits_are_asked_for_and_what_is_left_is_said(self, notebook: Notebook, client: FakeClient) -> None:
        notebook.ok("%mesh reserve dev --nodes 2 --procs 2 --time 8h --idle 2h")
        options = client.calls[0][-1]
        assert (options["time"], options["idle"]) == (28800.0, 7200.0)
        client.held["dev"].left_s = (7 * 3600.0, 2 * 3600.0)
        assert notebook.ok("%mesh status").startswith(
            "dev · 2 nodes × 2 procs · 4 of 4 ranks alive · 7 h, idle 2 h left"
        )
        assert "7 h, idle 2 h" in notebook.ok("%mesh list")
        assert "already held, 4 ranks alive, 7 h, idle 2 h left" in notebook.ok("%mesh reserve dev --nodes 2 --procs 2")

    def test_share(self, held: Notebook, client: FakeClient) -> None:
        shares = client.held["dev"].shares
        assert held.ok("%mesh share --to bob") == "dev: bob may see what runs on it (%mesh attach me/dev --pool lab)"
        how = "%mesh attach me/dev --pool lab"
        carol = f"dev: carol may run cells on it, with your rights on its nodes ({how})"
        assert held.ok("%mesh share dev --to carol --run") == carol
        assert shares == {"bob": "read", "carol": "run"}
        assert held.ok("%mesh share") == "dev: shared with bob (read), carol (run)"
        assert held.ok("%mesh share --to bob --end") == "dev: bob may not use it any more"
        assert shares == {"carol": "run"}
        assert "name the user: --to NAME" in str(held.error("%mesh share --run"))
        assert "say one of" in str(held.error("%mesh share --to bob --run --end"))

    def test_extend(self, held: Notebook, client: FakeClient) -> None:
        assert held.ok("%mesh extend 2h").startswith("dev: 2 h more, 3 h left: released at ")
        assert ("extend", "dev", 7200.0) in client.calls
        assert "TIME is a time such as 30s, 90m" in str(held.error("%mesh extend 2"))
        assert held.ok("%mesh extend").startswith("dev: ")

    def test_all_is_no_name(self, held: Notebook) -> None:
        assert "%mesh release --all" in str(held.error("%mesh release all"))

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

    def test_an_end_is_said_once(self, held: Notebook, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
        def ends() -> None:
            client.held["dev"].mesh.core.is_over = True
            client.held["dev"].tell_time(f"{text}; %mesh reserve makes a new one")

        def expire(_: FakeMesh) -> list[Any]:
            raise ReservationExpired(f"{text}; %mesh reserve makes a new one", "dev", "its time of 1 h was up")

        text = "dev was released at 16:08: its time of 1 h was up"
        client.ended = [EndedReservation("dev", "id-dev", 1.0, "its time of 1 h was up", text)]
        ends()
        assert held.ok("%mesh list").count(text) == 1
        assert text not in held.ok("%mesh list")
        ends()
        with monkeypatch.context() as patch:
            patch.setattr(FakeMesh, "status", expire)
            assert text in str(held.error("%mesh status"))
        assert text not in held.text()
        assert text not in held.ok("%mesh list")
        ends()
        del client.held["dev"]
        assert held.ok("%mesh reserve other --procs 2").count(text) == 1
        assert text not in held.ok("%mesh list")

    def test_every_command_then_names_the_last_save(
        self, held: Notebook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def expire(*_: object, **__: object) -> Any:
            raise ReservationExpired("dev was released at 16:08", "dev", "its time of 1 h was up")

        info = SaveInfo(str(tmp_path / "0002"), 0.0, 4, 10, Origin("dev"), ())
        monkeypatch.setattr(resuming, "last_save", lambda *_: info)
        monkeypatch.setattr(FakeMesh, "status", expire)
        monkeypatch.setattr(FakeReservation, "extend", expire)
        monkeypatch.setattr(FakeMesh, "submit", expire)
        for line in ("%mesh status", "%mesh extend 1h", "%%mesh\n1"):
            said = str(held.error(line))
            assert said.count("its last save is of ") == 1
            assert said.endswith(f"%mesh load {tmp_path}/0002 loads that")

    def test_the_next_command_says_it_when_no_cell_can(self, held: Notebook, client: FakeClient) -> None:
        dev = client.held["dev"]
        dev.tell_time("dev will be released at 14:02")
        assert held.ok("%mesh list").startswith("dev will be released at 14:02\n")
        assert "14:02" not in held.ok("%mesh list")
        dev.tell_time("dev will be released at 15:02")
        dev.tell_time("")
        assert "15:02" not in held.ok("%mesh list")
        held.ok("%mesh detach")
        assert ("detach", "dev") in client.calls, "it does not keep it from being idle"
        dev.tell_time("dev will be released at 14:02")
        assert "14:02" not in held.ok("%mesh list")
