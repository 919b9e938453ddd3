"""Calls from any thread run on one background loop; Ctrl-C cancels them and waits until they have cleaned up."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from monarch_nb.client.connections import bridge
from monarch_nb.client.connections.bridge import background_loop, call
from monarch_nb.ground.flag import Flag
from unit.pressing import work_telling


async def value_of(thing: object) -> object:
    await asyncio.sleep(0)
    return thing


def test_one_loop_for_all_threads_also_when_they_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "_loops", [])
    loops, all_there = [], threading.Barrier(8)

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    def work() -> None:
        all_there.wait()
        call(note())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(loops) == {background_loop()}
    assert len(loops) == 8
    background_loop().call_soon_threadsafe(background_loop().stop)


def test_a_timeout_cancels() -> None:
    began, cleaned = threading.Event(), threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    while not began.is_set():  # on a busy machine the time may be up before the loop comes to it
        with pytest.raises(TimeoutError):
            call(forever(), timeout_s=0.01)
    assert cleaned.is_set()


def test_a_timeout_of_the_work_itself_is_passed_on() -> None:
    async def late() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        call(late(), timeout_s=100)


def test_ctrl_c_cancels_and_waits_for_the_clean_up() -> None:
    cleaned = []

    async def forever() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        call(forever())
    assert cleaned == [True]


def test_what_was_complete_before_ctrl_c_is_undone() -> None:
    """The signal was sent, the work went on to its end before the main thread could run."""
    undone = []

    async def complete() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return "reserved"

    async def undo(result: str) -> None:
        undone.append(result)

    with pytest.raises(KeyboardInterrupt):
        call(complete(), undo=undo)
    assert undone == ["reserved"]


def test_a_forked_child_has_a_loop_of_its_own() -> None:
    program = (
        "import asyncio, os\n"
        "from monarch_nb.client.connections.bridge import call\n"
        "async def pid(): return os.getpid()\n"
        "assert call(pid()) == os.getpid()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if call(pid(), 20) == os.getpid() else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    # Python 3.12 warns of a fork beside threads, which is what this test is about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


def interrupted_at(step: int, work: Callable[[], object]) -> bool:
    """Do `work` with a Ctrl-C at its `step`-th bytecode instruction; return whether it had that many."""
    left = step

    def told(_: FrameType) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        work_telling(work, told)
    return left <= 0


@pytest.mark.parametrize("set_before", [True, False])
def test_ctrl_c_at_any_moment_of_a_wait_leaves_a_flag_that_can_be_set(set_before: bool) -> None:
    """The background loop sets flags: were it to hang there, every later cell would."""
    steps = 0
    while True:
        steps += 1
        flag = Flag()
        setter = threading.Thread(target=flag.set, daemon=True)
        if set_before:
            flag.set()
        else:
            setter.start()
        went_on = interrupted_at(steps, flag.wait)
        flag.clear()
        again = threading.Thread(target=flag.set, daemon=True)
        again.start()
        again.join(10)
        assert not again.is_alive(), f"interrupted at step {steps}"
        assert flag.wait(10)
        if not went_on:
            break
    assert steps > 50


def test_ctrl_c_at_any_moment_of_a_call_leaves_a_loop_that_works() -> None:
    steps = 0
    while True:
        steps += 1
        work = value_of(7)
        went_on = interrupted_at(steps, lambda work=work: call(work))  # type: ignore[misc]
        work.close()
        assert call(value_of(steps), 10) == steps
        if not went_on:
            break
    assert steps > 50
