"""The nodes of a mesh below this one, for one client: what is this node's own of a message, and how long one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monarch_nb.branches.branches import Branches
from monarch_nb.branches.layout import ranks_by_node, split
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer

OUTPUT_S = 0.05
"""What ranks print, or fail with, waits so long for what others do."""
GATHER_S = 0.25
LONGEST_GATHER_S = 0.5
"""What is not yet all of a run waits for more: as long again as the run has lasted, within these."""


@dataclass
class _Part:
    """Ranks of a run, here and below, that have not finished, and since when it is followed."""

    left: set[int]
    began_s: float


class Below:
    """What a client's session is for, beside this node.

    Args:
        message: what the client, or the node above, has said.
        open_session, opening, on_event, room: as of Branches.
    """

    def __init__(
        self,
        message: pb.Branches,
        open_session: Callable[[Peer], Any],
        opening: pb.Open,
        on_event: Callable[[pb.SessionEvent], None],
        room: Callable[[], Awaitable[object]],
    ) -> None:
        self.mesh_id, self.node, self._ranks_per_node = (
            message.mesh_id,
            message.node_rank,
            max(1, message.ranks_per_node),
        )
        parts = split(message.nodes, max(1, message.fan_out))
        self._branches = Branches(
            message.mesh_id,
            self._ranks_per_node,
            max(1, message.fan_out),
            parts,
            open_session,
            opening,
            on_event,
            room,
        )
        self._parts: dict[str, _Part] = {}

    def close(self) -> None:
        """The session has ended."""
        self._branches.close()

    # ---- down ----

    def submit(self, submit: pb.Submit) -> pb.Submit:
        """Pass a run on that has its number; return what is this node's own."""
        own = pb.Submit()
        own.CopyFrom(submit)
        for field in ("ranks", "cursors", "previous", "outputs"):
            own.ClearField(field)
        by_node = ranks_by_node(submit.ranks, self._ranks_per_node)
        own.ranks.extend(by_node.get(self.node, ()))
        for rank in own.ranks:
            if rank in submit.cursors:
                own.cursors[rank].CopyFrom(submit.cursors[rank])
        own.after = submit.previous.get(self.node, 0)
        if self.node in submit.outputs:
            own.run.output = submit.outputs[self.node]
        self._expect(submit.run.run_id, submit.ranks)
        if submit.run.number:
            submit.give_number = False
            submit.ranks[:] = self._others(submit.ranks)
            if submit.ranks:
                self._branches.submit(submit)
        return own

    def follow(self, follow: pb.Follow) -> bool:
        """Pass on that a run is followed; return whether this node has a part of it."""
        self._expect(follow.run_id, follow.ranks)
        is_own = bool(self._own(follow.ranks))
        follow.ranks[:] = self._others(follow.ranks)
        if follow.ranks:
            self._branches.follow(follow)
        return is_own

    def cancel(self, cancel: pb.Cancel) -> bool:
        """Pass on that a run is cancelled; return whether it is here as well."""
        self._branches.tell(pb.SessionRequest(cancel=cancel), cancel.nodes)
        return not cancel.nodes or self.node in cancel.nodes

    def tell(self, **message: Any) -> None:
        """Pass something on as it is."""
        self._branches.tell(pb.SessionRequest(**message))

    def shown(self, shown: pb.Shown) -> pb.Shown:
        """Pass on how far output was shown; return what is this node's own of it."""
        self._branches.shown(shown)
        own = {rank: shown.cursors[rank] for rank in self._own(shown.cursors)}
        return pb.Shown(run_id=shown.run_id, cursors=own)

    def unfollow(self, run_id: str) -> None:
        """Pass on that a run is followed no longer."""
        self._parts.pop(run_id, None)
        self._branches.forget(run_id)

    def collected(self, run_ids: Iterable[str]) -> None:
        """Pass on that the client has results."""
        self._branches.collected(run_ids)

    def _own(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank // self._ranks_per_node == self.node]

    def _others(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank // self._ranks_per_node != self.node]

    # ---- up ----

    def _expect(self, run_id: str, ranks: Iterable[int]) -> None:
        if run_id not in self._parts:
            self._parts[run_id] = _Part(set(ranks), asyncio.get_running_loop().time())

    def delay_s(self, event: pb.SessionEvent, *, urgent: bool = False) -> float:
        """Return how long an event may wait for others; one that says of no node is this node's, and says so then.

        Args:
            urgent: the client waits for it.
        """
        kind = event.WhichOneof("message")
        if kind in ("queued", "started"):
            told = event.queued if kind == "queued" else event.started
            if not told.nodes:
                told.nodes.append(self.node)
            return 0.0 if urgent else self._patience_s(told.run_id)
        if kind == "finished":
            return self._finished(event.finished)
        if kind == "links" and event.links.down:  # who is about to submit a run wants to know it
            return 0.0
        return OUTPUT_S if kind in ("output", "links") else 0.0

    def _finished(self, finished: pb.Finished) -> float:
        part = self._parts.get(finished.run_id)
        if part is None:
            return 0.0
        part.left.difference_update(result.rank for result in finished.results)
        for equal in finished.equal:
            part.left.difference_update(equal.ranks)
        if not part.left:
            del self._parts[finished.run_id]
            return 0.0
        if any(each.outcome != run_pb2.OUTCOME_OK for each in _said(finished)):
            return OUTPUT_S  # the others may have to be interrupted for it
        return self._patience_s(finished.run_id)

    def _patience_s(self, run_id: str) -> float:
        part = self._parts.get(run_id)
        lasts_s = asyncio.get_running_loop().time() - part.began_s if part is not None else 0.0
        return min(LONGEST_GATHER_S, max(GATHER_S, lasts_s))


def _said(finished: pb.Finished) -> Iterator[run_pb2.RankResult]:
    yield from finished.results
    yield from (equal.result for equal in finished.equal)
