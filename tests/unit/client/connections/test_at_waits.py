"""Ctrl-C that is held back until the main thread waits."""

from __future__ import annotations

import signal
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.ground import flag as flags
from monarch_nb.ground import interrupting
from monarch_nb.ground.flag import Flag
from monarch_nb.ground.interrupting import anywhere, at_waits, kernel_ends
from unit.pressing import Press


@pytest.fixture(autouse=True)
def handler_stays() -> Any:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("fails", [False, True])
def test_what_the_block_does_is_done_whole(fails: bool) -> None:
    done = []

    def work() -> None:
        with at_waits():
            press()
            done.append("after the press")
            if fails:
                raise ValueError("its own")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done


def test_one_in_a_weak_references_callback_is_not_lost() -> None:
    class Thing:
        pass

    thing = Thing()
    reference = weakref.ref(thing, lambda _: press())
    with pytest.raises(KeyboardInterrupt), at_waits():
        del thing
    assert reference() is None


def test_inside_it_code_of_others_is_interrupted_anywhere() -> None:
    with at_waits():
        with pytest.raises(KeyboardInterrupt), anywhere():
            press()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler


def test_other_threads_wait_undisturbed() -> None:
    flag, waited = Flag(), []
    thread = threading.Thread(target=lambda: waited.append(flag.wait(10)))

    def work() -> None:
        with at_waits():
            press()
            thread.start()
            flag.set()
            thread.join()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert waited == [True]


class FakeKernel:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, ...]] = []
        self.control_handlers = {"shutdown_request": lambda *message: self.told.append(message)}
        monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=self))

    def shut_down(self) -> None:
        """As its control thread does."""
        self.control_handlers["shutdown_request"]("stream", "ident", "message")


class TestKernelEnds:
    def test_one_that_jupyter_sends_before_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel, handlers = FakeKernel(monkeypatch), []
        monkeypatch.setattr(interrupting, "SHUTDOWN_NOTICE_S", 60.0)
        handlers.append(kernel.control_handlers["shutdown_request"])
        with at_waits():
            press()
            with pytest.raises(KeyboardInterrupt):
                Flag().wait()
            assert not Flag().wait(0), "it is raised once"
            telling = threading.Thread(target=kernel.shut_down)
            telling.start()
            assert kernel_ends()
            telling.join()
            kernel.shut_down()
            assert kernel_ends(), "still"
        assert kernel.told == [("stream", "ident", "message")] * 2
        assert [kernel.control_handlers["shutdown_request"]] == handlers, "it is put back"

    def test_said_before_the_block_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = FakeKernel(monkeypatch)
        with at_waits():
            press()
            kernel.shut_down()
            with pytest.raises(KeyboardInterrupt):
                Flag().wait()
            assert kernel_ends()

    def test_one_of_the_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        FakeKernel(monkeypatch)
        monkeypatch.setattr(interrupting, "SHUTDOWN_NOTICE_S", 0.001)
        with at_waits():
            assert not kernel_ends()
            press()
            assert not kernel_ends(), "one that comes meanwhile is the same one to who asks"
        with at_waits():
            assert not kernel_ends()

    def test_outside_of_a_kernel_nobody_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interrupting, "SHUTDOWN_NOTICE_S", 3600.0)
        with at_waits():
            assert not kernel_ends()
        assert not kernel_ends()


def test_a_press_at_any_moment_before_a_wait_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the wait would sleep on, though Ctrl-C was pressed."""
    step, came = 0, True
    while came:
        step += 1
        pressed, slept = Press(step, ("ground/interrupting.py", "ground/flag.py", "contextlib.py", "threading.py")), []

        class Sleeper:
            def acquire(self, timeout: float | None = None) -> bool:
                if timeout is not None:
                    slept.append(pressed.came)  # noqa: B023
                return True

            def release(self) -> None:
                pass

        monkeypatch.setattr(flags, "allocate_lock", Sleeper)

        def work() -> None:
            with at_waits():
                Flag().wait(1)

        interrupt = pressed.during(work)
        came = pressed.came
        assert slept in ([], [False]), f"asleep after the press at step {step}"
        assert (interrupt is not None) == came, f"lost at step {step}"
    assert step > 100


def test_a_press_just_before_it_sleeps_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal interrupts no sleep that begins after it."""

    class Sleeper:
        def acquire(self, timeout: float = -1) -> bool:
            if timeout == -1:
                return True
            press()  # noticed in this frame, which is none that waits
            assert 0 <= timeout < 1
            return False

    monkeypatch.setattr(flags, "allocate_lock", Sleeper)
    with at_waits(), pytest.raises(KeyboardInterrupt):
        Flag().wait()
