"""The sessions with the nodes directly below, for one mesh and one client.

A branch is a node, its head, with those that are below that. While the head does not answer, they are adopted: split
among branches of their own, which follow every run from where it had come. When it is back, it gets them again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from operator import or_
from typing import Any

from monarch_nb.config import cadence, patience

import monarch_nb.rpc.channel  # isort: skip  # noqa: F401  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.branches.layout import Part, ranks_of_run, ranks_on, split
from monarch_nb.branches.passed import PassedRun
from monarch_nb.errors import MonarchNbError, TrustError
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.rpc.status import error_to_json, is_refusal, translate

_log = logging.getLogger(__name__)

FIRST_RETRY_S = cadence(0.05)
LONGEST_RETRY_S = cadence(1.0)
OPEN_PATIENCE_S = patience(5.0)
"""A head that has not answered by then is lost, as one whose session broke is at once. A busy machine is slow."""
COLLECT_DELAY_S = cadence(0.5)
"""Cells follow each other so closely that what was collected goes with the next one, on all nodes of a tree."""
MAX_FOLLOWED = 64
"""Runs that are done and may print more."""

RequestOf = Callable[[Ranges], pb.SessionRequest | None]


class Branches:
    """What is below one process.

    Args:
        mesh_id, ranks_per_node: of the mesh.
        fan_out: so many nodes are directly below one.
        parts: the branches to begin with.
        open_session: opens a session with a node.
        opening: what says who the client is.
        on_event: told everything that comes from below.
        room: waits until more of that can be taken.

    Attributes:
        ranks: all that are below.
        runs: those that were passed on, by id.
    """

    def __init__(
        self,
        mesh_id: str,
        ranks_per_node: int,
        fan_out: int,
        parts: Iterable[Part],
        open_session: Callable[[Peer], Any],
        opening: pb.Open,
        on_event: Callable[[pb.SessionEvent], None],
        room: Callable[[], Awaitable[object]],
    ) -> None:
        self.mesh_id, self.ranks_per_node, self.fan_out = mesh_id, ranks_per_node, fan_out
        self.open_session, self.opening, self.on_event, self.room = open_session, opening, on_event, room
        self.runs: dict[str, PassedRun] = {}
        self._branches: list[Branch] = []
        self.change(parts)

    def change(self, parts: Iterable[Part], without: Iterable[int] = ()) -> None:
        """Other nodes are below from now on. Runs go on from where they have come, but not on the nodes `without`,
        which have got the place of others and know nothing of them."""
        self.close()
        gone = Ranges.of(without)
        for run in list(self.runs.values()):
            if gone & run.nodes:
                run.leave(gone)
            if not run.ranks:
                del self.runs[run.run_id]
        self._branches = [Branch(self, head, rest) for head, rest in parts]
        nodes = functools.reduce(or_, (branch.nodes for branch in self._branches), Ranges())
        self.ranks = ranks_on(nodes, self.ranks_per_node)

    def close(self) -> None:
        """End all sessions."""
        for branch in self._branches:
            branch.close()

    # ---- down ----

    def submit(self, submit: pb.Submit, numbered_by: int = 0) -> None:
        """Pass a run on, to be followed; sent again after a break, executed once.

        Args:
            numbered_by: the node directly below that gives it its number, when it has none.
        """
        run_id = submit.run.run_id
        self._pass(
            PassedRun(
                submit.mesh_id,
                run_id,
                ranks_of_run(submit.all_ranks, self.ranks),
                self.ranks_per_node,
                submit=submit,
                numbered_by=numbered_by,
                cursors=dict(submit.cursors),
            )
        )

    def follow(self, follow: pb.Follow) -> None:
        """Follow a run that another client submitted, or from other cursors than before."""
        known = self.runs.get(follow.run_id)
        if known is None or known.submit is None:
            cursors = dict(follow.cursors)
            run = PassedRun(
                follow.mesh_id,
                follow.run_id,
                Ranges.of(follow.ranks) & self.ranks,
                self.ranks_per_node,
                from_shown=follow.from_shown,
                cursors=cursors,
            )
            self._pass(run)
            return
        known.restart()
        known.cursors.update(follow.cursors)
        self.send(known.replay)

    def _pass(self, run: PassedRun) -> None:
        done = [run_id for run_id, known in self.runs.items() if known.done]
        for run_id in done[:-MAX_FOLLOWED]:
            del self.runs[run_id]
        self.runs[run.run_id] = run
        self.send(run.request)

    def numbered(self, run: PassedRun, number: int) -> set[int]:
        """A run has its number. Who gave it has passed it on to those below it: the others get it now. Return which."""
        assert run.submit is not None
        run.submit.run.number = number
        others: set[int] = set()

        def request(nodes: Ranges) -> pb.SessionRequest | None:
            if nodes.first == run.numbered_by:
                return None
            others.update(nodes)
            return run.request(nodes)

        self.send(request)
        return others

    def is_directly_below(self, node: int) -> bool:
        """Whether a node has a session from here, or gets one when it answers."""
        return any(branch.leads_to(node) for branch in self._branches)

    def number_by(self, run: PassedRun, node: int, newest: int) -> None:
        """Another node directly below is to give a run its number, one above `newest`."""
        assert run.submit is not None
        run.numbered_by, run.submit.newest = node, newest
        self.send(run.request)

    def tell(self, request: pb.SessionRequest, only: Iterable[int] = ()) -> None:
        """Send a message that need not survive a break.

        Args:
            only: for these nodes; none: all.
        """
        chosen = Ranges.of(only)
        self.send(lambda nodes: None if chosen and not chosen & nodes else request)

    def look(self, look: pb.Look) -> None:
        """Ask where ranks are."""
        asked = Ranges.of(look.ranks)

        def request(nodes: Ranges) -> pb.SessionRequest | None:
            ranks = asked & ranks_on(nodes, self.ranks_per_node)
            part = pb.Look(mesh_id=look.mesh_id, look_id=look.look_id, ranks=ranks, of_run=look.of_run)
            return pb.SessionRequest(look=part) if ranks else None

        self.send(request)

    def shown(self, shown: pb.Shown) -> None:
        """The client has shown output of a run up to here."""
        cursors = dict(shown.cursors)
        if run := self.runs.get(shown.run_id):

            def request(nodes: Ranges) -> pb.SessionRequest | None:
                there = run.ranks_on(nodes)
                part = {rank: cursor for rank, cursor in cursors.items() if rank in there}
                return pb.SessionRequest(shown=pb.Shown(run_id=shown.run_id, cursors=part)) if part else None

            self.send(request)

    def end_calls(self, run_id: str) -> None:
        """A run of calls is over."""
        if run := self.runs.get(run_id):
            run.is_ended = True
        self.tell(pb.SessionRequest(end_calls=pb.EndCalls(run_id=run_id)))

    def collected(self, run_ids: Iterable[str]) -> None:
        """The client has the results of runs."""
        for run_id in run_ids:
            run = self.runs.get(run_id)
            for branch in self._branches:
                branch.collected(run_id, run)
            if run is not None and run.quiet and run.done:
                del self.runs[run_id]

    def send_collected(self) -> None:
        """Say now what was collected."""
        for branch in self._branches:
            branch.send_collected()

    def forget(self, run_id: str) -> None:
        """Follow a run no longer."""
        if self.runs.pop(run_id, None):
            self.tell(pb.SessionRequest(unfollow=pb.Unfollow(run_id=run_id)))

    def send(self, request_of: RequestOf) -> None:
        """Send to each branch what is for its nodes."""
        for branch in self._branches:
            branch.send(request_of)

    @property
    def is_sending(self) -> bool:
        """Whether something is on its way to a node that answers."""
        return any(branch.is_sending for branch in self._branches)

    # ---- up ----

    def take(self, event: pb.SessionEvent) -> None:
        """Something has come from below."""
        try:
            self._take(event)
        except Exception:  # noqa: BLE001 (else the session would end, and nobody would hear of any run again)
            _log.exception("a node said what can not be taken in")

    def _take(self, event: pb.SessionEvent) -> None:
        kind = event.WhichOneof("message")
        if kind in ("rank_died", "links") and getattr(event, kind).mesh_id != self.mesh_id:
            return
        if kind in ("queued", "output", "finished"):
            message = getattr(event, kind)
            if run := self.runs.get(message.run_id):
                getattr(run, f"on_{kind}")(message)
        self.on_event(event)

    def refused(self, nodes: Ranges, error: MonarchNbError) -> None:
        """A node directly below does not talk with who asks: those who wait for something from there are told why."""
        for run in list(self.runs.values()):
            asks_there = run.is_new and run.numbered_by in nodes
            if asks_there or run.left & ranks_on(nodes, self.ranks_per_node):
                self.on_event(pb.SessionEvent(refused=pb.Refused(run_id=run.run_id, error_json=error_to_json(error))))

    def link(self, head: int, *, up: bool) -> None:
        """A node directly below answers, or does not."""
        links = pb.Links(mesh_id=self.mesh_id, up=[head]) if up else pb.Links(mesh_id=self.mesh_id, down=[head])
        self.on_event(pb.SessionEvent(links=links))


class Branch:
    """The session with one node, for those below it as well.

    Attributes:
        nodes: it and these. It is the first of them.
    """

    def __init__(self, tree: Branches, head: pb.BranchNode, rest: list[pb.BranchNode]) -> None:
        self._tree, self._head, self._rest = tree, head, rest
        self.nodes = Ranges.of(node.node_rank for node in (head, *rest))
        self._outgoing: asyncio.Queue[pb.SessionRequest] | None = None  # None while it does not answer
        self._adopted: list[Branch] = []
        self._is_lost = False
        self._collected: list[str] = []
        self._collect_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.Task[None] | None = None
        self._task = self._loop.create_task(self._keep_session())

    def close(self) -> None:
        """End it: what it has not sent, nobody waits for."""
        self._task.cancel()
        self._outgoing = None
        if self._collect_timer is not None:
            self._collect_timer.cancel()
        for branch in self._adopted:
            branch.close()

    def send(self, request_of: RequestOf) -> None:
        """Send what is for its nodes. One that does not answer gets what it needs when it does."""
        if self._outgoing is None:
            for branch in self._adopted:
                branch.send(request_of)
        elif (request := request_of(self.nodes)) is not None:
            self._outgoing.put_nowait(request)

    def leads_to(self, node: int) -> bool:
        """Whether a node is its head, or that of one that is adopted."""
        return self._head.node_rank == node or any(branch.leads_to(node) for branch in self._adopted)

    @property
    def is_sending(self) -> bool:
        if self._outgoing is None:
            return any(branch.is_sending for branch in self._adopted)
        return not self._outgoing.empty()

    def collected(self, run_id: str, run: PassedRun | None) -> None:
        """The client has the results of a run: said with the next message, or soon. None: nobody knows where it was."""
        if run is not None and not run.nodes & self.nodes:
            return
        self._collected.append(run_id)
        for branch in self._adopted:
            branch.collected(run_id, run)
        if self._collect_timer is None:
            self._collect_timer = self._loop.call_later(COLLECT_DELAY_S, self.send_collected)

    def send_collected(self) -> None:
        """Say now what was collected."""
        self._collect_timer = None
        if self._collected and self._outgoing is not None:  # else when it answers again
            self._outgoing.put_nowait(pb.SessionRequest())

    async def _keep_session(self) -> None:
        retry_s = FIRST_RETRY_S
        was_refused = False
        while True:
            patience = self._loop.call_later(OPEN_PATIENCE_S, self._lose)
            try:
                stream = self._tree.open_session(self._head.peer)
                try:
                    await stream.write(pb.SessionRequest(open=self._tree.opening))
                    while (batch := await stream.read()) is not grpc.aio.EOF:
                        for event in batch.events:
                            if event.HasField("opened"):
                                patience.cancel()
                                retry_s, was_refused = FIRST_RETRY_S, False
                                self._open(stream)
                            else:
                                self._tree.take(event)
                        await self._tree.room()
                finally:
                    stream.cancel()
                    if self._writer is not None:
                        self._writer.cancel()
            except (grpc.aio.AioRpcError, TrustError) as error:
                refusal = error if isinstance(error, TrustError) else translate(error, self._head.peer.node_id)
                if is_refusal(refusal) and was_refused:
                    self._tree.refused(self.nodes, refusal)
                was_refused = is_refusal(refusal)  # once may be for a certificate that has been replaced meanwhile
            except (asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            finally:
                patience.cancel()
            self._lose()
            await asyncio.sleep(retry_s)  # nothing tells when an allocator comes back
            retry_s = min(LONGEST_RETRY_S, 2 * retry_s)

    def _open(self, stream: Any) -> None:
        """It answers: from here on it looks after those below it."""
        for branch in self._adopted:
            branch.close()
        self._adopted, self._is_lost = [], False
        outgoing: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self._outgoing = outgoing
        branches = pb.Branches(
            mesh_id=self._tree.mesh_id,
            ranks_per_node=self._tree.ranks_per_node,
            node_rank=self._head.node_rank,
            nodes=self._rest,
            fan_out=self._tree.fan_out,
        )
        outgoing.put_nowait(pb.SessionRequest(branches=branches))
        for run in self._tree.runs.values():
            self.send(run.request)
        self._tree.link(self._head.node_rank, up=True)
        self._writer = self._loop.create_task(self._write(stream, outgoing))

    async def _write(self, stream: Any, outgoing: asyncio.Queue[pb.SessionRequest]) -> None:
        try:
            while True:
                request = await outgoing.get()
                if self._collected:
                    collected, self._collected = self._collected, []
                    request = _with(request, collected)
                await stream.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            stream.cancel()

    def _lose(self) -> None:
        """It does not answer: those below it are adopted."""
        self._outgoing = None
        if self._is_lost:
            return
        self._is_lost = True
        self._adopted = [Branch(self._tree, head, rest) for head, rest in split(self._rest, self._tree.fan_out)]
        self._tree.link(self._head.node_rank, up=False)


def _with(request: pb.SessionRequest, collected: list[str]) -> pb.SessionRequest:
    """Return a message, which others may send as well, with what was collected."""
    added = pb.SessionRequest()
    added.CopyFrom(request)
    added.collected.extend(collected)
    return added
