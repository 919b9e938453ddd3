"""What was given back while no node of it answered: it is remembered in the pool's directory on this computer, and when
a node answers whoever asked it, a kernel, a command or the panel, has it released."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.pools.facts.held import current_owner
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.trust.pools import paths_of
from monarch_nb.trust.private_files import locked, read_private, write_private

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

MOST = 500
"""So many are remembered: nodes may never come back."""

Told = tuple[Connection, pb.StatusReply]


@dataclass(frozen=True)
class LateRelease:
    """What is to be released.

    Attributes:
        reservation_id: empty where nobody knew it: then all that its owner, who we are, held under `name` until then.
        asked_at: when that was, in seconds since the epoch. by: where, or with what: "in the panel".
    """

    reservation_id: str
    name: str
    asked_at: float
    by: str

    def means(self, held: pb.ReservationStatus, me: str) -> bool:
        """Whether it is this reservation, of which a node tells."""
        if self.reservation_id:
            return self.reservation_id == held.reservation_id
        return (self.name, me) == (held.name, held.owner) and held.created_at < self.asked_at

    def end_of(self, held: pb.ReservationStatus) -> pb.Ended:
        """Return what whoever uses the reservation is to know."""
        return pb.Ended(
            reservation_id=held.reservation_id,
            name=held.name,
            owner=held.owner,
            ended_at=self.asked_at,
            by=self.by,
            mesh_ids=[mesh.mesh_id for mesh in held.meshes],
        )


class LateReleases:
    """Those of a pool of hosts. A local one has none: its nodes can be started again.

    Args:
        pool: its name.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._read: tuple[int, tuple[LateRelease, ...]] = (0, ())

    async def add(self, *, reservation_id: str = "", name: str = "", by: str) -> bool:
        """Remember one, in place of an earlier one of the same; return whether that can be done."""
        one = LateRelease(reservation_id, name, self.time_of_new(name), by)
        earlier = [each for each in self._all() if (each.reservation_id, each.name) == (reservation_id, name)]
        return await asyncio.to_thread(self._change, add=[one], drop=earlier)

    def time_of_new(self, name: str) -> float:
        """Return when something of that name is made that is made now: later than what is to be released, also when the
        clock was set back."""
        return max([time.time(), *(one.asked_at for one in self._all() if one.name == name)])

    @property
    def names(self) -> frozenset[str]:
        """What is to be released is called so."""
        return frozenset(one.name for one in self._all())

    async def settle(self, told: Sequence[Told], request: pb.StatusRequest) -> list[Told]:
        """Release what is to be released on nodes that have just said what they hold; return what they say then."""
        if not any(reply.reservations for _, reply in told) or not (late := self._all()):
            return list(told)
        done: set[LateRelease] = set()
        replies = await asyncio.gather(*(_settle_on(*one, late, done, request) for one in told))
        if done:
            await asyncio.to_thread(self._change, drop=done)
        return [(connection, reply) for (connection, _), reply in zip(told, replies, strict=True)]

    def end_of(self, held: pb.ReservationStatus, identity: Identity | None) -> pb.Ended | None:
        """Return what is to be known of a reservation that is to be released, None of any other.

        Args:
            identity: who we are to its nodes.
        """
        me = current_owner(identity)
        return next((one.end_of(held) for one in self._all() if one.means(held, me)), None)

    def without(self, connection: Connection, reply: pb.StatusReply) -> pb.StatusReply:
        """Return what a node said before it was away, with the ends of what is to be released on it."""
        ends = [self.end_of(held, connection.identity) for held in reply.reservations]
        if not any(ends):
            return reply
        left = pb.StatusReply()
        left.CopyFrom(reply)
        del left.reservations[:]
        left.reservations.extend(held for held, end in zip(reply.reservations, ends, strict=True) if end is None)
        left.ended.extend(end for end in ends if end is not None)
        return left

    def _all(self) -> tuple[LateRelease, ...]:
        try:
            path = self._path()
            changed_ns = path.stat().st_mtime_ns
            if changed_ns != self._read[0]:
                self._read = changed_ns, _read(path)
        except (OSError, MonarchNbError):
            return ()
        return self._read[1]

    def _change(self, add: Sequence[LateRelease] = (), drop: Iterable[LateRelease] = ()) -> bool:
        try:
            path = self._path()
            with locked(path.parent):
                left = [*(one for one in _read(path) if one not in drop), *add][-MOST:]
                if left:
                    write_private(path, json.dumps([asdict(one) for one in left], indent=2).encode() + b"\n")
                else:
                    path.unlink(missing_ok=True)
        except (OSError, MonarchNbError):
            return False
        return True

    def _path(self) -> Path:
        return paths_of(self._pool).late_releases


async def _settle_on(
    connection: Connection,
    reply: pb.StatusReply,
    late: Sequence[LateRelease],
    done: set[LateRelease],
    request: pb.StatusRequest,
) -> pb.StatusReply:
    """Release on one node what is to be, and have it tell the other nodes of that; add to `done` what it has taken."""
    me = current_owner(connection.identity)
    due = [(one, held) for held in reply.reservations for one in late if one.means(held, me)]
    if not due:
        return reply
    with contextlib.suppress(MonarchNbError):  # whoever asks next tries again
        for one, held in due:
            others = [peer for peer in held.members if peer.address != reply.node.address]
            message = pb.ReleaseRequest(
                reservation_id=held.reservation_id, absent=others, owner=held.owner, by=one.by, asked_at=one.asked_at
            )
            await connection.unary("Release", message)
            done.add(one)
        now: pb.StatusReply = await connection.unary("Status", request)
        return now
    return reply


def _read(path: Path) -> tuple[LateRelease, ...]:
    try:
        return tuple(LateRelease(**one) for one in json.loads(read_private(path)))
    except (FileNotFoundError, ValueError, TypeError):
        return ()
