"""Calls from any thread run on one background loop; Ctrl-C cancels them and waits until they have cleaned up."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from monarch_nb.client.bridge import background_loop, call
from monarch_nb.errors import UsageError


async def value_of(thing: object) -> object:
    await asyncio.sleep(0)
    return thing


def test_results_and_errors_come_back() -> None:
    assert call(value_of(7)) == 7

    async def fail() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        call(fail())


def test_one_loop_for_all_threads() -> None:
    loops = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    threads = [threading.Thread(target=call, args=(note(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(loops) == {background_loop()}
    assert len(loops) == 4


def test_a_timeout_cancels() -> None:
    cleaned = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

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
        "from monarch_nb.client.bridge import call\n"
        "async def pid(): return os.getpid()\n"
        "assert call(pid()) == os.getpid()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if call(pid(), 20) == os.getpid() else 1)\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
