"""The runs of a mesh: the client talks to its first node, which passes them on to the others (branches/)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from monarch_nb import config
from monarch_nb.branches.branches import Branches
from monarch_nb.branches.folding import ranges_of
from monarch_nb.branches.passed import PassedRun
from monarch_nb.client.connections.connection import GAP_S, Connection
from monarch_nb.client.connections.listeners import ReservationListener, RunListener
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MeshNotFound, MonarchNbError, VersionMismatch
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto.files_pb2 import Peer
from monarch_nb.rpc.status import error_from_json

_log = logging.getLogger(__name__)

FEW_NODES = 16
"""On at most so many nodes all others are directly below the first: no hop more than one."""
FAN_OUT = 2
"""Of more nodes, so many are directly below one. Each costs it 0.24 to 0.5 ms a cell. With 4, a cell on 64 nodes would
be a third faster where nodes have their own cores, but the first node would spend 1 ms more, and its goal is 2 ms."""
SHOWN_INTERVAL_S = cadence(0.5)
SHOWN_PER_RANK_S = cadence(0.002)
"""How far each rank was shown is said less often of many ranks: it costs as much as what they print."""
LINK_PATIENCE_S = patience(0.5)
"""A node that is not there after this time will not be there by itself soon: whoever waits for it is told."""
LOOK_PATIENCE_S = patience(3.0)
"""So long nodes have to say where ranks are: each has a second to ask them."""


@dataclass
class _Look:
    """Ranks are asked where they are."""

    left: set[int]
    where: dict[int, run_pb2.Where] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class MeshSession:
    """The session of this process with a mesh. Make and use it on the background loop only.

    Args:
        connections: to its nodes, by node rank.
        on_death: told that a rank has died.
    """

    alive: ClassVar[weakref.WeakSet[MeshSession]] = weakref.WeakSet()
    """Those of this process."""

    def __init__(
        self,
        mesh_id: str,
        connections: Mapping[int, Connection],
        ranks_per_node: int,
        on_death: Callable[[pb.RankDied], None] = lambda _: None,
    ) -> None:
        self._mesh_id, self._connections, self._on_death = mesh_id, dict(connections), on_death
        self._listeners: dict[str, RunListener] = {}
        self._cancelled: dict[str, set[int]] = {}
        self._shown: dict[str, asyncio.TimerHandle] = {}
        self._there = Ranges()
        self._away: set[int] = set()
        self._news = asyncio.Event()
        self._looks: dict[str, _Look] = {}
        opening = pb.Open(protocol=config.PROTOCOL, client_id=uuid.uuid4().hex)
        self._branches = Branches(
            mesh_id, ranks_per_node, FAN_OUT, [], self._open_session, opening, self._take_in, _room
        )
        self._begin()
        self.alive.add(self)

    def _open_session(self, peer: Peer) -> Any:
        connection = next(one for one in self._connections.values() if one.node_address == peer.address)
        return connection.open_session()

    def _begin(self, without: Iterable[int] = ()) -> None:
        nodes = [
            pb.BranchNode(node_rank=node, peer=Peer(node_id=connection.name, address=connection.node_address))
            for node, connection in sorted(self._connections.items())
        ]
        self._branches.fan_out = FAN_OUT if len(nodes) > FEW_NODES else max(1, len(nodes) - 1)
        self._branches.change([(nodes[0], nodes[1:])] if nodes else [], without)

    def be_over(self, connections: Mapping[int, Connection]) -> None:
        """Be told on which nodes the mesh is: runs go on from where they have come, but for the part of a node whose
        place another one has got."""
        if connections == self._connections:
            return
        before, self._connections = self._connections, dict(connections)
        replaced = {node for node, old in before.items() if self._connections.get(node) is not old}
        self._there, self._away = Ranges(), self._away - replaced
        self._begin(replaced)

    # ---- nodes ----

    @property
    def there(self) -> Ranges:
        """The nodes that answer."""
        return self._there

    async def wait_up(self, nodes: set[int]) -> set[int]:
        """Wait a little for nodes that do not answer: one that has gone away has the time to start an allocator, and
        the session may be opening. Return those that still do not."""
        known = Ranges.of(nodes & self._connections.keys())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GAP_S):
                while not known <= self._there:
                    self._news.clear()
                    await self._news.wait()
        return {node for node in nodes if node not in self._there}

    # ---- runs ----

    def submit(self, listener: RunListener, submit: pb.Submit, numbered_by: int) -> None:
        """Submit a run on all ranks that it names, and follow it: on the node that gives it its number, which passes it
        on, then on those that are not below that."""
        self._listen(listener)
        self._branches.submit(submit, numbered_by)

    def can_ask(self, node: int) -> bool:
        """Whether a node can be asked for a number: one that is above it may be back."""
        return self._branches.is_directly_below(node)

    def number_by(self, run_id: str, node: int, newest: int) -> None:
        """Another node is to give a run its number, one above `newest`: nobody has it yet."""
        if run := self._branches.runs.get(run_id):
            self._branches.number_by(run, node, newest)

    def numbered(self, run_id: str, number: int) -> None:
        """A run has this number, as nodes know it that could not say so."""
        run = self._branches.runs.get(run_id)
        if run is not None and run.is_new:
            others = self._branches.numbered(run, number)
            if nodes := self._cancelled.get(run_id, set()) & others:
                self._branches.tell(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id, nodes=nodes)), nodes)

    def follow(self, listener: RunListener, mesh_id: str, *, from_shown: bool) -> None:
        """Follow a run that another client submitted."""
        self._listen(listener)
        follow = pb.Follow(mesh_id=mesh_id, run_id=listener.run_id, ranks=listener.ranks, from_shown=from_shown)
        self._branches.follow(follow)

    def replay(self, listener: RunListener, mesh_id: str) -> None:
        """Have the output of a run sent from its beginning, which the listener did not want so far."""
        self.follow(listener, mesh_id, from_shown=False)

    def _listen(self, listener: RunListener) -> None:
        known = self._branches.runs
        self._listeners = {run_id: one for run_id, one in self._listeners.items() if run_id in known}
        self._listeners[listener.run_id] = listener
        if self._away:  # it may be opening just now
            asyncio.get_running_loop().call_later(LINK_PATIENCE_S, self._tell_who_is_away, listener)

    def _tell_who_is_away(self, listener: RunListener) -> None:
        if run := self._branches.runs.get(listener.run_id):
            for node in sorted(self._away):
                if _concerns(run, node):
                    listener.on_link(self._connections[node], up=False)

    async def where(self, ranks: Collection[int], run_id: str) -> tuple[dict[int, run_pb2.Where], set[int]]:
        """Ask where ranks are (in a script, or for calls, by the run).

        Returns:
            Where those are that answered, and those of which nobody has said anything.
        """
        look = _Look(set(ranks))
        look_id = uuid.uuid4().hex
        self._looks[look_id] = look
        self._branches.look(pb.Look(mesh_id=self._mesh_id, look_id=look_id, ranks=ranks, of_run=run_id))
        try:
            async with asyncio.timeout(LOOK_PATIENCE_S):
                await look.done.wait()
        except TimeoutError:
            pass
        finally:
            del self._looks[look_id]
        return look.where, look.left

    def cancel(self, run_id: str, whence: str = "") -> None:
        """Drop a run where it has not begun, and interrupt it where it runs: now, or when a node is there again.
        `whence` as Cancel has it."""
        if run := self._branches.runs.get(run_id):
            self._cancelled[run_id] = set(run.nodes)
        self._branches.tell(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id, whence=whence)))

    def withdraw_cancel(self, run_id: str, nodes: Collection[int]) -> None:
        """Do not cancel a run when one of these nodes is there again."""
        if left := self._cancelled.get(run_id):
            left.difference_update(nodes)

    def _cancel_again(self, nodes: set[int]) -> None:
        """Nodes may not have learnt what is cancelled: the way to them was another."""
        for run_id, left in list(self._cancelled.items()):
            run = self._branches.runs.get(run_id)
            if run is None or run.done:
                del self._cancelled[run_id]
            elif again := left & nodes:
                left -= again
                self._branches.tell(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id, nodes=again)), again)

    def send_sigterm(self, run_id: str) -> None:
        """Drop a script where it has not begun, and send its processes SIGTERM where it runs."""
        self._branches.tell(pb.SessionRequest(cancel=pb.Cancel(run_id=run_id, by_sigterm=True)))

    def end_calls(self, run_id: str) -> None:
        """A run of calls is over. A node that is away now ends it by itself."""
        self._branches.end_calls(run_id)

    def collect(self, run_id: str) -> None:
        """Tell the nodes that the results of a run are here: with the next message, or soon."""
        self._branches.collected([run_id])

    def forget(self, run_id: str) -> None:
        """Follow a run no longer."""
        self._listeners.pop(run_id, None)
        self._branches.forget(run_id)

    # ---- the end ----

    async def flush(self) -> None:
        """Send what waits to be sent, before the process ends; runs have arrived then."""
        self._branches.send_collected()
        while self.submitting_to() or self._branches.is_sending:
            await asyncio.sleep(0.001)  # bounded by the caller; the process is ending

    def submitting_to(self) -> list[str]:
        """Return the names of the nodes that have yet to take in a run."""
        runs = self._branches.runs
        going_on = [runs[run_id] for run_id, one in self._listeners.items() if run_id in runs and not one.done]
        nodes = {node for run in going_on if run.submit is not None for node in run.not_taken_in}
        return [self._connections[node].name for node in sorted(nodes)]

    def close(self) -> None:
        """The mesh has ended, or nobody needs it: end the session. Runs that go on are told."""
        self._branches.close()
        for listener in list(self._listeners.values()):
            if not listener.done:
                listener.on_refused(MeshNotFound("the mesh was released while the run went on"))
        for handle in self._shown.values():
            handle.cancel()
        self.alive.discard(self)

    # ---- what comes ----

    def _take_in(self, event: pb.SessionEvent) -> None:
        try:
            self._dispatch(event)
        except Exception:  # noqa: BLE001 (else the session would end, and nobody would hear of any run again)
            _log.exception("a node of %s said what can not be taken in", self._mesh_id)

    def _dispatch(self, event: pb.SessionEvent) -> None:
        kind = event.WhichOneof("message")
        if kind == "links":
            self._on_links(event.links)
        elif kind == "seen":
            self._on_seen(event.seen)
        elif kind == "rank_died":
            self._on_death(event.rank_died)
        elif kind == "members_changed":
            changed = event.members_changed
            listeners = [each.members_listeners.get(changed.reservation_id, ()) for each in self._connections.values()]
            for told in set[ReservationListener]().union(*listeners):
                told.on_members_changed(changed)
        elif kind in ("queued", "started", "output", "finished", "refused"):
            message = getattr(event, kind)
            listener, run = self._listeners.get(message.run_id), self._branches.runs.get(message.run_id)
            if kind == "refused":
                self._on_refused(listener, message)
            elif listener is None or run is None:
                return
            elif kind == "queued":
                self._on_queued(listener, run, message)
            elif kind == "started":
                listener.on_started(ranges_of(message.nodes))
            elif kind == "output":
                self._on_output(listener, message)
            else:
                listener.on_finished(message)

    def _on_seen(self, seen: pb.Seen) -> None:
        if look := self._looks.get(seen.look_id):
            for place in seen.places:
                look.left.difference_update(place.ranks)
                if place.HasField("where"):
                    look.where.update(dict.fromkeys(place.ranks, place.where))
            if not look.left:
                look.done.set()

    def _on_queued(self, listener: RunListener, run: PassedRun, queued: pb.Queued) -> None:
        self.numbered(run.run_id, queued.number)
        listener.on_queued(queued)

    def _on_output(self, listener: RunListener, output: pb.Output) -> None:
        listener.on_output(output)
        run_id = output.run_id
        if run_id not in self._shown and listener.shows:
            loop = asyncio.get_running_loop()
            interval_s = SHOWN_INTERVAL_S + SHOWN_PER_RANK_S * len(listener.ranks)
            self._shown[run_id] = loop.call_later(interval_s, self._send_shown, run_id)

    def _send_shown(self, run_id: str) -> None:
        self._shown.pop(run_id, None)
        if run := self._branches.runs.get(run_id):
            self._branches.shown(pb.Shown(run_id=run_id, cursors=run.cursors))

    def _on_refused(self, listener: RunListener | None, refused: pb.Refused) -> None:
        error: MonarchNbError = error_from_json(refused.error_json)
        if listener is not None:
            if listener.done:  # it was followed for what it may print later, and is forgotten now
                self._branches.forget(refused.run_id)
            listener.on_refused(error)
        elif isinstance(error, VersionMismatch):
            for each in list(self._listeners.values()):
                each.on_refused(error)

    def _on_links(self, links: pb.Links) -> None:
        changed = [(node, False) for node in links.down if node not in self._away]
        changed += [(node, True) for node in links.up if node in self._away]
        self._there = (self._there - Ranges.of(links.down)) | Ranges.of(links.up)
        self._away = (self._away | set(links.down)) - set(links.up)
        self._news.set()
        if links.up and self._cancelled:
            self._cancel_again(set(links.up))
        for node, up in changed:
            if not up:
                self._connections[node].lost()
            for run_id, listener in list(self._listeners.items()):
                run = self._branches.runs.get(run_id)
                if run is not None and _concerns(run, node):
                    listener.on_link(self._connections[node], up)


def _concerns(run: PassedRun, node: int) -> bool:
    """Whether it matters to a run that a node is away, or there: the run is on it, is to be numbered by it, or is to be
    numbered through it again."""
    return node in run.nodes or (run.is_new and node <= run.numbered_by)


async def _room() -> None:
    """What comes is taken in at once."""
