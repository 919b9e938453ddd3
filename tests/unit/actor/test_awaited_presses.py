"""Ctrl-C in a cell that awaits calls, whose endpoints handle it: ipykernel cancels a cell once, but more may come."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ipykernel.ipkernel import IPythonKernel

from monarch_nb.actor.engine.calls import Outcome
from monarch_nb.actor.future import Future, future_of
from monarch_nb.ground import interrupting
from unit.actor.network import TIMEOUT_S, FakeTag

Execute = Callable[[Awaitable[None]], Awaitable[None]]


def press() -> None:
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)


class Handles(FakeTag):
    """A call whose endpoint has a result only after some presses. Each makes the next one come."""

    def __init__(self, presses: int) -> None:
        super().__init__(runs={"mesh": ("run", 1, 0)})
        self.outcome = Outcome(lambda raw: raw)
        self._presses = presses

    def interrupt(self) -> None:
        self.interrupts += 1
        if self.interrupts == self._presses:
            self.outcome.resolve(self.interrupts)
        else:
            press()


def pressed(presses: int) -> Future[int]:
    """Return the result of such a call; the first press comes when it is awaited."""
    tag = Handles(presses)
    call: Any = SimpleNamespace(tag=tag, title="trainers.step", unanswered=(), waits_for_itself=None)
    press()
    return future_of(tag.outcome, call)


async def pressed_in_a_task(presses: int) -> int:
    """The same, awaited by another task than the cell's."""

    async def task() -> int:
        return await pressed(presses)

    return await asyncio.create_task(task())


@pytest.fixture
async def execute(monkeypatch: pytest.MonkeyPatch) -> Execute:
    """Execute a cell as ipykernel does."""
    loop = asyncio.get_running_loop()
    kernel: Any = SimpleNamespace(
        io_loop=SimpleNamespace(add_callback=loop.call_soon_threadsafe),
        control_handlers={"shutdown_request": lambda *_: None},
    )
    monkeypatch.setattr(interrupting, "_kernel", lambda: kernel)
    monkeypatch.setattr(interrupting, "SHUTDOWN_NOTICE_S", 0.0)

    async def run_cell_async(cell: Awaitable[None]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await cell

    async def execute(cell: Awaitable[None]) -> None:
        task = asyncio.ensure_future(run_cell_async(cell))
        with IPythonKernel._cancel_on_sigint(kernel, task):
            await task

    return execute


@pytest.mark.parametrize("awaited", [pressed, pressed_in_a_task])
async def test_each_press_in_a_cell_counts(execute: Execute, awaited: Callable[[int], Awaitable[int]]) -> None:
    seen: list[int] = []

    async def cell() -> None:
        task = asyncio.current_task()
        assert task is not None
        for presses in (1, 2, 1):
            seen.append(await awaited(presses))
            assert not task.cancelling(), "what handles a press was not cancelled"
        press()
        await asyncio.sleep(TIMEOUT_S)
        seen.append(-1)

    with pytest.raises(asyncio.CancelledError):
        await execute(cell())
    assert seen == [1, 2, 1]


async def test_a_cell_that_handled_one_ends_well(execute: Execute) -> None:
    async def cell() -> None:
        assert await pressed(1) == 1

    before = signal.getsignal(signal.SIGINT)
    await execute(cell())
    assert signal.getsignal(signal.SIGINT) is before


async def test_a_cell_that_awaits_is_interrupted_where_it_waits_without_await(execute: Execute) -> None:
    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt), interrupting.at_waits():
            signal.raise_signal(signal.SIGINT)
        press()
        await asyncio.sleep(TIMEOUT_S)

    with pytest.raises(asyncio.CancelledError):
        await execute(cell())


async def test_a_timeout_after_the_press_of_one_that_waits_beside_it_is_no_press() -> None:
    tag = Handles(1)
    call: Any = SimpleNamespace(tag=tag, title="trainers.step", unanswered=(), waits_for_itself=None)
    with interrupting.at_awaits(asyncio.get_running_loop()) as presses:
        assert presses is not None
        presses.count += 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await future_of(tag.outcome, call)
    assert not tag.interrupts
