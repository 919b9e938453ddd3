"""What comes of asking nodes: which answer, which do not and why, what they said last, and who is called alike."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.held import current_owner
from monarch_nb.config import TrustPaths, cadence, gap, patience
from monarch_nb.errors import MonarchNbError, NodeUnreachable, TrustError, VersionMismatch
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.trust.heard import Heard, note_heard, read_heard
from monarch_nb.trust.pools import paths_of, pools_directory
from monarch_nb.trust.revocation import Revocations

if TYPE_CHECKING:
    from monarch_nb.client.connections.connection import Connection
    from monarch_nb.trust.identity import Identity

LATE_S = cadence(1.0)
"""A node that has not answered by then is named to who waits."""
SLOW_S = cadence(2.0)
"""A part of a step that takes longer is named."""


@contextlib.contextmanager
def said_for_which(
    calls: Mapping[Connection, asyncio.Future[pb.StatusReply]], say: Callable[[str], None] | None
) -> Iterator[None]:
    """Say which nodes have not answered yet, when that takes long."""

    def tell() -> None:
        if say and (late := [connection.name for connection, one in calls.items() if not one.done()]):
            say(f"waiting for {', '.join(late)}: no answer yet")

    timer = asyncio.get_running_loop().call_later(LATE_S, tell)
    try:
        yield
    finally:
        timer.cancel()


class Step:
    """A step of what somebody waits for: when a part of it takes long, it says what that waits for.

    Example:
        with Step("leasing 2 nodes × 4 procs", say) as step:
            step.waits_for("node0 to answer")
    """

    def __init__(self, title: str, say: Callable[[str], None]) -> None:
        self._title, self._say = title, say
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Step:
        self._say(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def waits_for(self, what: str) -> None:
        """The next part begins."""
        self.__exit__()
        said = f"{self._title}: waits for {what}"
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._say, said)


def each_once(told: Iterable[tuple[Connection, pb.StatusReply]]) -> list[tuple[Connection, pb.StatusReply]]:
    """Return what nodes said without those that are on the pool's list under another address as well."""
    first: dict[str, tuple[Connection, pb.StatusReply]] = {}
    for connection, reply in told:
        first.setdefault(reply.node.token or connection.address, (connection, reply))
    return list(first.values())


def mismatch(connection: Connection, node: pb.DescribeReply) -> VersionMismatch | None:
    """Return the error that says that a node speaks another protocol than we do; None when it speaks ours."""
    if node.protocol == config.PROTOCOL:
        return None
    return VersionMismatch(
        f"{connection.name} runs monarch_nb {node.version} (protocol {node.protocol}), this is {config.VERSION} "
        f"(protocol {config.PROTOCOL}): install the same version on both and restart the older one",
        client=config.VERSION,
        node=node.version,
    )


def keep(pool: str, told: Collection[tuple[Connection, pb.StatusReply]], silent: Collection[str]) -> None:
    """Write down what nodes have just said. A disk that refuses costs only that comfort.

    Nothing is kept of a local pool, whose nodes have names anyway, and of one of jobs, which goes with these.

    Args:
        told: by nodes that are called as they call themselves.
        silent: the addresses of those that did not answer.
    """
    paths = _paths(pool)
    if not paths.hosts.exists() or paths.jobs.exists():
        return
    heard = {
        node.address: Heard(node.name, node.node_address, _held(node, reply))
        for node, reply in sorted(told, key=lambda one: one[0].address)
    }
    with contextlib.suppress(OSError, TrustError):
        note_heard(paths, heard, silent)


def held_on(pool: str, addresses: Collection[str]) -> Sequence[str] | None:
    """Return the names of what we held on some nodes when these were heard last; None when one was never heard."""
    heard = read_heard(_paths(pool))
    if not heard.keys() >= set(addresses):
        return None
    return sorted({name for address in addresses for name in heard[address].held})


def _held(node: Connection, reply: pb.StatusReply) -> tuple[str, ...]:
    me = current_owner(node.identity)
    return tuple(sorted(held.name for held in reply.reservations if held.owner == me))


