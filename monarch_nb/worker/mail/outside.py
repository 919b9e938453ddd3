"""What actors of a rank have around them."""

import concurrent.futures
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from monarch_nb.actor.engine import process as engine
from monarch_nb.actor.engine.outside import Address, Execution, Runs
from monarch_nb.errors import UsageError
from monarch_nb.worker.mail.post import Post

_ELSEWHERE = "an actor of a rank can not start or stop processes: reservation.spawn_procs() in the notebook does"


@dataclass(frozen=True)
class RankTag:
    """In whose name code of a rank calls actors: that of the message that it executes, if any."""

    runs: Runs

    def interrupt(self) -> None:
        """Nothing: an interrupt of those runs reaches every rank by itself."""


class RankOutside:
    """The surroundings of a rank's actors.

    Args:
        post: of this rank.
        executing: see `Outside.executing`.
    """

    def __init__(self, post: Post, executing: Callable[[Execution], AbstractContextManager[None]]) -> None:
        self._post = post
        self.executing = executing

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
        self._post.send(node, processes, pieces, call=call, answers=answers)

    def spawn_procs(
        self, hosts: Sequence[str], per_host: Mapping[str, int], name: str
    ) -> concurrent.futures.Future[Sequence[Address]]:
        """Refuse: only clients hold reservations."""
        refused: concurrent.futures.Future[Sequence[Address]] = concurrent.futures.Future()
        refused.set_exception(UsageError(_ELSEWHERE))
        return refused

    def stop_procs(self, mesh_id: str) -> concurrent.futures.Future[None]:
        """Refuse as well."""
        refused: concurrent.futures.Future[None] = concurrent.futures.Future()
        refused.set_exception(UsageError(_ELSEWHERE))
        return refused

    def tag(self, mesh_ids: Collection[str], title: str) -> RankTag:
        """Return in whose name the calling code calls actors."""
        execution = engine.executing()
        runs = execution.runs if execution is not None else {}
        return RankTag({mesh_id: runs[mesh_id] for mesh_id in mesh_ids if mesh_id in runs})

    def tell(self, text: str) -> None:
        """Print it, where the calling code prints."""
        sys.stderr.write(f"{text}\n")
