"""Meshes: named sets of live ranks, and parts of them."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from monarch_nb.allocator.limits import expired
from monarch_nb.client.bridge import call, post
from monarch_nb.client.connection import SPAWN_TIMEOUT_S, Connection, answers
from monarch_nb.client.decoding import describe_death
from monarch_nb.client.infos import RankInfo, RunInfo, infos_of_node, run_infos
from monarch_nb.client.interrupt_report import InterruptReport
from monarch_nb.client.logs import LogRecord, follow_logs, read_logs
from monarch_nb.client.packing import pack_variables
from monarch_nb.client.presenting import panel_of
from monarch_nb.client.run import ALLOCATOR_DOWN, Listener, OnError, Run
from monarch_nb.errors import (
    MonarchNbError,
    NodeUnreachable,
    RankDead,
    RankUnresponsive,
    RunNotFound,
    TargetError,
)
from monarch_nb.interrupting import at_waits
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.shape import Extent, format_ranks, name_ranks

if TYPE_CHECKING:
    from monarch_nb.client.reservation import Reservation

CONTROL_TIMEOUT_S = 5.0
TITLE_CHARACTERS = 60


@dataclass(frozen=True)
class StackReport:
    """Every rank's stack, equal ones together; ranks that did not answer have an empty one."""

    groups: list[tuple[tuple[int, ...], str]]

    def __str__(self) -> str:
        parts = []
        for ranks, stack in self.groups:
            parts.append(f"── {name_ranks(ranks)} " + "─" * 40)
            parts.append(stack.rstrip() or "no answer")
        return "\n".join(parts)


