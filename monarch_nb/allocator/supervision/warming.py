"""The node's own template, which is kept warm so that the first ranks come at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from monarch_nb.allocator.supervision.supervisor import Supervisor
from monarch_nb.errors import MonarchNbError


class Warming:
    """Starts the template of one python and preload list.

    Attributes:
        ready: set when that is over.
        error: why it failed, else empty.
    """

    def __init__(self, supervisor: Supervisor, python: str, preload: Sequence[str]) -> None:
        self._supervisor, self._python, self._preload = supervisor, python, preload
        self._task: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self.error = ""

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        try:
            await self._supervisor.templates.template(self._python, self._preload, keep=True)
        except MonarchNbError as error:
            self.error = str(error)
        self.ready.set()

    def close(self) -> None:
        """Wait no longer."""
        if self._task is not None:
            self._task.cancel()
