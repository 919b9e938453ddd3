"""Monarch's worker loops on the nodes of a reservation: the mesh `monarch`, with one rank on each node.

They are ranks like others: allocators start, watch, adopt and end them, and `%mesh status` shows them. A node looks
after the clients that use them, and has all nodes end the mesh when the last client has been gone for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.monarch import engine
from monarch_nb.client.pools.actor_infos import ActorInfo, grouped
from monarch_nb.client.pools.leasing import using
from monarch_nb.client.runs.interrupting import NO_INTERRUPT
from monarch_nb.config import MONARCH_LINGER_S, MONARCH_MESH, TUNNEL_SCHEME, patience
from monarch_nb.errors import RunFailed, SpawnError, UsageError
from monarch_nb.ground.interrupting import at_waits
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import Duration, duration, seconds_of
from monarch_nb.trust.passing import passing_certificate

if TYPE_CHECKING:
    from monarch_nb.client.reservations.meshes import Meshes
    from monarch_nb.client.reservations.reservation import Reservation

_SERVE = "from monarch_nb.worker.monarch.loop import serve as _serve\n_serve(rank, {version!r})"
_CERTIFICATES = '__import__("monarch_nb.worker.monarch.loop", fromlist=["_"]).certificates()'
SERVE_TIMEOUT_S = patience(60.0)
MAX_LINES = 3
PER_HOST = {"workers": 1}
BREAKPOINT = "a breakpoint ("
"""So begins where an actor is that waits at one (`monarch_nb.worker.monarch.census`)."""
DEBUGGER = "monarch debug in a terminal of this machine opens Monarch's debugger"


@dataclass(frozen=True)
class Workers:
    """Worker loops that serve.

    Attributes:
        mesh: whose ranks they are.
        addresses: where they listen, by rank.
        python: of their processes; empty when it is not the same everywhere.
        certificates: of connections over a network, as `trust.passing` has them; empty on this machine.
    """

    mesh: Mesh
    addresses: tuple[str, ...]
    python: str
    certificates: Mapping[str, str]


@contextmanager
def claimed(meshes: Meshes, reservation: str) -> Iterator[None]:
    """Of clients that come at once, wherever they are, one finds or starts the workers in the block; the others wait.

    Args:
        reservation: its name.
    """
    claim = meshes.claim(MONARCH_MESH)
    say = f"waiting: another client starts the Monarch workers of {reservation}"
    call(claim.take(lambda: engine.tell(say)), undo=lambda _: claim.give_back())
    try:
        yield
    finally:
        call(claim.give_back())


async def mesh_of(meshes: Meshes) -> Mesh:
    """Return the mesh, started when there is none, or when it is not on all nodes of the reservation."""
    nodes = meshes.addresses
    for mesh in await meshes.all():
        if mesh.name == MONARCH_MESH and mesh.addresses and [each.node for each in mesh.addresses] == nodes:
            return mesh
    return await meshes.spawn(nodes, PER_HOST, MONARCH_MESH, replaces=True)


async def stay_while_used(mesh: Mesh, linger_s: float) -> None:
    """Have the mesh end when this client, and every other one that has said so, has been gone for so long."""
    nodes = [mesh.core.connections[node] for node in sorted(mesh.core.connections)]
    await using(nodes, mesh.reservation.id, mesh.id, linger_s)


def serve(mesh: Mesh, over: Collection[str] = ()) -> Workers:
    """Have every rank of the mesh run its loop. A rank that died is started again.

    Args:
        over: addresses of loops that this process has shut down: their ranks are started again. They may serve for a
            moment yet.

    Raises:
        UsageError: a node has no torchmonarch, or another version than this process.
        SpawnError: a loop could not be started.
    """
    mesh.status()
    if dead := [rank for rank in mesh.ranks if rank in mesh.core.dead]:
        mesh.restart(dead)
    places, certificates = _places(mesh)
    try:
        with at_waits():
            run = mesh.submit(
                _SERVE.format(version=engine.version()),
                sync=False,
                secret={str(rank): place for rank, place in places.items()},
            )
            is_done = run.join(SERVE_TIMEOUT_S)
        told = run.ended(is_done, SERVE_TIMEOUT_S).values
    except RunFailed as error:
        raise SpawnError(f"Monarch's workers could not be started: {error}") from error
    names = {rank: mesh.core.connection_of(rank).name for rank in mesh.ranks}
    check(told, [names[rank] for rank in mesh.ranks])
    if ended := [rank for rank, one in zip(mesh.ranks, told, strict=True) if one["address"] in over]:
        mesh.restart(ended)
        return serve(mesh)
    pythons = {one["python"] for one in told}
    addresses = tuple(one["address"] for one in told)
    return Workers(mesh, addresses, pythons.pop() if len(pythons) == 1 else "", certificates)


def check(told: Sequence[dict[str, str]], names: Sequence[str]) -> None:
    """Raise UsageError unless all nodes have the torchmonarch that this process has.

    Args:
        told: what `serve` of each has returned. names: of the nodes.
    """
    own = engine.version()
    if missing := [name for name, one in zip(names, told, strict=True) if "missing" in one]:
        raise UsageError(
            f"torchmonarch is not installed on {', '.join(missing)}: %mesh pip install torchmonarch=={own}, "
            f"then %mesh restart --mesh {MONARCH_MESH}"
        )
    if others := {name: one["version"] for name, one in zip(names, told, strict=True) if one["version"] != own}:
        those = ", ".join(f"{version} on {name}" for name, version in others.items())
        raise UsageError(
            f"torchmonarch is {own} here and {those}: both must be the same. "
            f"%mesh pip install torchmonarch=={own}, then %mesh restart --mesh {MONARCH_MESH}"
        )


def chosen(addresses: Sequence[str], nodes: Iterable[int] | None) -> tuple[str, ...]:
    """Return the addresses of some nodes, by default of all.

    Raises:
        UsageError: there is no such node.
    """
    if nodes is None:
        return tuple(addresses)
    numbers = tuple(nodes)
    if not numbers or not all(number in range(len(addresses)) for number in numbers):
        known = (
            f"nodes are numbers from 0 to {len(addresses) - 1}, such as" if len(addresses) > 1 else "the only node is"
        )
        raise UsageError(f"{known} nodes=[0], not {list(numbers)}")
    return tuple(addresses[number] for number in numbers)


class AttachedMesh:
    """The mesh, as Monarch's calls in this process know it."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def is_over(self) -> bool:
        """Return whether it was stopped or released."""
        return self._mesh.core.is_over

    def said_of_dead(self) -> str:
        """Return which workers have died, and why, or that all have ended; empty when all live."""
        mesh = self._mesh
        if self.is_over():
            return f"the Monarch workers of {mesh.reservation.name} were stopped: their actors are gone"
        lines = [_death(mesh, rank, why) for rank, why in sorted(mesh.core.dead.items())]
        again = f"{mesh.reservation.name}.monarch() starts {name_ranks(mesh.core.dead)} again" if lines else ""
        return "\n".join([*lines, again]).rstrip()

    def deaths(self) -> list[str]:
        """Return what a cell that waits is told of workers that died or were stopped."""
        if self.is_over():
            again = f"{self._mesh.reservation.name}.monarch() starts workers again"
            return [f"{self.said_of_dead()}. Monarch notices that after a minute; ■ ends the wait, and then {again}"]
        return [_told_death(self._mesh, rank, why) for rank, why in sorted(self._mesh.core.dead.items())]

    def said_of_running(self) -> str:
        """Ask what actors execute, and return it for people; empty when that is nothing."""
        return said_of_running(self._infos(), self._nodes())

    def said_of_waiting(self, titles: Collection[str]) -> str:
        """As said_of_running, for a cell that waits: of the endpoints with these titles."""
        return said_of_waiting([info for info in self._infos() if f"{info.name}.{info.running}" in titles])

    def _nodes(self) -> dict[int, str]:
        """Return the names of the nodes whose workers live, by rank."""
        mesh = self._mesh
        return {rank: mesh.core.connection_of(rank).name for rank in mesh.ranks if rank not in mesh.core.dead}

    def _infos(self) -> list[ActorInfo]:
        mesh = self._mesh
        if self.is_over():
            return []
        replies = call(mesh.core.control(list(self._nodes()), timeout_s=patience(1.0), actors=True))
        return [ActorInfo.of(mesh.name, rank, one) for rank, reply in replies.items() for one in reply.actors]