class MeshCore:
    """What a mesh and its slices share. Its coroutines run on the background loop."""

    _cores: ClassVar[WeakValueDictionary[str, MeshCore]] = WeakValueDictionary()

    def __init__(self, mesh_id: str, connections: dict[int, Connection], ranks_per_node: int) -> None:
        self.mesh_id, self.connections, self.ranks_per_node = mesh_id, connections, ranks_per_node
        self.dead: dict[int, str] = {}
        self.runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """Those that this process follows, by id."""

    @classmethod
    def get(cls, mesh_id: str, connections: dict[int, Connection], ranks_per_node: int) -> MeshCore:
        """Return the one core of a mesh in this process."""
        core = cls._cores.get(mesh_id)
        if core is None:
            core = cls._cores[mesh_id] = cls(mesh_id, connections, ranks_per_node)
            post(core._listen)
        core.connections.update(connections)
        return core

    def _listen(self) -> None:
        for connection in self.connections.values():
            connection.mesh_deaths[self.mesh_id] = self._on_rank_died
            connection.ensure_session()

    def _on_rank_died(self, died: pb.RankDied) -> None:
        self.dead[died.rank] = describe_death(died.death)

    @property
    def first_node(self) -> int:
        """The node that gives runs their numbers."""
        return 0

    def by_node(self, ranks: Iterable[int]) -> dict[int, list[int]]:
        """Return the ranks of each node that has some."""
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(rank // self.ranks_per_node, []).append(rank)
        return nodes

    def connection_of(self, rank: int) -> Connection:
        """Return the connection to a rank's node, or raise NodeUnreachable."""
        node = rank // self.ranks_per_node
        if connection := self.connections.get(node):
            return connection
        raise NodeUnreachable(f"the node of rank {rank} (number {node}) does not answer: %mesh attach looks again")

    async def check_nodes(self, ranks: Iterable[int]) -> None:
        """Raise NodeUnreachable unless all nodes that a run on these ranks needs answer."""

        async def check(node: int) -> None:
            connection = self.connection_of(node * self.ranks_per_node)
            try:
                await connection.check()
            except NodeUnreachable:
                raise NodeUnreachable(f"{connection.name} {ALLOCATOR_DOWN}", connection.name) from None

        checks = await asyncio.gather(*map(check, self.nodes_for(ranks)), return_exceptions=True)
        for error in checks:
            if error is not None:
                raise error

    def nodes_for(self, ranks: Iterable[int]) -> list[int]:
        """Return the nodes that a run on these ranks needs: theirs, and the one that gives it its number."""
        return sorted({self.first_node, *self.by_node(ranks)})

    async def control(
        self, ranks: Iterable[int], *, timeout_s: float = CONTROL_TIMEOUT_S, **message: Any
    ) -> dict[int, pb.RankReply]:
        """Ask or tell the control threads of ranks; those that did not answer are missing."""

        async def one(node: int, on_node: list[int]) -> list[pb.RankReply]:
            request = pb.ControlRanksRequest(mesh_id=self.mesh_id, ranks=on_node, timeout_s=timeout_s, **message)
            try:
                reply = await self.connection_of(on_node[0]).unary("Control", request, timeout_s + 2)
            except NodeUnreachable:
                return []
            return list(reply.replies)

        replies = await asyncio.gather(*(one(node, on_node) for node, on_node in self.by_node(ranks).items()))
        return {reply.rank: reply for node in replies for reply in node if reply.answered}

    async def where(self, ranks: Iterable[int]) -> dict[int, run_pb2.Where]:
        """Return where ranks are; those that did not answer are missing."""
        replies = await self.control(ranks, timeout_s=1.0, where=True)
        return {rank: reply.where for rank, reply in replies.items()}

    async def abort_groups(self, reason: str, ranks: Iterable[int] | None = None, *, last_run: int = 0) -> None:
        """Make every rank forget its process groups, so that the next init by all forms a clean one.

        Args:
            reason: shown to the user. ranks: those that are told; None for all.
            last_run: spare groups that runs after this one made; 0 spares none.
        """
        chosen = range(self.ranks_per_node * len(self.connections)) if ranks is None else ranks
        await self.control(chosen, timeout_s=2.0, abort_groups=reason, last_run=last_run)

    async def restart(self, ranks: Iterable[int]) -> None:
        """Replace ranks by fresh ones and abort the survivors' groups."""
        chosen = sorted(ranks)
        by_node = self.by_node(chosen)
        requests = [
            (self.connection_of(on_node[0]), pb.RestartRequest(mesh_id=self.mesh_id, ranks=on_node))
            for on_node in by_node.values()
        ]
        await asyncio.gather(*(c.unary("Restart", request, SPAWN_TIMEOUT_S) for c, request in requests))
        for rank in chosen:
            self.dead.pop(rank, None)
        survivors = set(range(self.ranks_per_node * len(self.connections))) - set(chosen)
        if survivors:
            await self.abort_groups(f"{name_ranks(chosen)} restarted", survivors)

    async def status(
        self, *, memory: bool = False, past_runs: pb.PastRuns | None = None
    ) -> list[tuple[Connection, pb.MeshStatus]]:
        """Return what every node says of the mesh."""
        request = pb.StatusRequest(memory=memory, past_runs=past_runs)
        calls = {connection: connection.unary("Status", request) for connection in self.connections.values()}
        replies = list((await answers(calls)).values())
        if away := [reply for reply in replies if isinstance(reply, BaseException)]:
            unexpected = [error for error in away if not isinstance(error, NodeUnreachable)]
            if unexpected or len(away) == len(replies):
                raise (unexpected or away)[0]
        found = []
        for connection, reply in zip(self.connections.values(), replies, strict=True):
            if isinstance(reply, BaseException):
                continue
            for reservation in reply.reservations:
                found += [(connection, mesh) for mesh in reservation.meshes if mesh.mesh_id == self.mesh_id]
        if not found:
            for reply in replies:
                for ended in () if isinstance(reply, BaseException) else reply.ended:
                    if self.mesh_id in ended.mesh_ids:
                        raise expired(ended)
            raise MonarchNbError("the mesh does not exist any more (released?): %mesh reserve makes a new one")
        self.dead = {
            rank.rank: describe_death(rank.death)
            for _, mesh in found
            for rank in mesh.ranks
            if rank.state == pb.Rank.STATE_DEAD
        }
        return found


class Mesh:
    """A named set of live ranks, or a part of one.

    Attributes:
        id, name: of the mesh.
        extent: its labelled shape, e.g. `{"hosts": 2, "procs": 4}`, also for a part of it.
        ranks: those that this object stands for.
        reservation: what it belongs to.
    """

    def __init__(
        self,
        mesh_id: str,
        name: str,
        extent: Extent,
        reservation: Reservation,
        connections: dict[int, Connection],
        dead: Mapping[int, str] | None = None,
        ranks: Iterable[int] | None = None,
    ) -> None:
        self.id, self.name, self.extent, self.reservation = mesh_id, name, extent, reservation
        self.ranks = tuple(range(extent.size)) if ranks is None else tuple(ranks)
        ranks_per_node = extent.size // extent["hosts"]
        self.core = MeshCore.get(mesh_id, connections, ranks_per_node)
        if dead is not None:
            self.core.dead = dict(dead)

    def __repr__(self) -> str:
        part = "" if len(self.ranks) == self.extent.size else f", {name_ranks(self.ranks)}"
        return f"<Mesh {self.reservation.name}/{self.name}: {self.extent}{part}>"

    def __len__(self) -> int:
        return len(self.ranks)

    def panel(self) -> Any:
        """Return its live panel, for the output of a notebook's cell: ranks, what they run, logs, restart, release.

        Raises:
            UsageError: this is no notebook, or one without the extension.
        """
        return panel_of(self)

    # ---- parts ----

    def slice(self, **dimensions: int | slice) -> Mesh:
        """Return the part with the given coordinates, e.g. `mesh.slice(hosts=0, procs=slice(0, 2))`."""
        return self.select(self.extent.ranks(**dimensions))

    def select(self, ranks: int | Iterable[int]) -> Mesh:
        """Return the part of exactly these ranks (or this one).

        Raises:
            TargetError: a rank that is not in this mesh, or none at all.
        """
        chosen = (ranks,) if isinstance(ranks, int) else tuple(sorted(set(ranks)))
        if missing := [rank for rank in chosen if rank not in self.ranks]:
            raise TargetError(f"{name_ranks(missing)} not in {self!r}")
        if not chosen:
            raise TargetError("no rank chosen")
        return Mesh(self.id, self.name, self.extent, self.reservation, self.core.connections, ranks=chosen)

    # ---- runs ----

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_error: OnError = "wait",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        listener: Listener | None = None,
    ) -> Run:
        """Run code on the ranks and wait until all have finished. Ctrl-C interrupts the ranks and keeps their memory.

        Args:
            timeout_s: give up waiting after this time; the run goes on.
            on_error: "abort" interrupts the other ranks, whatever they do, half a second after one has failed.
            cell_number: shown in tracebacks as `Cell In[…]`; without one it is `Run …`, the run's number.
            want_value: bring the last expression's values back.
            sync: first bring files that changed to nodes that have copies of them.
            listener: called with the run's events on a background thread.

        Returns:
            The finished run; `run.values` is a list by rank.

        Raises:
            RunFailed: it failed on some ranks.
            RankDead: a rank of this mesh is dead.
            NodeUnreachable: a node of it does not answer.
            TimeoutError: it goes on after `timeout_s`.
            FilesError: a node could not take the files that changed.

        Example:
            >>> mesh.run("x = rank * 2\\nx").values  # doctest: +SKIP
            [0, 2, 4, 6]
        """
        if sync:
            self._sync()
        with at_waits():  # who presses Ctrl-C from here on interrupts the ranks
            run = self.submit(
                code, on_error=on_error, cell_number=cell_number, want_value=want_value, sync=False, listener=listener
            )
            is_done = run.join(timeout_s)
        if not is_done:
            raise run.timed_out(timeout_s or 0)
        run.collected()
        run.raise_failures()
        return run

    def submit(
        self,
        code: str,
        *,
        on_error: OnError = "wait",
        cell_number: int = 0,
        want_value: bool = True,
        sync: bool = True,
        listener: Listener | None = None,
    ) -> Run:
        """As `run`, but return at once."""
        if sync:
            self._sync()
        cell = run_pb2.Cell(code=code, cell_number=cell_number, want_value=want_value)
        spec = run_pb2.RunSpec(cell=cell, tree=self.reservation.files.tree())
        return self._start(spec, _title(code), on_error, listener)

    def _sync(self) -> None:
        files = self.reservation.files
        if files.copies:
            self._check_alive()
            files.sync(self.core.by_node(self.ranks))

    def _start(
        self, spec: run_pb2.RunSpec, title: str, on_error: OnError = "wait", listener: Listener | None = None
    ) -> Run:
        self._check_alive()
        spec.run_id = uuid.uuid4().hex
        run = self.core.runs[spec.run_id] = Run(
            self,
            spec.run_id,
            self.ranks,
            title,
            on_error=on_error,
            cell_number=spec.cell.cell_number,
            listener=listener,
        )
        post(run.submit, spec)
        return run

    def _check_alive(self) -> None:
        connections = (self.core.connections.get(node) for node in self.core.nodes_for(self.ranks))
        if not all(connection is not None and connection.up for connection in connections):
            call(self.core.check_nodes(self.ranks))
        if not any(rank in self.core.dead for rank in self.ranks):
            return
        call(self.core.status())  # somebody else may have restarted it
        dead = [rank for rank in self.ranks if rank in self.core.dead]
        if not dead:
            return
        alive = [rank for rank in self.ranks if rank not in self.core.dead]
        them, are = ("it", "is") if len(dead) == 1 else ("them", "are")
        others = f", or leave {them} out: -t {format_ranks(alive)}" if alive else ""
        raise RankDead(
            f"{name_ranks(dead)} {are} dead ({self.core.dead[dead[0]]}): %mesh restart -t {format_ranks(dead)} starts "
            f"{them} again{others}",
            dead,
        )

    def push(self, variables: Mapping[str, Any]) -> None:
        """Set variables on every rank; one copy per node travels, and large arrays are shared by its ranks.

        Raises:
            PickleError: a value can not be pickled; the message names it.
            RunFailed: it could not be unpickled on some ranks.
        """
        self._check_alive()
        pieces = pack_variables(dict(variables))
        blob = uuid.uuid4().hex
        call(self._put(blob, pieces))
        spec = run_pb2.RunSpec(push=run_pb2.Push(blob=blob))
        self._finish_quietly(spec, f"push {', '.join(variables)}")

    async def _put(self, blob: str, pieces: list[bytes | memoryview]) -> None:
        nodes = [self.core.connection_of(ranks[0]) for ranks in self.core.by_node(self.ranks).values()]
        await asyncio.gather(*(node.put_blob(self.id, blob, pieces) for node in nodes))

    def pull(self, expression: str) -> list[Any]:
        """Return the value of an expression (a variable's name, say) on every rank, by rank.

        Raises:
            RunFailed: it can not be evaluated on some ranks; the error's `run.values` has the others.
            PickleError: a value can not be pickled; the message names it, and `run.kept_values` has the others.
        """
        spec = run_pb2.RunSpec(pull=run_pb2.Pull(expression=expression))
        return self._finish_quietly(spec, f"pull {expression}")

    def _finish_quietly(self, spec: run_pb2.RunSpec, title: str) -> list[Any]:
        with at_waits():
            run = self._start(spec, title)
            run.join()
        return run.result()

    def interrupt(self) -> InterruptReport:
        """Interrupt whatever runs on these ranks, whoever started it; nothing in memory is lost."""
        return InterruptReport.of(run.interrupt() for run in self.running())

    def running(self) -> Iterator[Run]:
        """Yield the runs that go on on these ranks, whoever submitted them."""
        for info in self.runs():
            if not info.done and set(info.ranks) & set(self.ranks):
                yield self.core.runs.get(info.run_id) or self._follow(info)

    def runs(self) -> list[RunInfo]:
        """Return the runs that are unfinished or whose results nobody has collected, oldest first."""
        return [info for info in self._run_infos() if not (info.done and info.collected)]

    def past_runs(self, tracebacks_of: int = 0) -> list[RunInfo]:
        """Return the newest few hundred runs, also those that are over, oldest first, each with what failed.

        Args:
            tracebacks_of: the number of the run whose failures come with their tracebacks.
        """
        return self._run_infos(pb.PastRuns(mesh_id=self.id, tracebacks_of=tracebacks_of))

    def _run_infos(self, past_runs: pb.PastRuns | None = None) -> list[RunInfo]:
        told = call(self.core.status(past_runs=past_runs))
        return run_infos((connection.name, mesh) for connection, mesh in told)

    def attach_run(self, run_id: str, *, from_start: bool = False, listener: Listener | None = None) -> Run:
        """Follow a run that another client submitted; one that this process follows already is returned as it is.

        Args:
            from_start: send all its output again, not only what no client has shown; also that of a run which is over
                and was shown to its end.
            listener: called with the run's events on a background thread.

        Raises:
            RunNotFound: there is no such run.
        """
        found = [info for info in (self.past_runs() if from_start else self.runs()) if info.run_id == run_id]
        if not found:
            raise RunNotFound(f"no run {run_id} is {'remembered' if from_start else 'going on or uncollected'}")
        info = found[0]
        known = self.core.runs.get(run_id)
        if known is not None and not from_start:
            if listener is not None:
                known.add_listener(listener)
            return known
        return self._follow(info, from_start=from_start, listener=listener, own_connections=known is not None)

    def _follow(
        self,
        info: RunInfo,
        *,
        from_start: bool = False,
        listener: Listener | None = None,
        own_connections: bool = False,
    ) -> Run:
        run = Run(
            self,
            info.run_id,
            info.ranks,
            info.title,
            cell_number=info.cell_number,
            listener=listener,
            own_connections=own_connections,
        )
        self.core.runs.setdefault(info.run_id, run)
        run.number, run.submitted_at = info.number, info.submitted_at
        run.finished_before = frozenset(info.finished)
        follow = lambda: run.follow(from_shown=not from_start)  # noqa: E731
        post(follow)
        return run

    # ---- ranks ----

    def restart(self, ranks: int | Iterable[int] | None = None) -> None:
        """Replace ranks (all of this object's by default) by fresh ones under the same coordinates.

        Their variables and imports are lost. The others keep theirs; their process groups are aborted, so that an
        `init_process_group()` by all forms a new one. Returns when the new ranks are ready.
        """
        chosen = self.ranks if ranks is None else self.select(ranks).ranks
        call(self.core.restart(chosen))

    def status(self) -> list[RankInfo]:
        """Return what the allocators know of the ranks."""
        told = call(self.core.status(memory=True))
        infos = {info.rank: info for connection, mesh in told for info in infos_of_node(connection.name, mesh)}
        return [infos.get(rank) or self._unreachable(rank) for rank in self.ranks]

    def _unreachable(self, rank: int) -> RankInfo:
        host = self.core.connection_of(rank).name
        return RankInfo(rank, host, 0, "unreachable")

    def where(self) -> dict[int, run_pb2.Where]:
        """Return where each rank's main thread is; ranks that do not answer are missing."""
        return call(self.core.where(self.ranks))

    def stacks(self) -> StackReport:
        """Return every rank's Python stack, also while C code holds the interpreter; equal ones together."""
        replies = call(self.core.control(self.ranks, stack=True))
        groups: dict[str, list[int]] = {}
        for rank in self.ranks:
            reply = replies.get(rank)
            groups.setdefault(reply.stack if reply else self._why_silent(rank), []).append(rank)
        return StackReport([(tuple(ranks), stack) for stack, ranks in groups.items()])

    def _why_silent(self, rank: int) -> str:
        """Return why a rank said nothing, if that is its node's fault."""
        node = self.core.connections.get(rank // self.core.ranks_per_node)
        return "" if node is None or node.up else f"{node.name} {ALLOCATOR_DOWN}"

    def complete(self, code: str, cursor: int, rank: int | None = None) -> tuple[list[str], int]:
        """Return completions of live names on a rank, and where in the code the completed word begins."""
        alive = [one for one in self.ranks if one not in self.core.dead]
        if not alive:
            return [], cursor
        chosen = alive[0] if rank is None else rank
        completion = pb.Completion(code=code, cursor=cursor)
        reply = call(self.core.control([chosen], timeout_s=1.0, complete=completion)).get(chosen)
        if reply is None:
            raise RankUnresponsive(f"rank {chosen} does not answer", [chosen])
        return list(reply.completions), reply.completion_start

    def logs(
        self,
        ranks: int | Iterable[int] | None = None,
        lines: int | None = None,
        run: Run | RunInfo | int | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[LogRecord]:
        """Yield what the ranks wrote, from their files: all of it, run after run.

        Args:
            ranks: only these.
            lines: only the newest lines of each.
            run: only that run (or its number).
            follow: go on with what they write, as it comes: until Ctrl-C, or until `run` has finished.

        Raises:
            RunNotFound: there was no run of that number.
        """
        batches = self.log_batches(ranks, lines, run, follow=follow)
        return itertools.chain.from_iterable(batches)

    def log_batches(
        self,
        ranks: int | Iterable[int] | None = None,
        lines: int | None = None,
        run: Run | RunInfo | int | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[Iterable[LogRecord]]:
        """As `logs`, but yield together what can be folded together: everything, or what came at a time."""
        chosen = self.ranks if ranks is None else self.select(ranks).ranks
        number = run if isinstance(run, int) else run.number if run is not None else 0
        request = pb.ReadLogsRequest(mesh_id=self.id, number=number, last_lines=lines or 0, follow=follow)
        requests = []
        for on_node in self.core.by_node(chosen).values():
            of_node = pb.ReadLogsRequest(ranks=on_node)
            of_node.MergeFrom(request)
            requests.append((self.core.connection_of(on_node[0]), of_node))
        batches = follow_logs(requests) if follow else iter([read_logs(requests)])
        return self._checked(batches, run) if isinstance(run, int) else batches

    def _checked(self, batches: Iterator[Iterable[LogRecord]], number: int) -> Iterator[Iterable[LogRecord]]:
        """Yield a run's records, or raise RunNotFound if there was no such run."""
        any_came = False
        for batch in batches:
            records = iter(batch)
            for first in records:
                any_came = True
                yield itertools.chain([first], records)
        if not any_came and number > max(mesh.last_number for _, mesh in call(self.core.status())):
            newest = max((record.run for record in self.logs(lines=1)), default=0)
            there = f"the newest that printed is run {newest}" if newest else "nothing was printed yet"
            raise RunNotFound(f"there is no run {number}; {there}")


def _title(code: str) -> str:
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = lines[0] if lines else ""
    return first if len(first) <= TITLE_CHARACTERS else first[: TITLE_CHARACTERS - 1] + "…"
