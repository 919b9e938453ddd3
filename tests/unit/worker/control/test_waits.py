"""Where an exception may be raised in a thread, and waits that one ends."""

from __future__ import annotations

import sys
import threading
import time
from _thread import allocate_lock
from types import FrameType
from typing import Any

import pytest

from monarch_nb.ground import flag
from monarch_nb.worker.control import executions
from monarch_nb.worker.groups import breaking
from monarch_nb.worker.shell import streams
from unit.worker.users import run_cell


def frame_in(filename: str) -> FrameType:
    """Return a frame of code that is in a file."""
    space: dict[str, Any] = {}
    exec(compile("import sys\nframe = sys._getframe()", filename, "exec"), space)
    found: FrameType = space["frame"]
    return found


def test_where_an_exception_may_be_raised() -> None:
    users = run_cell("frame = sys._getframe()")["frame"]
    standard, library = frame_in(threading.__file__), frame_in("/env/site-packages/torch/nn.py")
    ours, streaming = frame_in(breaking.__file__), frame_in(streams.__file__)
    assert executions.takes_interrupts([users])
    assert executions.takes_interrupts([standard, library, users])
    assert executions.takes_interrupts([streaming, users])
    assert executions.takes_interrupts([users, ours, users])
    assert not executions.takes_interrupts([standard, ours, users])
    assert not executions.takes_interrupts([])


def test_our_own_waits_take_interrupts() -> None:
    began, frames = threading.Event(), []
    waited = flag.Flag()

    def wait() -> None:
        began.set()
        waited.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    while not any(frame.f_code is flag.Flag.wait.__code__ for frame in frames):
        frames = list(executions.outwards(sys._current_frames()[thread.ident or 0]))
    assert executions.takes_interrupts(frames)
    waited.set()
    thread.join()


class Wakes(executions.Waiter):
    """Raises once it is woken."""

    due = False

    def check(self) -> None:
        if self.due:
            raise KeyboardInterrupt


@pytest.mark.parametrize("early", [True, False])
def test_a_wait_ends_when_it_is_woken(early: bool) -> None:
    waiter, lock, ended = Wakes(), allocate_lock(), []
    lock.acquire()

    def wait() -> None:
        try:
            waiter.wait(lock, 1000)
        except KeyboardInterrupt:
            ended.append(True)

    waiter.due = early
    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        waiter.due = True
        waiter.wake()
        time.sleep(0)
    assert (ended, waiter.wake()) == ([True], False)
