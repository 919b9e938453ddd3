"""Tasks that nobody waits for are kept while they go on, and no longer."""

from __future__ import annotations

import asyncio

from monarch_nb.ground.tasks import Tasks


async def test_a_task_is_kept_until_it_has_ended_and_all_are_cancelled_at_once() -> None:
    tasks, done = Tasks(), asyncio.Event()

    async def end() -> int:
        await done.wait()
        return 7

    first = tasks.start(end())
    assert tasks == {first}
    done.set()
    assert await first == 7
    await asyncio.sleep(0)
    assert not tasks
    others = [tasks.start(asyncio.sleep(60)) for _ in range(2)]
    tasks.cancel()
    await asyncio.wait(others)
    assert all(task.cancelled() for task in others)
    assert not tasks