def _debugger(infos: Iterable[ActorInfo]) -> list[str]:
    return [DEBUGGER] if any(info.where.startswith(BREAKPOINT) for info in infos) else []


def said_of_waiting(infos: Sequence[ActorInfo]) -> str:
    """Return what actors execute, for a cell that waits; empty when they execute nothing.

    Example:
        trainers.step: ranks 0-3 run it at train.py:41 for 12 s
    """
    lines = []
    for group in grouped(info for info in infos if info.running):
        does = "runs" if len(group.ranks) == 1 else "run"
        at = f" at {group.info.where}" if group.info.where else ""
        who = f"{group.info.name}.{group.info.running}: {name_ranks(group.ranks)}"
        lines.append(f"{who} {does} it{at} for {duration(group.running_s)}")
    more = len(lines) - MAX_LINES
    rest = [f"{counted(more, 'more line')} like these"] if more > 0 else []
    return "\n".join([*lines[:MAX_LINES], *rest, *_debugger(infos)])


def said_of_running(infos: Sequence[ActorInfo], nodes: Mapping[int, str]) -> str:
    """Return what actors execute, and where; empty when they execute nothing.

    Args:
        infos: the actors of the workers. nodes: their names, by the rank of the worker.

    Example:
        trainers.step goes on at train.py:41 (node0: pids 71, 72; node1: pid 90) for 12 s
    """
    alike: dict[tuple[str, str], list[ActorInfo]] = {}
    for info in infos:
        if info.running:
            alike.setdefault((f"{info.name}.{info.running}", info.where), []).append(info)
    lines = []
    for (title, where), those in alike.items():
        pids: dict[str, list[int]] = {}
        for info in those:
            pids.setdefault(nodes[info.rank], []).append(info.pid)
        places = "; ".join(f"{node}: {name_pids(sorted(set(of_node)))}" for node, of_node in pids.items())
        at = f" at {where}" if where else ""
        lines.append(f"{title} goes on{at} ({places}) for {duration(max(info.running_s for info in those))}")
    return "\n".join([*lines, *_debugger(infos), NO_INTERRUPT]) if lines else ""


