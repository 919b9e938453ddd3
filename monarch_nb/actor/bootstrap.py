"""What sets new processes up: `spawn_procs(bootstrap=…)`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from monarch_nb.actor.actor import Actor
from monarch_nb.actor.endpoints import endpoint


class Bootstrap(Actor):
    """Calls a function, before there are other actors in its process. What that spawns is this actor's, and lives on.

    Args:
        function: takes nothing; what it returns is dropped.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @endpoint
    def run(self) -> None:
        """Call it."""
        result = self._function()
        if inspect.iscoroutine(result):  # of a lambda, which does not look as if it were async
            asyncio.run(result)


class AsyncBootstrap(Actor):
    """The same for an async function, which has a loop then.

    Args:
        function: as Bootstrap's.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @endpoint
    async def run(self) -> None:
        """Call it."""
        await self._function()


def bootstrap_class(function: Callable[[], Any]) -> type[Actor]:
    """Return the class of the actors that call a function."""
    return AsyncBootstrap if inspect.iscoroutinefunction(function) else Bootstrap


def sets_up(class_name: str) -> bool:
    """Return whether actors of a class set processes up.

    Example:
        >>> sets_up("__main__.Trainer")
        False
    """
    return class_name in {f"{kind.__module__}.{kind.__qualname__}" for kind in (Bootstrap, AsyncBootstrap)}
