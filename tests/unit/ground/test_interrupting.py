"""Work of another thread is interrupted as Ctrl-C interrupts the main thread's."""

from __future__ import annotations

import asyncio
import selectors
import threading

import pytest

from monarch_nb.client.connections.bridge import call
from monarch_nb.ground.interrupting import Interrupt, current, interruptible


def test_it_wakes_a_selector_and_interrupts_once() -> None:
    interrupt = Interrupt()
    interrupt.check()
    with selectors.DefaultSelector() as selector:
        selector.register(interrupt, selectors.EVENT_READ)
        assert not selector.select(0)
        interrupt.set()
        assert selector.select(0)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()  # whoever cleans up goes on
        assert not selector.select(0)
    interrupt.close()
    interrupt.set()
    interrupt.check()  # it has ended


def test_it_covers_only_its_block() -> None:
    interrupt = Interrupt()
    with interruptible(interrupt):
        assert current() is interrupt
    assert current() is None
    interrupt.close()


def test_a_call_that_waits_is_cancelled_and_has_cleaned_up() -> None:
    interrupt, waits, told = Interrupt(), threading.Event(), []

    async def work() -> None:
        waits.set()
        try:
            await asyncio.sleep(60)
        finally:
            told.append("cleaned up")

    def thread() -> None:
        with interruptible(interrupt):
            try:
                call(work())
            except KeyboardInterrupt:
                told.append("interrupted")

    working = threading.Thread(target=thread)
    working.start()
    assert waits.wait(10)
    interrupt.set()
    working.join(10)
    assert told == ["cleaned up", "interrupted"]
    interrupt.close()


def test_a_call_made_after_it_was_set_is_cancelled() -> None:
    interrupt = Interrupt()
    interrupt.set()
    with interruptible(interrupt), pytest.raises(KeyboardInterrupt):
        call(asyncio.sleep(60))
    interrupt.close()