def name_pids(pids: Sequence[int]) -> str:
    """Return "pid 3" or "pids 3, 4"."""
    return f"pid{'' if len(pids) == 1 else 's'} {', '.join(map(str, pids))}"


def tell_deaths(mesh: Mesh) -> None:
    """Have deaths of workers said where people look: Monarch notices them after a minute."""
    mesh.core.when_dead = lambda rank, why: engine.tell(_told_death(mesh, rank, why))


def _told_death(mesh: Mesh, rank: int, why: str) -> str:
    return (
        f"{_death(mesh, rank, why)}; Monarch's calls of actors there fail after a minute. ■ ends the wait, and then "
        f"{mesh.reservation.name}.monarch() starts the worker again"
    )


def _death(mesh: Mesh, rank: int, why: str) -> str:
    return f"{mesh.core.connection_of(rank).name}: the Monarch worker (rank {rank} of mesh {mesh.name}) died: {why}"


def _places(mesh: Mesh) -> tuple[dict[int, dict[str, str]], Mapping[str, str]]:
    """Return where each rank's loop is to listen, and the certificates of connections over a network: those that loops
    have already, or new ones, which nobody else in the pool has."""
    connections = {rank: mesh.core.connection_of(rank) for rank in mesh.ranks}
    if all(_is_here(connection) for connection in connections.values()):
        sockets = {rank: str(Path(one.address.partition(":")[2]).parent) for rank, one in connections.items()}
        return {rank: {"directory": directory} for rank, directory in sockets.items()}, {}
    if tunnels := [one.name for one in connections.values() if one.address.startswith(TUNNEL_SCHEME)]:
        raise UsageError(
            f"{', '.join(tunnels)} are reached through a tunnel of ssh, which carries no connections of Monarch's: "
            "run this on a machine of their network"
        )
    hosts = {rank: call(connection.describe()).store_host for rank, connection in connections.items()}
    there = [one for one in mesh.pull(_CERTIFICATES) if one]
    certificates = there[0] if there else passing_certificate(hosts.values())
    return {rank: {"host": host, **certificates} for rank, host in hosts.items()}, certificates


