"""What the nodes of a pool of hosts said last, written down for all processes of this computer: what nodes that do not
answer are called, and which reservations of ours they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.facts.held import current_owner
from monarch_nb.config import TrustPaths
from monarch_nb.errors import TrustError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.trust.heard import Heard, note_heard, read_heard
from monarch_nb.trust.pools import pools_directory


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
