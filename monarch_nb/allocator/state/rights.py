"""What somebody may do with a reservation. Pure.

Its owner may do everything. Others may what the owner has granted: to read, or to run cells as well. Whoever made
the pool has no more rights than others, but that it may release what anybody holds.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from monarch_nb.proto import allocator_pb2 as pb

if TYPE_CHECKING:
    from monarch_nb.allocator.state.state import Lease


class Right(IntEnum):
    """Each includes those before it."""

    NONE = pb.RIGHT_UNSPECIFIED
    READ = pb.RIGHT_READ
    RUN = pb.RIGHT_RUN
    OWN = pb.RIGHT_OWN


def right_of(name: str, lease: Lease) -> Right:
    """Return what a person may do with a reservation."""
    if name == lease.request.owner:
        return Right.OWN
    return Right(lease.shares.get(name, Right.NONE))


def to_wire(right: Right) -> pb.Right.ValueType:
    """Return a right as messages have it."""
    return pb.Right.ValueType(right)
