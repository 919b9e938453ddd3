"""Tasks that nobody waits for: an event loop forgets those to which nothing refers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks(set["asyncio.Task[Any]"]):
    """Tasks that go on; each leaves when it has ended.

    Example:
        >>> tasks = Tasks()
        >>> task = tasks.start(asyncio.sleep(1))  # doctest: +SKIP
    """

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something, in the loop that runs."""
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    def cancel(self) -> None:
        """End all of them."""
        for task in tuple(self):
            task.cancel()
