"""Following runs, and kernels that find again what their notebook held, against a client made of plain objects."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.errors import NodeUnreachable, RankFailure, RunFailed
from monarch_nb.notebook import load_ipython_extension, unload_ipython_extension
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.session import Session
from unit.notebook.fakes import FakeClient, FakeRun, Notebook, hello, nothing

# ---- following ----


def test_attach_follows_to_the_end(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    held.ok("%%mesh -a\nfirst()")
    held.ok("%%mesh -a\nsecond()")
    first, second = client.runs
    client.on_attach = hello
    load_ipython_extension(held.shell)  # a new kernel
    stops = "%mesh attach follows them, %mesh interrupt stops them"
    assert held.text().endswith(f"run 1, cell [2]; run 2, cell [3] still running: {stops}")
    shown = held.ok("%mesh attach")
    assert shown.index("first()") < shown.index("second()")
    assert shown.count("hello") == 4  # the cells of the first kernel show it too
    assert first.seen
    assert second.seen
    assert ("attach_run", "run1", False) in client.calls
    assert held.ok("%mesh attach").splitlines() == [
        "attached to dev: 2 nodes × 2 procs, 4 ranks alive",
        "run 2, cell [3] (second()) was shown to the end: %mesh attach --from-start shows it again",
    ]
    assert "was shown to the end" not in held.ok("%mesh attach"), "once is enough"
    assert "(second())" in held.ok("%mesh attach --from-start")


def test_attach_shows_every_error_and_raises_the_last(
    held: Notebook, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.on_submit = nothing
    held.ok("%%mesh -a\nfirst()")
    held.ok("%%mesh -a\nsecond()")
    load_ipython_extension(held.shell)
    client.on_attach = lambda run: run.finish(failures=[RankFailure(0, "node0", "error", f"Error{run.number}", "")])
    error = held.error("%mesh attach --from-start")
    assert isinstance(error, RunFailed)
    assert error.failures[0].name == "Error2"
    assert "Error1" in capsys.readouterr().err
    assert ("attach_run", "run2", True) in client.calls


def test_attach_elsewhere_says_once_what_it_shows(held: Notebook, client: FakeClient) -> None:
    held.ok("%%mesh\ntrain()")
    client.runs[0].seen = False
    held.ok("%mesh detach")
    load_ipython_extension(held.shell)
    shown = held.ok("%mesh attach dev")
    assert shown.splitlines()[0] == "attached to dev: 2 nodes × 2 procs, 4 ranks alive"
    assert "%mesh attach shows" not in shown
    assert "· finished; without what was shown before: %mesh attach --run 1 shows all of it" in shown


def test_what_was_shown_to_the_end_is_shown_again_when_asked_for(held: Notebook, client: FakeClient) -> None:
    """The browser may have been closed when the kernel showed it."""
    for cell in ("first()", "second()"):
        held.ok(f"%%mesh\n{cell}")
    client.on_attach = hello
    shown = held.ok("%mesh attach --from-start")
    assert "run 2, cell [3] (second()) · ranks 0-3 · submitted" in shown
    assert "hello" in shown
    assert "first()" not in shown
    assert "run 1, cell [2] (first())" in held.ok("%mesh attach --run 1")
    assert "%mesh logs --run 9 has what it printed" in str(held.error("%mesh attach --run 9"))


def test_a_cell_that_was_removed_from_the_queue_was_not_shown(held: Notebook, client: FakeClient) -> None:
    cancelled = [RankFailure(rank, "node0", "cancelled", "KeyboardInterrupt", "") for rank in range(4)]
    for kind, said in (
        ("cancelled", "never ran: it was removed from the queue"),
        ("interrupted", "was shown to the end: %mesh attach --from-start shows it again"),
    ):
        failures = [replace(failure, kind=kind) for failure in cancelled]
        client.on_submit = lambda run, failures=failures: run.finish(failures=failures)
        held.error("%%mesh\nsecond()")
        assert held.ok("%mesh attach").splitlines()[-1].endswith(f"(second()) {said}")
    client.on_submit = lambda run: run.finish(failures=cancelled)
    held.error("%%mesh\nthird()")
    assert "(third()) never ran" in held.ok("%mesh attach --from-start")


def left_by_a_script(client: FakeClient, count: int) -> None:
    for number in range(count):
        run = client.held["dev"].mesh.submit(f"script({number})", listener=nothing, cell_number=0)
        run.notebook, run.seen = "", False


def test_what_a_script_left_is_named_in_one_line(held: Notebook, client: FakeClient) -> None:
    left_by_a_script(client, 16)
    assert held.ok("%mesh status").splitlines()[-1] == (
        "runs 1-16 finished and nobody has seen them: %mesh attach --run N shows one"
    )
    held.shown.outputs.clear()
    load_ipython_extension(held.shell)
    assert held.text().endswith(
        ", run 16 finished meanwhile: %mesh attach shows it; "
        "runs 1-15 finished and nobody has seen them: %mesh attach --run N shows one"
    )
    shown = held.ok("%mesh attach")
    assert shown.splitlines()[0] == "runs 1-15 finished and nobody has seen them: %mesh attach --run N shows one"
    assert "script(15)" in shown
    assert [call for call in client.calls if call[0] == "attach_run"] == [("attach_run", "run16", False)]
    assert "nobody has seen" not in held.ok("%mesh attach\n%mesh status"), "said once"
    assert "script(3)" in held.ok("%mesh attach --run 4")


def test_cells_of_the_notebook_come_before_what_a_script_left(held: Notebook, client: FakeClient) -> None:
    held.ok("%%mesh\ntrain()")
    client.runs[0].seen = False
    left_by_a_script(client, 1)
    load_ipython_extension(held.shell)
    shown = held.ok("%mesh attach")
    assert "run 2 (script(0)) finished and nobody has seen it: %mesh attach --run 2 shows it" in shown
    assert [call for call in client.calls if call[0] == "attach_run"] == [("attach_run", "run1", False)]


def test_who_follows_the_run_of_somebody_else_learns_what_an_interrupt_does(held: Notebook, client: FakeClient) -> None:
    said = "■ interrupts the run; %mesh attach --noblock only follows it"
    client.on_submit, client.on_attach = nothing, hello
    held.ok("%%mesh -a\nmine()")
    load_ipython_extension(held.shell)
    assert said not in held.ok("%mesh attach")
    left_by_a_script(client, 1)
    assert said not in held.ok("%mesh attach --noblock")
    left_by_a_script(client, 1)
    assert said in held.ok("%mesh attach").splitlines()
    assert said not in held.ok("%mesh attach --run 2"), "it is over"
    left_by_a_script(client, 1)
    dev = client.held["me/dev"] = client.held["dev"]
    client.runs[-1].owner, dev.is_mine = "alice", False
    assert said not in held.ok("%mesh attach"), "only alice stops it"


def test_attach_in_the_kernel_that_follows_already(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    held.error("%%mesh --timeout 0.05\ntrain()")
    client.ctrl_c = 1
    assert isinstance(held.error("%mesh attach"), RunInterrupted)
    assert not [call for call in client.calls if call[0] == "attach_run"]


@pytest.mark.parametrize("flag", ["", " --from-start"])
def test_attach_takes_the_output_over_from_the_cell_that_showed_it(
    held: Notebook, client: FakeClient, flag: str
) -> None:
    client.on_submit = nothing
    held.error("%%mesh --timeout 0.05\ntrain()")
    (run,) = client.runs
    left = {output["transient"]["display_id"] for output in held.shown.outputs}
    held.ok(f"%mesh attach --noblock{flag}")
    moved = [output["data"]["text/html"] for output in held.shown.outputs if _id(output) in left]
    assert "goes on in cell [3]" in moved[-1]
    hello(run)
    held.wait_until(lambda: "hello" in held.text())
    assert not any("hello" in str(output) for output in held.shown.outputs if _id(output) in left)


def _id(output: dict[str, Any]) -> str | None:
    return (output.get("transient") or {}).get("display_id")


# ---- loading ----


def test_a_new_kernel_of_the_notebook_attaches(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    held.ok("%%mesh -a\ntrain()")
    unload_ipython_extension(held.shell)
    assert "mesh" not in held.shell.magics_manager.magics["cell"]
    client.runs[0].lose_kernel()
    client.runs[0].finish()
    load_ipython_extension(held.shell)
    assert held.text().endswith("finished meanwhile: %mesh attach shows it")
    client.runs[0].collected()
    held.ok("%mesh detach")
    held.shown.outputs.clear()
    load_ipython_extension(held.shell)
    assert held.text() == "you hold dev: %mesh attach dev uses it here"


def test_loading_with_nothing_held_is_silent(client: FakeClient, shell: InteractiveShell) -> None:
    opened = Notebook(shell)
    load_ipython_extension(shell)
    assert opened.text() == ""
    unload_ipython_extension(shell)
    unload_ipython_extension(shell)


def test_loading_never_fails(client: FakeClient, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    import monarch_nb
    from monarch_nb.notebook import session

    def unreachable(*_: Any) -> Any:
        raise NodeUnreachable("node0 does not answer")

    opened = Notebook(shell)
    monkeypatch.setattr(monarch_nb, "list_reservations", unreachable)
    load_ipython_extension(shell)
    assert opened.text() == "nothing attached: node0 does not answer"
    answers = threading.Event()
    monkeypatch.setattr(session, "REATTACH_TIMEOUT_S", 0.05)
    monkeypatch.setattr(monarch_nb, "list_reservations", lambda *_: answers.wait() and [])
    opened.shown.outputs.clear()
    load_ipython_extension(shell)
    answers.set()
    assert opened.text() == "the pool does not answer yet: %mesh attach tries again"
    unload_ipython_extension(shell)


def test_what_the_client_takes_to_load_is_not_counted_as_the_pools_time() -> None:
    loaded_on: list[threading.Thread] = []

    class Loading(FakeClient):
        @property
        def list_reservations(self) -> Any:  # type: ignore[override]
            loaded_on.append(threading.current_thread())
            return lambda pool: []

    assert Session(Loading()).reattach() == ""
    assert loaded_on == [threading.main_thread()]


@pytest.mark.parametrize("asked", ["", " --from-start"])
def test_how_the_run_of_another_notebook_ended_is_no_failure_of_this_one(
    held: Notebook, client: FakeClient, capsys: pytest.CaptureFixture[str], asked: str
) -> None:
    client.on_submit = nothing
    held.ok("%%mesh --noblock\ntrain()")
    client.runs[0].notebook = "/work/other.ipynb"
    load_ipython_extension(held.shell)

    def ends(run: FakeRun) -> None:
        stopped = [RankFailure(rank, "node0", "interrupted", "KeyboardInterrupt", "") for rank in (0, 1)]
        run.finish(failures=[*stopped, RankFailure(2, "node1", "error", "KeyError", "'x'", "the stack", "train.py:41")])

    client.on_attach = ends
    shown = held.ok(f"%mesh attach dev{asked}")
    assert shown.splitlines()[-1] == (
        "run 1, cell [2] of other.ipynb (train()) ended: rank 2: failed: KeyError: 'x' (train.py:41); "
        "ranks 0-1: interrupted. %mesh logs --run 1 shows the traceback"
    )
    assert ("the stack" in capsys.readouterr().err) is bool(asked), "who asks for all of it gets it"


def test_who_interrupts_the_run_of_another_notebook_is_told_so(held: Notebook, client: FakeClient) -> None:
    client.on_submit = nothing
    held.ok("%%mesh --noblock\ntrain()")
    client.runs[0].notebook = "/work/other.ipynb"
    load_ipython_extension(held.shell)
    client.on_attach, client.ctrl_c = nothing, 1
    assert isinstance(held.error("%mesh attach dev"), RunInterrupted)
