"""Reserving what others hold: as soon as it is free, in the order in which people have asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.pools.facts.choosing import WAITING_HELPS, Shape
from monarch_nb.client.pools.line import Line
from monarch_nb.client.pools.others import no_nodes, other_pools
from monarch_nb.client.pools.pool import Pool, Progress
from monarch_nb.errors import CapacityError, PoolError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import provisioner_of
from monarch_nb.provision.known import why_no_local_pool
from monarch_nb.times import duration
from monarch_nb.trust.pools import is_pool

T = TypeVar("T")


def with_room(pool: Pool, shape: Shape, say: Progress, take: Callable[[], T]) -> T:
    """Take what is free; else let the pool start, or make room, as far as that takes nothing from anybody."""
    with provisioner_of(pool.name).steady(pool=pool.name, progress=say), contextlib.suppress(CapacityError):
        if pool.is_up:
            return take()
    if not pool.is_up and why_no_local_pool() and not is_pool(pool.name):
        raise PoolError(no_nodes(pool.name))
    if not pool.is_up and (others := other_pools(pool.name)):
        say(f"on this machine; {others}")
    with provisioner_of(pool.name).room(shape.nodes, shape.procs, shape.gpus, pool=pool.name, progress=say):
        return take()


def in_line(pool: Pool, name: str, shape: Shape, longest_s: float | None, say: Progress, take: Callable[[], T]) -> T:
    """The same, and when others hold what is missing, wait in line and try again at every turn.

    Args:
        longest_s: how long to wait; None for as long as it takes.
        take: leaves nothing leased when it raises.

    Raises:
        CapacityError: the pool will never have so much, or the time was up.
    """
    try:
        return with_room(pool, shape, say, take)
    except CapacityError as error:
        missing = error
    line = Line(pool, name, shape, longest_s, say)
    try:
        while _may_come(pool, shape, missing):
            try:
                call(line.turn())
            except TimeoutError:
                waited = duration(longest_s or 0.0)
                why = str(missing).replace(WAITING_HELPS, "")
                raise CapacityError(f"waited {waited} in line, without success: {why}", waiting_helps=True) from None
            try:
                return with_room(pool, shape, say, take)
            except CapacityError as error:
                missing = error
        raise missing
    finally:
        post(line.leave)


def _may_come(pool: Pool, shape: Shape, missing: CapacityError) -> bool:
    """Whether what is missing will be there when others release what they hold: also because the pool can take another
    shape then."""
    if missing.waiting_helps:
        return True
    return pool.is_up and fits_when_idle(pool.name, shape, call(pool.described()))


def fits_when_idle(pool: str, shape: Shape, nodes: Sequence[pb.DescribeReply]) -> bool:
    """Whether a pool can take another shape for this, when nobody holds anything of it any more."""
    idle = [
        pb.DescribeReply(node_id=node.node_id, procs=node.procs, procs_free=node.procs, gpus=node.gpus)
        for node in nodes
    ]
    return bool(provisioner_of(pool).prospect(shape.nodes, shape.procs, idle, pool=pool))
