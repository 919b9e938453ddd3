"""Cells on the ranks, in a shell, against a client made of plain objects (conftest.py)."""

import linecache
import threading

import pytest

from monarch_nb.client.presenting import panel_of
from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.errors import RankFailure, RunFailed, UsageError
from monarch_nb.notebook import load_ipython_extension
from monarch_nb.notebook.cells.cell import KernelCellFailed
from monarch_nb.notebook.cells.following import RunInterrupted, RunTimeout
from unit.notebook.fakes import FakeClient, FakeRun, Notebook, hello, nothing

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


def test_debug_shows_a_failed_cell_as_it_was_typed(held: Notebook, client: FakeClient) -> None:
    failure = RankFailure(3, "node1", "error", "KeyError", "'a'", "Traceback", "Cell In[1]:1")
    client.on_submit = lambda run: run.finish(failures=[failure])
    for cell in ("%%mesh -t 0:4\nfor batch in data:\n    step(batch)\n", "%%mesh\nx"):
        trace = held.error(cell).__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        assert "".join(linecache.getlines(trace.tb_frame.f_code.co_filename)).rstrip() == cell.rstrip()


def test_bad_cell_lines_run_nothing(held: Notebook, client: FakeClient) -> None:
    for line, message in (
        ("-t 9", "no rank 9: this mesh has ranks 0 to 3"),
        ("-t x", "can not read targets 'x'"),
        ("-t hosts=5", "hosts=5 is out of range"),
        ("--target 0", "did you mean --targets?"),
        ("-o 1x", "--out is the name of a variable"),
        ("--watch inf", "--watch is nan, or nan= and some of grad, loss, param, not"),
        ("--watch nan=weights", "--watch is nan, or nan= and some of grad, loss, param, not"),
    ):
        error = held.error(f"%%mesh {line}\nx")
        assert isinstance(error, UsageError)
        assert message in str(error)
    assert not client.runs


def test_a_cell_magic_that_is_not_in_the_first_line_says_so(held: Notebook, client: FakeClient) -> None:
    for name in ("mesh", "local"):
        for above in ("# a comment\n", "x = 1\n\n"):
            error = held.error(f"{above}%%{name} -t 0\nprint(x)")
            assert isinstance(error, UsageError)
            assert str(error) == f"%%{name} must be the cell's first line: put it above comments and code"
    assert not client.runs


def test_a_timeout_leaves_the_run_alone(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    error = held.error("%%mesh -o late --timeout 0.05\ntrain()")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, RunTimeout)
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


def test_our_own_cells_stay_in_the_kernel_while_on(held: Notebook, client: FakeClient) -> None:
    held.ok("%mesh on")
    for cell in (
        "# here\n\n%mesh status",
        "%mesh?",
        "losses = %mesh pull losses",
        "# only a comment",
        "%reload_ext monarch_nb",
    ):
        held.ok(cell)
    assert not client.runs


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


class TestPanel:
    def test_where_nobody_is_in_front_it_shows_the_pool_as_it_is(self, notebook: Notebook) -> None:
        assert notebook.ok("%mesh panel").startswith("pool local · no pool 'local' is up")

    def test_an_object_that_shows_itself_needs_a_notebook(self) -> None:
        with pytest.raises(UsageError, match="a panel needs a notebook with the extension: %load_ext monarch_nb"):
            panel_of(None)  # type: ignore[arg-type]  # it is not looked at


def test_the_extension_is_not_for_ranks(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_TOKEN_VARIABLE, "token")
    with pytest.raises(UsageError, match="the notebook's kernel, not on the ranks"):
        load_ipython_extension(notebook.shell)