def _paths(pool: str) -> TrustPaths:
    return TrustPaths(pools_directory() / pool)


PROBED_AT_ONCE = 8
"""So many others does each node try: of all of them the next ones in a ring, so that everybody is tried by some."""
WHAT_HELPS = (
    "Gloo and NCCL take any port between nodes: let these pass, or name another interface (allocator --interface)"
)
WHAT_PASSES = (
    "allocators call each other at the addresses that they advertise: let that port pass between nodes, and have each "
    "listen on an address of its network, not on localhost (allocator --listen, --advertise)"
)


class NotConnected(NodeUnreachable):
    """Nodes that do not reach each other.

    Attributes:
        worst: the one that most of what does not work has to do with, of those that others may stand in for; "" for
            none.
    """

    def __init__(self, ways: Sequence[Way], stay: Collection[str] = ()) -> None:
        shown = "\n".join(f"  {way.trouble}" for way in ways[:10])
        more = f"\n  and {len(ways) - 10} ways more" if len(ways) > 10 else ""
        helps = WHAT_PASSES if any(way.unreachable for way in ways) else WHAT_HELPS
        super().__init__(f"these nodes do not reach each other:\n{shown}{more}\n{helps}")
        self.worst = worst_of(ways, stay)


@dataclass(frozen=True)
class Way:
    """From one node to another.

    Attributes:
        start, end: names of the nodes.
        host: address of the other's interface for collectives.
        unreachable: why the other allocator can not be reached; empty when it can.
        refused: why nobody can connect to that interface from there; empty when that works.
        bytes_per_s: how fast content goes; 0.0 when it was not measured.
    """

    start: str
    end: str
    host: str = ""
    unreachable: str = ""
    refused: str = ""
    bytes_per_s: float = 0.0

    @property
    def trouble(self) -> str:
        """What does not work; empty when all does."""
        if self.unreachable:
            return f"{self.start} does not reach {self.end}: {self.unreachable}"
        return f"{self.start} can not connect to {self.end} at {self.host} {self.refused}" if self.refused else ""


async def ways_between(nodes: Sequence[Connection], size_bytes: int = 0) -> list[Way]:
    """Have nodes try each other. On the background loop.

    Args:
        size_bytes: how much each sends to the next, to learn how fast that goes; at 0 they only connect.

    Raises:
        NodeUnreachable: a node does not answer.
    """
    if size_bytes:  # one after the other: together they would share the network
        found = [way for index in range(len(nodes)) for way in await _ways_from(nodes, index, 1, size_bytes)]
        return found if len(nodes) > 1 else []
    reach = min(len(nodes) - 1, PROBED_AT_ONCE)
    answers = await asyncio.gather(*(_ways_from(nodes, index, reach, 0) for index in range(len(nodes))))
    return [way for answer in answers for way in answer]


async def _ways_from(nodes: Sequence[Connection], index: int, reach: int, size_bytes: int) -> list[Way]:
    start = nodes[index]
    ends = [nodes[(index + step) % len(nodes)] for step in range(1, min(reach, len(nodes) - 1) + 1)]
    peers = [files_pb2.Peer(node_id=end.name, address=end.node_address) for end in ends]
    reply: pb.ProbeReply = await start.unary(
        "Probe", pb.ProbeRequest(peers=peers, size_bytes=size_bytes), patience(120.0)
    )
    return [
        Way(start.name, end.name, probe.host, probe.unreachable, probe.refused, probe.bytes_per_s)
        for end, probe in zip(ends, reply.peers, strict=True)
    ]


async def check_ways(nodes: Sequence[Connection], stay: Sequence[Connection] = ()) -> None:
    """Make sure that nodes of a network reach each other, before ranks wait for each other in vain. On the background
    loop.

    Args:
        stay: nodes besides, which no others can stand in for.

    Raises:
        NotConnected: some do not; the message says which, and what helps.
    """
    everyone = [*nodes, *stay]
    if all(node.identity is None for node in everyone):
        return  # all on this machine
    if blocked := [way for way in await ways_between(everyone) if way.trouble]:
        raise NotConnected(blocked, {node.name for node in stay})


