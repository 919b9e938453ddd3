"""What actors of a rank have around them."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.handles import Places
from monarch_nb.actor.engine.outside import Address, Execution, Runs
from monarch_nb.actor.hosts import spawn_procs_here, stop_procs_here
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.worker.mail.post import Post


class RankTag:
    """In whose name an actor calls others: that of the message that it executes.

    Attributes:
        runs: of that message.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def left(self) -> None:
        """Nothing: who called this endpoint knows what to expect."""

    def interrupt(self) -> None:
        """Nothing: what an interrupted endpoint has called is interrupted as well, in the name of the same run."""

    def aftermath(self) -> str:
        """Nothing: nobody waits in a rank."""
        return ""

    def was_interrupted(self) -> None:
        """Nothing: what this endpoint calls now does not begin there either."""


class RankOutside:
    """The surroundings of a rank's actors.

    Args:
        post: of this rank.
        executing, interrupt, python: see `Outside`.
    """

    questions = None

    def __init__(
        self,
        post: Post,
        executing: Callable[[Execution], AbstractContextManager[None]],
        interrupt: Callable[[Execution], None],
        python: str,
    ) -> None:
        self._post = post
        self.executing, self.interrupt, self.python = executing, interrupt, python
        self._nobody = RankTag({})
        self._programs: dict[str, Address] = {}  # by mesh, who has started its processes

    def home(self, node: str) -> Address:
        """Return where this rank takes messages: on all nodes the same."""
        return self._post.address

    def send(
        self,
        node: str,
        processes: Sequence[str],
        pieces: list[bytes | memoryview],
        *,
        call: int = 0,
        answers: int = 0,
    ) -> None:
        """Send a message; see `Post.send`."""
        if not processes:
            return
        try:
            self._post.send(node, processes, pieces, call=call, answers=answers)
        except MonarchNbError as error:
            engine.process().undelivered(call, processes, node, str(error), None)

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str, python: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        """Have processes started by the program that has spawned the actor: only that knows its reservations."""
        owner = engine.process().owner()
        program = owner.birth.root if owner is not None else None
        started = _asked(program, spawn_procs_here, list(hosts), dict(per_host), name, python)

        def note(done: concurrent.futures.Future[Sequence[Address]]) -> None:
            if program is not None and done.exception() is None:
                self._programs[done.result()[0].mesh_id] = program

        started.add_done_callback(note)
        return started

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        """Have the processes of a mesh ended, by the program."""
        return _asked(self._programs.pop(mesh_id, None), stop_procs_here, mesh_id)

    def tag(self, mesh_ids: Collection[str], title: str) -> RankTag:
        """Return in whose name is called now."""
        execution = engine.executing()
        return RankTag(execution.runs) if execution is not None and execution.runs else self._nobody

    def tell(self, text: str, runs: Runs) -> None:
        """Tell people, in the log of this rank and in what the running code prints."""
        sys.stderr.write(f"{text}\n")


def _asked(program: Address | None, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
    """Have a program call a function; return what comes of it."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if program is None:
        future.set_exception(UsageError("processes are started and stopped by actors, or by reservation.spawn_procs()"))
        return future
    outcome = engine.process().ask(Places([program]), function, *arguments).outcome

    def resolve() -> None:
        try:
            future.set_result(outcome.value()[0])
        except Exception as error:  # noqa: BLE001 (what the program raised, for who waits)
            future.set_exception(error)

    # Unpickling may take long: not on the thread that takes the mail.
    outcome.when_resolved(lambda: threading.Thread(target=resolve, daemon=True).start())
    return future
