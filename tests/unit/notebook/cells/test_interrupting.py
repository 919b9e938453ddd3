"""Interrupting cells in a shell, against a client made of plain objects (conftest.py)."""

from functools import partial

from monarch_nb.client.runs.interrupting import InterruptReport
from monarch_nb.errors import RankFailure, RunFailed
from monarch_nb.ground import interrupting
from monarch_nb.notebook.cells.following import RunInterrupted
from unit.notebook.fakes import FakeClient, FakeRun, Notebook
from unit.pressing import Press


def test_a_second_interrupt_kills_what_is_stuck(held: Notebook, client: FakeClient) -> None:
    def stuck(run: FakeRun) -> None:
        run.stops_at = 2

    client.on_submit, client.ctrl_c = stuck, 2
    error = held.error("%%mesh\ntrain()")
    assert isinstance(error, RunInterrupted)
    assert "killed and restarted ranks 0-3" in str(error)
    assert client.runs[0].interrupts == [False, True]


def test_an_impatient_second_interrupt_kills_nothing(held: Notebook, client: FakeClient) -> None:
    """It comes before anybody could know whether ranks hang."""

    def interrupted_again(run: FakeRun) -> None:
        def interrupt(kill_stuck: bool) -> InterruptReport:
            run.interrupt = lambda kill_stuck: FakeRun.interrupt(run, kill_stuck)  # type: ignore
            run.interrupts.append(kill_stuck)
            raise KeyboardInterrupt

        run.interrupt = interrupt  # type: ignore

    client.on_submit, client.ctrl_c = interrupted_again, 1
    assert str(held.error("%%mesh\ntrain()")) == "interrupted ranks 0-3"
    assert client.runs[0].interrupts == [False, False]


def test_an_interrupt_at_any_moment_of_a_cell_reaches_its_run(held: Notebook, client: FakeClient) -> None:
    """Else the ranks would go on with a run that nobody waits for, and the next cell would wait behind it."""

    def goes_on(run: FakeRun) -> None:
        def wait(_: float | None = None) -> bool:
            held_back = interrupting.held_back()
            if held_back is not None and held_back.is_pressed:
                held_back.raise_now()
            if not run.done:
                run.finish()
            return True

        run.wait = wait  # type: ignore

    client.on_submit = goes_on
    files = ("notebook/cells/cell.py", "notebook/cells/following.py", "notebook/output/publishing.py")
    step, pressed = 0, Press(1)
    while step == 0 or pressed.came:
        step += 1
        pressed = Press(step, files)
        cell = partial(held.shell.run_cell_magic, "mesh", "-o kept", "train()")
        interrupt = pressed.during(cell)
        assert (interrupt is not None) == pressed.came, f"lost at step {step}"
        assert all(run.done for run in client.runs), f"left alone at step {step}"
        client.runs.clear()
    assert step > 200


def test_an_interrupted_cell_still_says_who_failed(held: Notebook, client: FakeClient) -> None:
    def half(run: FakeRun) -> None:
        failures = [RankFailure(0, "node0", "error", "KeyError", "'a'")]
        failures += [RankFailure(rank, "node0", "interrupted", "KeyboardInterrupt", "") for rank in (1, 2, 3)]
        run.interrupt = lambda kill_stuck: run.finish(failures=failures) or FakeRun.interrupt(run)  # type: ignore

    client.on_submit, client.ctrl_c = half, 1
    error = held.error("%%mesh\ntrain()")
    assert isinstance(error, RunFailed)
    assert set(error.failures) == {0, 1, 2, 3}


def test_interrupt_from_another_cell(held: Notebook, client: FakeClient) -> None:
    def stuck(run: FakeRun) -> None:
        run.stops_at = 2

    assert held.ok("%mesh interrupt") == "nothing was running"
    client.on_submit = stuck
    held.ok("%%mesh -a\ntrain()")
    assert "rank 0 does not stop (train.py:41)" in held.ok("%mesh interrupt")
    assert "killed and restarted ranks 0-3" in held.ok("%mesh interrupt")
    assert client.runs[0].interrupts == [False, True]
    assert held.ok("%mesh interrupt") == "nothing was running"
