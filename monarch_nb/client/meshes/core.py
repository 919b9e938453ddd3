"""What a mesh and its slices share: its ranks, and the runs on them that this process follows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakMethod, WeakValueDictionary, finalize

from monarch_nb.allocator.state.lease import released
from monarch_nb.branches.layout import nodes_of
from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.bridge import post
from monarch_nb.client.connections.connection import POOL_DOWN, SPAWN_TIMEOUT_S, Connection
from monarch_nb.client.connections.session import MeshSession
from monarch_nb.client.pools import answering
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.pools.held import current_owner, reserve_line
from monarch_nb.client.pools.infos import run_infos, shared_no_longer
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.presenting import name_here
from monarch_nb.client.runs.interrupting import Doomed
from monarch_nb.config import NUMBERS_TO_SPARE, RESTARTED, patience
from monarch_nb.deaths import describe_death
from monarch_nb.errors import MeshNotFound, MonarchNbError, NodeUnreachable, RankDead
from monarch_nb.ground.ranges import Ranges
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.provision.jobs import job_of_pool, where_of
from monarch_nb.shape import Extent
from monarch_nb.times import time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.runs.run import Run

_COLLECTED = 1000
RUN_AGAIN = "run the cells that define the variables, then this one again"


def taken_over(old: str, new: str, by: str = "") -> str:
    """Return why what ranks ran ends when another node gets the place of theirs."""
    what = f"{by} put {new} in the place of {old}" if by else f"{new} has the place of its node, {old}"
    return f"{RESTARTED}: {what}; {RUN_AGAIN}"


class MeshCore:
    """What a mesh and its slices share: its ranks, whoever uses them. Its coroutines run on the background loop.

    Attributes:
        extent: of the whole mesh.
        ranks: all of the mesh, also those on nodes that are not known.
        reservation_id, reservation_name: whose mesh it is.
        first_node: the node that gives runs their numbers: the mesh's first one or, while that is lost, the next one
            that answers.
        newest_number: the highest number of a run that this process knows of.
        dead: ranks that have died, and why.
        line_text: what there is to say of those who wait in line for such nodes.
        healed: what there is to say of allocators that were started again for the next run.
        has_told_lone_training: once in the life of the ranks it is said that they train apart.
    """

    _cores: ClassVar[WeakValueDictionary[str, MeshCore]] = WeakValueDictionary()

    def __init__(self, mesh_id: str, connections: dict[int, Connection], extent: Extent) -> None:
        self.mesh_id, self.connections, self.extent = mesh_id, connections, extent
        self.ranks, self.ranks_per_node = tuple(range(extent.size)), extent.size // extent["hosts"]
        self.reservation_id, self.reservation_name, self._anew = "", "NAME", "%mesh reserve"
        self._split_last: tuple[tuple[int, ...], dict[int, list[int]]] = ((), {})  # a mesh is split at every run
        self._session: MeshSession | None = None
        self.first_node, self.newest_number = 0, 0
        self.dead: dict[int, str] = {}
        self.has_told_lone_training = False
        self.line_text = ""
        self.healed: list[str] = []
        self.collected: deque[str] = deque(maxlen=_COLLECTED)
        """Ids of the newest runs whose results this process has taken; some twice. Their nodes learn it a moment
        later."""
        self.is_over = False
        """Whether the mesh has ended, as far as this process knows."""
        self.when_dead: Callable[[int, str], object] | None = None
        """Called on the background loop with a rank that has died, and why."""
        self._pool = self._owner = ""
        self.runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """Those that this process follows, by id."""
        self.unstopped: list[Run] = []
        """Those that went on after the last interrupt of all: they know that they had the time to stop."""

        self.saves_behind = False
        """Whether this process has had ranks save in the background, and nobody has waited for it since."""
        self.armed_saves: run_pb2.ArmSaves | None = None
        """What saves this process has armed, also when the nodes are gone."""
        self.doomed_actors = Doomed()
        """The ranks whose actors another one kills."""

    @classmethod
    def get(cls, mesh_id: str, connections: dict[int, Connection], extent: Extent) -> MeshCore:
        """Return the one core of a mesh in this process."""
        core = cls._cores.get(mesh_id)
        if core is None:
            core = cls._cores[mesh_id] = cls(mesh_id, connections, extent)
        core.connections.update(connections)
        post(core._listen)
        return core

    def _listen(self) -> None:
        if not self.is_over:
            self.session.be_over(self.connections)

    def belongs_to(self, reservation: Reservation) -> None:
        """It is a mesh of this reservation."""
        self.reservation_id, self.reservation_name = reservation.id, reservation.name
        self._pool, self._owner = reservation.pool, reservation.owner
        shape = Shape(self.extent["hosts"], reservation.procs, reservation.gpus)
        self._anew = reserve_line(reservation.name, shape, where_of(reservation.pool))

    @property
    def replacement(self) -> str:
        """What `%mesh replace` does now about nodes that do not answer; empty where it can do nothing."""
        if self._owner != self.me:
            return ""
        if job := job_of_pool(self._pool):
            return f"%mesh replace asks {job.on} for another in its place"
        pool = pool_object(self._pool)
        members = {one for core in self.of_reservation(self.reservation_id) for one in core.connections.values()}
        others = [one for one in pool.listed if one not in members and one.name not in pool.silent]
        return "%mesh replace puts a free node in its place" if others else ""

    @property
    def known_runs(self) -> list[str]:
        """What the runs that go on as far as this process knows are called, and when they were sent."""
        return [f"{run.name}, sent at {time_of_day(run.submitted_at)}" for run in self.going_on()]

    @classmethod
    def of_reservation(cls, reservation_id: str) -> list[MeshCore]:
        """Return what this process has met of a reservation's meshes."""
        return [core for core in list(cls._cores.values()) if core.reservation_id == reservation_id]

    @classmethod
    def replace(cls, reservation_id: str, old: Connection, new: Connection) -> None:
        """Another node has the place of one in a reservation, with new ranks. On the background loop."""
        for core in cls.of_reservation(reservation_id):
            for node in [node for node, connection in core.connections.items() if connection is old]:
                core._replace(node, old, new)

    def _replace(self, node: int, old: Connection | None, new: Connection) -> None:
        if old is not None:
            self._let_go(node, old, taken_over(old.name, new.name))
        self.connections[node] = new
        for rank in range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node):
            self.dead.pop(rank, None)
        self._listen()

    def be_over(self, connections: Mapping[int, Connection]) -> None:
        """Be told on which nodes the mesh is, as far as that is known. On the background loop."""
        for node, new in connections.items():
            if (old := self.connections.get(node)) is not new:
                self._replace(node, old, new)

    def _let_go(self, node: int, connection: Connection, why: str) -> None:
        """A node has no part of the mesh any more, or another one: what runs there has ended."""
        ranks = range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
        for run in [run for reference in self.runs.valuerefs() if (run := reference()) is not None]:
            run.on_node_replaced(node, ranks, why)
        connection.rest()

    def close(self) -> None:
        """The mesh has ended: nobody says anything of it any more. From any thread."""
        self.is_over = True
        post(self._close)

    def _close(self) -> None:
        for connection in self.connections.values():
            connection.rest()
        if self._session is not None:
            self._session.close()
            self._session = None  # whoever runs something all the same learns from the nodes that it is gone

    def add(self, run: Run) -> None:
        """From now on this process follows a run, by the id that it has now."""
        self.runs[run.id] = run

    def under_way(self) -> list[Run]:
        """Return the runs of this process that allocators may not know yet, oldest first. From any thread."""
        return [run for run in self.going_on() if not run.number]

    def going_on(self) -> list[Run]:
        """Return the runs that this process follows and that are not over as far as it knows, oldest first."""
        runs = [run for reference in self.runs.valuerefs() if (run := reference()) is not None]
        return [run for run in runs if not run.done]

    # ---- asked, told and restarted through the connections to their nodes

    @property
    def session(self) -> MeshSession:
        """What runs are followed through. On the background loop."""
        if self._session is None:
            method = WeakMethod(self._on_rank_died)

            def on_death(died: pb.RankDied) -> None:
                if tell := method():
                    tell(died)

            self._session = MeshSession(self.mesh_id, self.connections, self.ranks_per_node, on_death)
            finalize(self, post, self._session.close).atexit = False
        return self._session

    def collect(self, run_id: str) -> None:
        """Tell the nodes that the results of a run are here, unless the mesh has ended."""
        if self._session is not None:
            self._session.collect(run_id)

    def _on_rank_died(self, died: pb.RankDied) -> None:
        self.dead[died.rank] = why = describe_death(died.death)
        if self.when_dead is not None:
            self.when_dead(died.rank, why)

    @property
    def me(self) -> str:
        """Who we are to its nodes."""
        return current_owner(next((connection.identity for connection in self.connections.values()), None))

    def by_node(self, ranks: Iterable[int]) -> dict[int, list[int]]:
        """Return the ranks of each node that has some; not to be changed."""
        if ranks is self._split_last[0]:
            return self._split_last[1]
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(rank // self.ranks_per_node, []).append(rank)
        if isinstance(ranks, tuple):
            self._split_last = ranks, nodes
        return nodes

    def connection_of(self, rank: int) -> Connection:
        """Return the connection to a rank's node, or raise NodeUnreachable."""
        node = rank // self.ranks_per_node
        if connection := self.connections.get(node):
            return connection
        raise NodeUnreachable(f"the node of rank {rank} (number {node}) does not answer: %mesh attach looks again")

    def node_names(self, ranks: Iterable[int]) -> list[str]:
        """Return what the nodes of ranks are called, as far as they are known."""
        return [self.connections[node].name for node in self.by_node(ranks) if node in self.connections]

    def hosts(self, ranks: Iterable[int]) -> dict[str, list[int]]:
        """Return the ranks of each node that has some, by what it is called, or its number."""
        return {
            self.connections[node].name if node in self.connections else f"node {node}": on_node
            for node, on_node in self.by_node(ranks).items()
        }

    def where_of(self, ranks: Iterable[int]) -> str:
        """Return on which nodes ranks are, for sentences: " (host2)"; "" where there is only one node."""
        return f" ({listed(self.node_names(ranks))})" if len(self.connections) > 1 else ""

    def death_of(self, dead: Sequence[int], alive: Sequence[int], flag: str) -> RankDead:
        """Return the error that says why ranks can not run anything.

        Args:
            alive: the others that were to. flag: what chooses the mesh on a line of `%mesh`.
        """
        them, are = ("it", "is") if len(dead) == 1 else ("them", "are")
        others = f", or leave {them} out: -t {format_ranks(alive)}" if alive else ""
        restart = f"%mesh restart{flag} -t {format_ranks(dead)}"
        which = f"{name_ranks(dead)}{self.where_of(dead)}"
        why = self.dead[dead[0]]
        return RankDead(f"{which} {are} dead ({why}): {restart} starts {them} again{others}", dead)

    def is_up(self, ranks: Iterable[int]) -> bool:
        """Whether all nodes that a run on these ranks needs are known to answer. From any thread."""
        is_first = not any(self.is_node_up(node) for node in range(self.first_node))
        nodes = nodes_of(Ranges.of(ranks), self.ranks_per_node) | Ranges.of((self.first_node,))
        return is_first and self._session is not None and nodes <= self._session.there

    def is_node_up(self, node: int) -> bool:
        """Whether a node is known to answer."""
        return self._session is not None and node in self._session.there

    async def check_nodes(self, ranks: Iterable[int]) -> None:
        """Raise NodeUnreachable unless all nodes of these ranks answer. When the node that gave runs their numbers does
        not, another one does from now on."""
        by_node = self.by_node(ranks)
        nodes = set(by_node)
        nodes &= await self.session.wait_up({self.first_node, *nodes})
        checked = dict(zip(nodes, await asyncio.gather(*map(self._answers, nodes)), strict=True))
        away = {node for node, answers in checked.items() if not answers}
        others = [rank for node, on_node in by_node.items() if node not in away for rank in on_node]
        for node in sorted(away):
            first_rank = node * self.ranks_per_node
            connection = self.connection_of(first_rank)
            on_node = by_node.get(node)
            is_last = away >= self.connections.keys()
            absence = connection.absence
            if on_node:
                ways = {"name": self.reservation_name, "replacement": self.replacement}
                absence = answering.needed(connection, on_node, others, **ways, is_last=is_last)
            raise NodeUnreachable(self.with_line(absence), connection.name)
        await self.choose_first()

    async def _answers(self, node: int) -> bool:
        try:
            await self.connection_of(node * self.ranks_per_node).check()
        except NodeUnreachable:
            return False
        return True

    async def choose_first(self) -> None:
        """The first node that answers gives runs their numbers from now on. The one before may be the only one to know
        which was the newest, and another client may still ask it: some numbers are left out."""
        while (node := await self._first_there()) != self.first_node:  # again: meanwhile it may be another
            numbers = [mesh.last_number for mesh in await self._told()]
            self.newest_number = max([self.newest_number, *numbers]) + NUMBERS_TO_SPARE
            self.first_node = node

    async def _first_there(self) -> int:
        """Return the first node that answers; if none does, the one that was it."""
        await self.session.wait_up({self.first_node})
        return min(filter(self.is_node_up, self.connections), default=self.first_node)

    async def number_of(self, run_id: str) -> int:
        """Return the number under which a node that answers knows a run; 0 when none does."""
        numbers = (run.number for mesh in await self._told() for run in mesh.runs if run.run_id == run_id)
        return next(numbers, 0)

    async def _told(self) -> list[pb.MeshStatus]:
        """Return what the nodes that answer say of the mesh."""
        there = [connection for node, connection in self.connections.items() if self.is_node_up(node)]
        told = (await answers({each: each.unary("Status", pb.StatusRequest()) for each in there})).values()
        replies = [reply for reply in told if not isinstance(reply, BaseException)]
        meshes = [mesh for reply in replies for held in reply.reservations for mesh in held.meshes]
        return [mesh for mesh in meshes if mesh.mesh_id == self.mesh_id]

    async def control(
        self,
        ranks: Iterable[int],
        *,
        timeout_s: float = patience(5.0),
        run_id: str = "",
        kill: bool = False,
        **asked: Any,
    ) -> dict[int, wire.ControlReply]:
        """Ask or tell the control threads of ranks; those that did not answer are missing.

        Args:
            run_id: of a script: its processes are meant.
            kill: end them instead.
            asked: the field of ControlRequest, with what it says; True: nothing.
        """
        told = {kind: {} if said is True else said for kind, said in asked.items()}
        question = wire.ControlRequest(**told) if told else None

        async def one(node: int, on_node: list[int]) -> list[pb.RankReply]:
            request = pb.ControlRanksRequest(mesh_id=self.mesh_id, ranks=on_node, question=question)
            request.timeout_s, request.run_id, request.kill = timeout_s, run_id, kill
            try:
                reply = await self.connection_of(on_node[0]).unary("Control", request, timeout_s + 2)
            except NodeUnreachable:
                return []
            return list(reply.replies)

        replies = await asyncio.gather(*(one(node, on_node) for node, on_node in self.by_node(ranks).items()))
        return {reply.rank: reply.reply for node in replies for reply in node if reply.answered}

    async def where(
        self, ranks: Iterable[int], run_id: str = "", *, is_urgent: bool = True
    ) -> dict[int, run_pb2.Where]:
        """Return where ranks are (in a script, by its run); those that did not answer are missing.

        Args:
            is_urgent: ask those directly that are not heard of in time.
        """
        found: dict[int, run_pb2.Where] = {}
        left = set(ranks)
        by_node = self.by_node(ranks)
        if asked := [rank for node, on_node in by_node.items() if self.is_node_up(node) for rank in on_node]:
            found, unheard = await self.session.where(asked, run_id)
            left.difference_update(asked)
            left |= unheard if is_urgent else set()
        replies = await self.control(sorted(left), timeout_s=patience(1.0), where={"run_id": run_id}, run_id=run_id)
        return found | {rank: reply.where for rank, reply in replies.items()}

    async def kill_script(self, run_id: str, ranks: Iterable[int]) -> None:
        """SIGKILL the processes of a script on some ranks, with all that they started."""
        await self.control(ranks, kill=True, run_id=run_id)

    async def abort_groups(
        self,
        reason: str,
        ranks: Iterable[int] | None = None,
        *,
        last_run: int = 0,
        if_torn: bool = False,
        peer_died: bool = False,
    ) -> None:
        """Make every rank forget its process groups, so that the next init by all forms a clean one.

        Args:
            reason: shown to the user. ranks: those that are told; None for all.
            last_run: spare groups that runs after this one made; 0 spares none.
            if_torn: spare ranks whose default group has all its peers.
            peer_died: a rank of the run has: groups of NCCL have lost a peer, and do not notice it.
        """
        chosen = self.ranks if ranks is None else ranks
        abort = wire.AbortGroups(reason=reason, last_run=last_run, if_torn=if_torn, peer_died=peer_died)
        await self.control(chosen, timeout_s=patience(2.0), abort_groups=abort)

    async def restart(self, ranks: Iterable[int]) -> None:
        """Replace ranks by fresh ones and abort the survivors' groups; nothing is replaced while one's node is away."""
        chosen = sorted(ranks)
        await self.check_nodes(chosen)
        by_node = self.by_node(chosen)
        requests = [
            (self.connection_of(on_node[0]), pb.RestartRequest(mesh_id=self.mesh_id, ranks=on_node))
            for on_node in by_node.values()
        ]
        await asyncio.gather(*(c.unary("Restart", request, SPAWN_TIMEOUT_S) for c, request in requests))
        for rank in chosen:
            self.dead.pop(rank, None)
        survivors = set(self.ranks) - set(chosen)
        if survivors:
            await self.abort_groups(f"{name_ranks(chosen)} restarted", survivors)

    async def names_running_on(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Return what the runs that have begun on some of these ranks, and go on there, are called."""
        if not (wanted := set(ranks)):
            return ()
        infos = run_infos(((connection.name, mesh) for connection, mesh in await self.status()), self.me)
        going_on = [info for info in infos if wanted.intersection(info.running)]
        return tuple(name_here(info.number, info.cell_number, info.notebook, info.owner) for info in going_on)

    async def status(
        self, *, memory: bool = False, past_runs: pb.PastRuns | None = None
    ) -> list[tuple[Connection, pb.MeshStatus]]:
        """Return what every node says of the mesh."""
        request = pb.StatusRequest(memory=memory, past_runs=past_runs)
        calls = {connection: connection.unary("Status", request) for connection in self.connections.values()}
        told = await answers(calls)  # of those that were asked: meanwhile another may have got the place of one
        replies = list(told.values())
        if away := [reply for reply in replies if isinstance(reply, BaseException)]:
            unexpected = [error for error in away if not isinstance(error, NodeUnreachable)]
            if unexpected or len(away) == len(replies):
                raise unexpected[0] if unexpected else self.all_away()
        found = []
        for connection, reply in told.items():
            if isinstance(reply, BaseException):
                continue
            for reservation in reply.reservations:
                found += [(connection, mesh) for mesh in reservation.meshes if mesh.mesh_id == self.mesh_id]
        if not found:
            raise self.gone([reply for reply in replies if not isinstance(reply, BaseException)])
        self.dead = {
            rank.rank: describe_death(rank.death)
            for _, mesh in found
            for rank in mesh.ranks
            if rank.state == pb.Rank.STATE_DEAD
        }
        return found

    # ---- nodes that do not answer ----

    def way_on(self, said: str = "") -> str:
        """Return what to do about nodes that do not answer; empty when these are of this machine.

        Args:
            said: what is said of them besides, which may name `%mesh replace` already.
        """
        if all(connection.is_local for connection in self.connections.values()):
            return ""
        is_last = not any(self.is_node_up(node) for node in self.connections)
        replacement = "" if "%mesh replace" in said else self.replacement
        return answering.way_on(self.reservation_name, replacement, is_last=is_last)

    def all_away(self) -> NodeUnreachable:
        """Return the error that says that none of its nodes answers, and what this process knows all the same."""
        nodes = [self.connections[node] for node in sorted(self.connections)]
        if all(node.is_local for node in nodes):
            said = "; ".join(dict.fromkeys(node.absence for node in nodes))
            return NodeUnreachable(self.with_line(said), nodes[0].name)
        names = [f"{node.name}{f' ({since})' if (since := node.since.strip()) else ''}" for node in nodes]
        return answering.all_away(self.reservation_name, names, self.known_runs)

    def gone(self, replies: Iterable[pb.StatusReply]) -> MonarchNbError:
        """Return why no node tells of the mesh."""
        for reply in replies:
            for ended in reply.ended:
                if self.mesh_id in ended.mesh_ids:
                    return released(ended)
            for reservation in reply.reservations:
                if reservation.reservation_id == self.reservation_id:
                    if over := shared_no_longer(reservation):
                        return over
                    there = ", ".join(dict.fromkeys(mesh.name for mesh in reservation.meshes))
                    return MeshNotFound(f"the mesh was stopped: {reservation.name} has {there or 'no other'}")
        return MonarchNbError(f"the mesh does not exist any more (released?): {self._anew} makes a new one")

    def with_line(self, absence: str) -> str:
        """Return what is said of nodes that are gone, with the whole line that reserves such again."""
        return absence.replace(POOL_DOWN, POOL_DOWN.replace("%mesh reserve", self._anew))
