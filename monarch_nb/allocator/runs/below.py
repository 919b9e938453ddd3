"""The nodes of a mesh below this one, for one client: what is this node's own of a message, and how long one waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monarch_nb.branches.branches import Branches
from monarch_nb.branches.folding import ranks_finished
from monarch_nb.branches.layout import earlier_run, ranks_of_run, ranks_on, split
from monarch_nb.config import cadence, patience
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer

OUTPUT_S = cadence(0.05)
"""What ranks print, or fail with, waits so long for what others do."""
GATHER_S = cadence(0.25)
LONGEST_GATHER_S = cadence(0.5)
"""What is not yet all of a run waits for more: as long again as the run has lasted, within these."""
SHORT_RUN_S = cadence(1.0)
"""What ends within this time is told as a whole: nobody misses a part of it sooner."""
GATHER_PER_NODE_S = cadence(0.002)
LONGEST_GATHER_OF_MANY_S = cadence(2.0)
"""Of many nodes it waits longer, in proportion: a message of a few results costs those above as much as one of all, and
so what those below have gathered has come."""
LOOK_S = patience(1.5)
"""So long it waits for all to say where they are."""


@dataclass
class _Part:
    """Ranks of a run, here and below, that have not finished, and since when it is followed."""

    left: Ranges
    began_s: float


class Below:
    """What a client's session is for, beside this node.

    Args:
        message: what the client, or the node above, has said.
        world_size: of the mesh.
        open_session, opening, on_event, room: as of Branches.

    Attributes:
        ranks: this node's, and all below.
        is_alone: no other node has ranks of the mesh: nothing waits for what others say.
    """

    def __init__(
        self,
        message: pb.Branches,
        world_size: int,
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
            message.mesh_id, self._ranks_per_node, max(1, message.fan_out), parts, open_session, opening, on_event, room
        )
        self._own_ranks = ranks_on(Ranges.of([self.node]), self._ranks_per_node)
        self.ranks = self._own_ranks | self._branches.ranks
        self.is_alone = world_size == self._ranks_per_node
        self._is_lowest = not message.nodes
        self._parts: dict[str, _Part] = {}
        self._looks: dict[str, Ranges] = {}
        self._least_gather_s = min(LONGEST_GATHER_OF_MANY_S, GATHER_PER_NODE_S * len(message.nodes))

    def close(self) -> None:
        """The session has ended."""
        self._branches.close()

    # ---- down ----

    def submit(self, submit: pb.Submit) -> pb.Submit:
        """Return what is this node's own of a run; it is passed on, if it has its number."""
        own = pb.Submit()
        own.CopyFrom(submit)
        for field in ("ranks", "cursors", "earlier", "outputs"):
            own.ClearField(field)
        ranks = ranks_of_run(submit.all_ranks, self.ranks)
        own.ranks.extend(ranks & self._own_ranks)
        for rank in own.ranks:
            if rank in submit.cursors:
                own.cursors[rank].CopyFrom(submit.cursors[rank])
        own.after = earlier_run(submit.earlier, self.node)
        if self.node in submit.outputs:
            own.run.output = submit.outputs[self.node]
        self._expect(submit.run.run_id, ranks)
        if submit.run.number:
            self._pass_on(submit)
        return own

    def numbered(self, submit: pb.Submit, queued: pb.Queued) -> None:
        """This node has given a run its number: it is passed on."""
        submit.run.number = queued.number
        submit.earlier.CopyFrom(queued.earlier)
        self._pass_on(submit)

    def _pass_on(self, submit: pb.Submit) -> None:
        submit.give_number = False
        if ranks_of_run(submit.all_ranks, self._branches.ranks):
            self._branches.submit(submit)

    def follow(self, follow: pb.Follow) -> bool:
        """Pass on that a run is followed; return whether this node has a part of it."""
        ranks = Ranges.of(follow.ranks) & self.ranks
        self._expect(follow.run_id, ranks)
        if ranks & self._branches.ranks:
            self._branches.follow(follow)
        return bool(ranks & self._own_ranks)

    def cancel(self, cancel: pb.Cancel) -> bool:
        """Pass on that a run is cancelled; return whether it is here as well."""
        self._branches.tell(pb.SessionRequest(cancel=cancel), cancel.nodes)
        return not cancel.nodes or self.node in cancel.nodes

    def end_calls(self, run_id: str) -> None:
        """Pass on that a run of calls is over."""
        self._branches.end_calls(run_id)

    def look(self, look: pb.Look) -> list[int]:
        """Pass on that somebody asks where ranks are; return which of them are this node's own."""
        self._looks[look.look_id] = ranks = Ranges.of(look.ranks) & self.ranks
        asyncio.get_running_loop().call_later(LOOK_S, self._looks.pop, look.look_id, None)
        if ranks & self._branches.ranks:
            self._branches.look(look)
        return list(ranks & self._own_ranks)

    def shown(self, shown: pb.Shown) -> pb.Shown:
        """Pass on how far output was shown; return what is this node's own of it."""
        self._branches.shown(shown)
        own = {rank: cursor for rank, cursor in shown.cursors.items() if rank in self._own_ranks}
        return pb.Shown(run_id=shown.run_id, cursors=own)

    def unfollow(self, run_id: str) -> None:
        """Pass on that a run is followed no longer."""
        self._parts.pop(run_id, None)
        self._branches.forget(run_id)

    def collected(self, run_ids: Iterable[str], *, at_once: bool) -> None:
        """Pass on that the client has results.

        Args:
            at_once: no message that comes now goes the same way.
        """
        self._branches.collected(run_ids)
        if at_once:
            self._branches.send_collected()

    # ---- up ----

    def _expect(self, run_id: str, ranks: Ranges) -> None:
        if run_id not in self._parts and not self.is_alone:
            self._parts[run_id] = _Part(ranks, asyncio.get_running_loop().time())

    def delay_s(self, event: pb.SessionEvent, *, urgent: bool = False) -> float:
        """Return how long an event may wait for others; one that says of no node is this node's, and says so then.

        Args:
            urgent: the client waits for it.
        """
        kind = event.WhichOneof("message")
        if kind in ("queued", "started"):
            told = event.queued if kind == "queued" else event.started
            if not told.nodes.bounds:
                told.nodes.bounds.extend((self.node, self.node + 1))
        if urgent and (self.is_alone or kind in ("queued", "started")):
            return 0.0
        if self.is_alone or event.queued.HasField("earlier"):  # it has its number, by which people know it
            return OUTPUT_S
        if kind in ("queued", "started"):
            return self._patience_s(told.run_id)
        if kind == "finished":
            return self._finished(event.finished)
        if kind == "seen":
            return LOOK_S if self._seen(event.seen) else 0.0
        if kind == "links" and event.links.down:  # who is about to submit a run wants to know it
            return 0.0
        gathers = kind == "links" or (kind == "output" and not self._is_lowest)
        return OUTPUT_S if gathers else 0.0

    def _seen(self, seen: pb.Seen) -> Ranges:
        """Some have said where they are; return those that have not."""
        if seen.look_id not in self._looks:
            return Ranges()
        self._looks[seen.look_id] -= Ranges.of(rank for place in seen.places for rank in place.ranks)
        return self._looks[seen.look_id]

    def _finished(self, finished: pb.Finished) -> float:
        part = self._parts.get(finished.run_id)
        if part is None:
            return 0.0
        part.left -= ranks_finished(finished)
        if not part.left:
            del self._parts[finished.run_id]
            return 0.0
        if any(each.outcome != run_pb2.OUTCOME_OK for each in _said(finished)):
            return OUTPUT_S  # the others may have to be interrupted for it
        return self._patience_s(finished.run_id)

    def _patience_s(self, run_id: str) -> float:
        part = self._parts.get(run_id)
        lasts_s = asyncio.get_running_loop().time() - part.began_s if part is not None else 0.0
        return max(self._least_gather_s, SHORT_RUN_S - lasts_s, min(LONGEST_GATHER_S, max(GATHER_S, lasts_s)))


def _said(finished: pb.Finished) -> Iterator[run_pb2.RankResult]:
    yield from finished.results
    yield from (equal.result for equal in finished.equal)