def _is_here(connection: Connection) -> bool:
    return connection.address.startswith("unix:") and not connection.address.startswith(TUNNEL_SCHEME)


def monarch(
    reservation: Reservation, *, nodes: Iterable[int] | None = None, linger: Duration = MONARCH_LINGER_S
) -> Any:
    """Return the nodes as a `monarch.actor.HostMesh`, with one host per node. Everything of it is Monarch's own.

    The first call starts Monarch's worker loop on each node: a rank of the mesh `monarch`, with the environment,
    the GPUs, the directory and the Python of the other ranks. Later calls, also in other kernels, attach to the
    same workers. What actors print is shown in the cell that calls them.

    The workers end with the reservation, with `dev.stop_mesh("monarch")`, with `shutdown()` of the hosts, and when
    the last client that uses them has been gone for a while. Actors end with the client that spawned them.

    Args:
        nodes: the numbers of those that are meant; by default all.
        linger: how long the workers stay when the last client is gone: "10m", "2h", a timedelta or seconds.

    Raises:
        UsageError: torchmonarch is not installed here or on a node, the versions differ, or there is no such node.
        SpawnError: a worker could not start.
        NodeUnreachable: a node does not answer.

    Example:
        >>> hosts = dev.monarch()  # doctest: +SKIP
        >>> procs = hosts.spawn_procs(per_host={"gpus": 8})  # doctest: +SKIP
        >>> trainers = procs.spawn("trainers", Trainer)  # doctest: +SKIP
    """
    linger_s = seconds_of(linger, "linger")
    engine.load()
    over = {addresses: hosts for addresses, hosts in reservation._attached.items() if engine.is_shut_down(hosts)}
    with claimed(reservation.meshes, reservation.name):
        mesh = call(mesh_of(reservation.meshes))
        call(stay_while_used(mesh, linger_s))
        serving = serve(mesh, {address for addresses in over for address in addresses})
    for shut_down in over:
        del reservation._attached[shut_down]
    addresses = chosen(serving.addresses, nodes)
    hosts = reservation._attached.get(addresses)
    if hosts is None:
        if serving.certificates:
            engine.join(serving.addresses[0], serving.certificates)
        tell_deaths(mesh)
        attached = AttachedMesh(mesh)
        engine.call_in_cells(mesh.id, attached)
        hosts = reservation._attached[addresses] = engine.attach(addresses, reservation.name, serving.python, attached)
        engine.after_shutdown(hosts, lambda: _end_if_idle(reservation, serving))
    return hosts


def _end_if_idle(reservation: Reservation, serving: Workers) -> None:
    """Hosts were shut down: when no loop is left, end the ranks that have run them."""
    over = {address for each, hosts in reservation._attached.items() if engine.is_shut_down(hosts) for address in each}
    if over.issuperset(serving.addresses):
        call(reservation.meshes.stop(serving.mesh.id))