def worst_of(blocked: Sequence[Way], stay: Collection[str] = ()) -> str:
    """Return the node that most of what does not work has to do with: of two, the one that can not be reached; "" when
    it has to do only with those that stay. Pure."""
    parts = Counter(name for way in blocked for name in (way.start, way.end) if name not in stay)
    ends = Counter(way.end for way in blocked)
    return max(parts, key=lambda name: (parts[name], ends[name]), default="")


def speed_of(ways: Sequence[Way]) -> float:
    """Return how fast the slowest way is, in bytes a second; 0.0 when none was measured."""
    return min((way.bytes_per_s for way in ways if way.bytes_per_s), default=0.0)


class Messenger:
    """Knows the newest list of a pool that lies on this computer.

    Args:
        pool: its name.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._read: tuple[int, Revocations] = (0, Revocations())

    async def bring(self, connection: Connection, number: int) -> None:
        """Bring a node the list if it has an older one, numbered `number`. One that does not take it is asked again."""
        if connection.identity is None:
            return
        newest = self._newest(connection.identity)
        if newest.number > number:
            with contextlib.suppress(MonarchNbError):
                await connection.unary("Revoke", pb.RevokeRequest(revocations=newest.pem))

    def _newest(self, identity: Identity) -> Revocations:
        with contextlib.suppress(OSError, TrustError):
            path = paths_of(self._pool).revoked
            changed_ns = path.stat().st_mtime_ns
            if changed_ns != self._read[0]:
                self._read = changed_ns, Revocations.load(path, identity.authority)
        return self._read[1]


CONNECT_S = gap(2.0)
"""A node that has not let us connect by then is behind something that swallows what we send."""
_REFUSED = os.strerror(errno.ECONNREFUSED).lower()


def why_silent(address: str, timeout_s: float = CONNECT_S) -> str:
    """Return why nobody can connect to an address, as the system has it; empty when one can, or it is on this machine.
    May block."""
    if address.startswith("unix"):  # also through ssh
        return ""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def what_helps(why: str, address: str) -> str:
    """Return what to do when nobody can connect to an address; empty where nothing is known. Pure.

    Example:
        >>> what_helps("timed out", "host2:7878")
        'is that host up, and does a firewall let port 7878 pass?'
    """
    port = address.rpartition(":")[2]
    if not why:
        return ""
    if why == _REFUSED:
        return f"start its allocator there, on port {port} (monarch-nb allocator)"
    if "name" in why:
        return "is the name right? monarch-nb pool list shows what was added"
    return f"is that host up, and does a firewall let port {port} pass?"


def nobody_answers(pool: str, identity: Identity | None, held: Sequence[str] | None = None) -> str:
    """Return what is known of a pool when no node of it answers, and what to do. Pure.

    Args:
        identity: who we are to it; None for a local one.
        held: the names of what its nodes held of ours when they last answered; None when that is not known.

    Example:
        >>> nobody_answers("lab", alice, ["dev"])  # doctest: +SKIP
        'monarch-nb status --pool lab says more; they held dev of yours when they last answered; its ranks go on'
    """
    more = f"monarch-nb status --pool {pool} says more"
    if identity is None:
        return more
    if held is None:
        return f"{more}; reservations there go on"
    if not held:
        return f"{more}; they held nothing of yours when they last answered"
    whose = "its" if len(held) == 1 else "their"
    return f"{more}; they held {listed(held)} of yours when they last answered; {whose} ranks go on"


def all_away(name: str, nodes: Sequence[str], runs: Sequence[str] = ()) -> NodeUnreachable:
    """Return the error that says that no node of a reservation answers, and what can be done. Pure.

    Args:
        nodes: what each is called, and since when it does not answer where that is known.
        runs: what is known to go on there.
    """
    do = "does" if len(nodes) == 1 else "do"
    known = f" ({listed(runs)})" if runs else ""
    ways = f"%mesh release {name} needs one that answers, and %mesh reserve {name} --replace begins anew on others"
    return NodeUnreachable(
        f"{name!r} is held, but {listed(nodes)} {do} not answer: its ranks go on{known}, and are here again "
        f"when {'it' if len(nodes) == 1 else 'they'} {do}; {ways}"
    )


def way_on(name: str, replacement: str, *, is_last: bool) -> str:
    """Return what to do about nodes of other machines that do not answer, however many these are. Pure.

    Args:
        name: of the reservation.
        replacement: what `%mesh replace` does then; empty where it can do nothing.
        is_last: no node of the mesh answers, so none can be told of another in its place.
    """
    follows = "the output of their ranks follows here when they answer again"
    if is_last:
        return f"{follows}; if they never do, %mesh reserve {name} --replace begins anew on others"
    return "; ".join(filter(None, [follows, "until then -t leaves them out", replacement]))


def needed(
    node: Connection, ranks: Sequence[int], others: Sequence[int], *, name: str, replacement: str, is_last: bool
) -> str:
    """Return what there is to say when a node does not answer and what is to run needs it. Pure.

    Args:
        ranks: its ranks of those that are to run. others: those of them that could run without it.
        name, replacement, is_last: as of `way_on`.
    """
    leave_out = f"-t {format_ranks(others)} leaves {name_ranks(ranks)} out" if others else ""
    if node.is_local:
        return "; ".join(filter(None, [node.absence, leave_out]))
    if is_last:
        gone = f"{node.absence}, with {name_ranks(ranks)}, and no other node of their mesh answers"
        return f"{gone}: they come back only with their nodes; %mesh reserve {name} --replace begins anew, on others"
    without = ", ".join(filter(None, [replacement, "%mesh release works without it"]))
    return f"{node.absence}, with {name_ranks(ranks)}: {'; '.join(filter(None, [leave_out, without]))}"


async def reasons(silent: Mapping[str, tuple[str, MonarchNbError]]) -> dict[str, str]:
    """Return why each node does not answer, in a few words, by name.

    Args:
        silent: the address of each, and what asking it ended with.
    """
    whys = await asyncio.gather(*(asyncio.to_thread(why_silent, address) for address, _ in silent.values()))
    return {
        name: why or str(error).removeprefix(f"{name} ")
        for (name, (_, error)), why in zip(silent.items(), whys, strict=True)
    }


def namesakes(nodes: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the addresses of the nodes behind each name that several have.

    Args:
        nodes: name and address of each that answers; an address that stands there twice is one node.

    Example:
        >>> namesakes([("gpu1", "10.0.0.1:7878"), ("gpu1", "10.0.0.2:7878"), ("gpu2", "10.0.0.3:7878")])
        {'gpu1': ['10.0.0.1:7878', '10.0.0.2:7878']}
    """
    addresses: dict[str, dict[str, None]] = {}
    for name, address in nodes:
        addresses.setdefault(name, {})[address] = None
    return {name: list(found) for name, found in addresses.items() if len(found) > 1}


def warning(nodes: Iterable[tuple[str, str]]) -> str:
    """Return what there is to say of hosts that are called alike; empty when each has a name of its own."""
    return "\n".join(
        f"{len(addresses)} nodes are called {name} ({', '.join(addresses)}): start their allocators with "
        "--node-id, each with a name of its own"
        for name, addresses in namesakes(nodes).items()
    )


def same_node(nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the addresses that are one node's which has another address as well, each with the first one. Pure.

    Args:
        nodes: address and token of each that answers: one that no other allocator has.

    Example:
        >>> same_node([("host1:7878", "a"), ("10.0.0.1:7878", "a"), ("host2:7878", "b")])
        {'10.0.0.1:7878': 'host1:7878'}
    """
    first: dict[str, str] = {}
    return {address: there for address, token in nodes if (there := first.setdefault(token, address)) != address}


def told_apart(name: str, address: str) -> str:
    """Return what a node is called in messages when another one has its name."""
    return f"{name} at {address}"
