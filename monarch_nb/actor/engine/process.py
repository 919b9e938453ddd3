"""A process that has actors, or calls some: its mailbox, its actors and its calls."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from monarch_nb.actor.engine.outside import (
    HERE,
    ActorState,
    Address,
    CallState,
    Execution,
    Outside,
    Runs,
    Tag,
)
from monarch_nb.proto.run_pb2 import Death

__all__ = [
    "HERE",
    "ActorState",
    "Address",
    "CallState",
    "Execution",
    "Outside",
    "Process",
    "Runs",
    "Tag",
    "executing",
    "install",
    "process",
]


class Process:
    """The engine of this process. All may be called from any thread.

    Args:
        outside: what it has around it.
        title: what actors that it calls call it, for people: "the notebook", "rank 3 of main".
    """

    def __init__(self, outside: Outside, title: str) -> None:
        self.outside, self.title = outside, title

    def receive(self, sender: Address, body: bytes | memoryview | mmap.mmap, *, call: int, answers: int) -> None:
        """Take a message that arrived: it only queues it. Never raises.

        Args:
            sender: where an answer goes.
            body: the pieces that `Outside.send` was given, joined.
            call, answers: as given there.
        """
        raise NotImplementedError

    def undelivered(self, call: int, processes: Sequence[str], node: str, reason: str, death: Death | None) -> None:
        """Take note that processes will not answer a call: they died, or never were.

        Args:
            reason: for people: "rank 3 died: killed by signal 9 (SIGKILL)".
        """
        raise NotImplementedError

    def node_lost(self, node: str, reason: str) -> None:
        """Take note that nothing that was sent to a node is answered any more."""
        raise NotImplementedError

    def actors(self) -> list[ActorState]:
        """Return the actors of this process."""
        raise NotImplementedError

    def executions(self) -> list[Execution]:
        """Return what actors of this process execute now."""
        raise NotImplementedError

    def calls(self) -> list[CallState]:
        """Return the calls of this process that are not answered yet."""
        raise NotImplementedError

    def instances(self) -> Mapping[str, object]:
        """Return the live Actor objects of this process by name, the newest of each name."""
        raise NotImplementedError

    def close(self, timeout_s: float) -> None:
        """Stop all actors of this process, each after what it executes, and wait for them until the time is up."""
        raise NotImplementedError


_installed: list[Process] = []


def install(process: Process) -> None:
    """Make `process` the engine of this process."""
    _installed[:] = [process]


def process() -> Process:
    """Return the engine of this process; that of a client is made when none is installed (`config.ACTOR_OUTSIDE`)."""
    raise NotImplementedError


def executing() -> Execution | None:
    """Return what the calling code is part of, if an actor executes it."""
    raise NotImplementedError
