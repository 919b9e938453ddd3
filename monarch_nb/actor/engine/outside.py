"""What the engine and its surroundings (the worker, the client) say to each other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Address(NamedTuple):
    """Where a process takes messages.

    Attributes:
        node: the gRPC address of the allocator that delivers there.
        process: "MESH_ID/RANK", or "client/ID".
    """

    node: str
    process: str

    @property
    def mesh_id(self) -> str:
        """The mesh of a rank; "client" for clients."""
        return self.process.rpartition("/")[0]


HERE = Address("", "")
"""This process, wherever it is: what is addressed so is delivered without an outside."""

Runs = Mapping[str, tuple[str, int, int]]
"""For each mesh's id the id and the number of the run in whose name its actors are called, and what `breakpoint()` does
in it (OnBreakpoint of run.proto)."""


class Tag:
    """In whose name actors are called. This one is that of an actor's own calls: of the message that it executes. Who
    called it knows what to expect, and what it has called is interrupted as well, in the name of the same run.

    Attributes:
        runs: what messages carry; empty when nobody is to see what the called actors print.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def left(self) -> None:
        """Something was called in this name that nobody waits for, as by `broadcast`."""

    def interrupt(self) -> None:
        """Interrupt what was called in this name: who waits for a call was interrupted (Ctrl-C). Called in the thread
        that waits, which then waits for the answers of the ranks and raises KeyboardInterrupt; interrupted again, it
        stops to wait. Does not block."""

    def aftermath(self) -> str:
        """Return what interrupts have done besides, for people: "killed and restarted rank 3: …". It waits for what is
        still being done; empty when that is nothing."""
        return ""

    def was_interrupted(self) -> None:
        """A rank was interrupted, by whomever, in what was called in this name: nothing more begins there in it."""


class Questions(Protocol):
    """What ranks ask of this process, which whoever waits in it answers: some have stopped at breakpoints."""

    def attend(self, wake: Callable[[], object]) -> None:
        """Have `wake` called, from any thread, when there is something to `answer`; now if there is already."""

    def leave(self, wake: Callable[[], object]) -> None:
        """Do not call `wake` any more."""

    def answer(self) -> None:
        """Let people answer, in the thread that waits; nothing when another one has done it."""


class Outside(Protocol):
    """What a process has around it.

    Attributes:
        questions: what people who wait in this process are asked; None where there are no people.
        python: of the processes that this one starts on its host, as it was started with itself; "" for that of the
            reservation.
    """

    python: str

    @property
    def questions(self) -> Questions | None: ...

    def home(self, node: str) -> Address:
        """Return where a receiver on `node` answers this process: a rank's is always the same, a client is itself at
        that node. "" stands for any node."""

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send one message to processes of one node, from any thread: it never blocks long and never raises for what
        may happen on the way (which `Process.undelivered` and `Process.node_lost` tell). Messages to one receiver stay
        in order. The pieces belong together; they are used up, or copied, before it returns (large ones go to a blob).

        Args:
            call: the number of a call that each receiver is to answer; 0 when none is. Some are answered only when an
                actor ends, after days perhaps.
            answers: the number of the receiver's call that this answers.
        """

    def executing(self, execution: Execution) -> AbstractContextManager[None]:
        """Entered on the actor's thread around every endpoint and `__init__` (for async ones in the context of the task
        that executes it, which may be suspended inside): where its output goes, and who may interrupt it. It is
        entered for every message, so it has to be quick."""

    def interrupt(self, execution: Execution) -> None:
        """Interrupt what an actor executes, from any thread, because the actor is to end: as Ctrl-C would. One that was
        not entered in `executing` yet raises there. Does not block."""

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        """Start rank processes, on each of the nodes as many as the sizes of `per_host` make; "" is the node on which
        this process is (a client: that of its reservation, or of its own local pool).

        Args:
            python: their interpreter, on the nodes; "" for that of the reservation.

        Returns:
            their addresses, in the order of the hosts and then of the ranks on a host.
        """

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        """End the rank processes of a mesh; fine when they have ended."""

    def tag(self, mesh_ids: Collection[str], title: str) -> Tag:
        """Return in whose name the calling code now calls actors of these meshes; in a rank that is the name of the
        message that is executed (`engine.process.executing()`), if any.

        Args:
            title: the call, for people: "trainers.step".
        """

    def tell(self, text: str, runs: Runs) -> None:
        """Tell people what no call of theirs would tell them: an actor that nobody supervises has failed. From any
        thread.

        Args:
            text: may have several lines.
            runs: in whose name what failed was called: it is told there, where that is still possible.
        """


@dataclass(slots=True)
class Execution:
    """An endpoint (or `__init__`) that is executed now.

    Attributes:
        actor, class_name, uid: whose.
        endpoint: its name; "__init__" while the actor is made.
        rank: of this actor in the mesh that was addressed.
        caller: for people: "the notebook", "trainers[3]".
        runs: in whose name it is called (see `Tag`).
        started_s: of the monotonic clock.
        thread: the ident of the actor's thread.
        loop, task: that execute it when it is async.
        is_concurrent: whether the actor takes other messages meanwhile.
        interrupted: whether it was interrupted: what it raises is then no fault of the actor's.
    """

    actor: str
    class_name: str
    uid: str
    endpoint: str
    rank: int
    caller: str
    runs: Runs
    started_s: float = field(default_factory=time.monotonic)
    thread: int = field(default_factory=threading.get_ident)
    loop: asyncio.AbstractEventLoop | None = None
    task: asyncio.Task[object] | None = None
    is_concurrent: bool = False
    interrupted: bool = False
    is_over: bool = False

    def interrupt(self) -> None:
        """Interrupt it, from any thread: an async one is cancelled. For a sync one only `interrupted` is set: who calls
        this makes its thread raise KeyboardInterrupt, inside of `Outside.executing`."""
        self.interrupted = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None and not self.is_over:
            self.task.cancel()


@dataclass(frozen=True)
class ActorState:
    """An actor of this process, for people who ask.

    Attributes:
        waiting: how many messages wait.
        called: how many messages it has executed.
        running: what it executes now; several when endpoints are concurrent.
        failure: why it does not answer any more; empty while it does.
        is_ending: whether it was stopped or replaced and has not ended yet.
        pid, memory_bytes: of its process, where that is one of Monarch's own engine and not this one.
        line: where it is in what it executes, where that is known by others only.
    """

    name: str
    class_name: str
    uid: str
    rank: int
    waiting: int
    called: int
    running: Sequence[Execution]
    failure: str
    is_ending: bool
    pid: int = 0
    memory_bytes: int = 0
    line: str = ""


@dataclass(frozen=True)
class CallState:
    """A call of this process that is not answered by all yet.

    Attributes:
        number: its number.
        title: "trainers.step".
        runs: in whose name it was called.
        started_s: of the monotonic clock.
        unanswered: the ranks, as the addressed mesh counts them, and where they are.
    """

    number: int
    title: str
    runs: Runs
    started_s: float
    unanswered: Mapping[int, Address]
