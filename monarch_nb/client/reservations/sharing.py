"""Who else may see a reservation, or run cells on it: its nodes keep that, each for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal

from monarch_nb.client.connections.asking import all_or_none
from monarch_nb.client.pools.held import HeldReservation, current_owner, is_called
from monarch_nb.client.pools.infos import RIGHTS
from monarch_nb.client.pools.pool import Pool
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.trust.pools import checked_user_name

Grant = Literal["read", "run"]


def checked_grant(right: str) -> Grant:
    """Return what is granted, or raise UsageError."""
    if right == "read":
        return "read"
    if right == "run":
        return "run"
    raise UsageError(f"{right!r} can not be granted: read (output, logs, the panel) or run (cells too)")


def granted_line(owner: str, name: str, pool: str, to: str, grant: Grant) -> str:
    """Return what somebody may from now on, and what they type for it: with whose it is, for they may have one of that
    name. Pure.

    Example:
        >>> granted_line("alice", "dev", "lab", "bob", "run")
        'dev: bob may run cells on it, with your rights on its nodes (%mesh attach alice/dev --pool lab)'
    """
    may = "run cells on it, with your rights on its nodes" if grant == "run" else "see what runs on it"
    return f"{name}: {to} may {may} (%mesh attach {owner}/{name} --pool {pool})"


def shared(name: str, held: Iterable[HeldReservation]) -> list[HeldReservation]:
    """Return what others share with us under a name, NAME or OWNER/NAME.

    Raises:
        AccessDenied: somebody holds that, and does not share it.
        ReservationNotFound: several do.
    """
    short = name.rpartition("/")[2]
    called = [one for one in held if is_called(name, one.facts.name, one.facts.owner)]
    found = [one for one in called if one.facts.right in RIGHTS]
    if len(found) > 1:
        names = ", ".join(f"{one.facts.owner}/{short}" for one in found)
        raise ReservationNotFound(f"several share a {short} with you: {names}")
    if called and not found:
        whose, connection = called[0].facts.owner, next(iter(called[0].nodes.values()))[0]
        raise AccessDenied(
            f"{short} is {whose}'s: {whose} can let you see what runs on it, or run cells too "
            f"(%mesh share {short} --to {current_owner(connection.identity)} --read, or --run)",
            whose,
            short,
        )
    return found


async def share(pool: Pool, reservation_id: str, name: str, grants: Mapping[str, Grant]) -> None:
    """Grant rights to people, by name. On the background loop.

    Raises:
        UsageError: it is in a pool of this machine, or that is no name for a person.
        NodeUnreachable: a node does not answer: nothing is granted.
        AccessDenied: it is another's.
    """
    held = await pool.held(reservation_id, name)
    connection, _ = next(iter(held.nodes.values()))
    if connection.identity is None:
        raise UsageError("nobody else reaches a local pool: share what you hold in a pool of hosts (monarch-nb pool)")
    for to in grants:
        checked_user_name(to)
    if held.missing:
        who = held.absence or f"{held.missing} of its nodes"
        raise NodeUnreachable(f"{name} can be shared when {who} answers again: all its nodes must know who may use it")
    rights = {text: right for right, text in RIGHTS.items()}

    def requests(status: pb.ReservationStatus | None) -> list[pb.ShareRequest]:
        """Return what grants that, or with what a node has told what gives everybody the right from before."""
        return [
            pb.ShareRequest(
                reservation_id=held.reservation_id,
                to=to,
                right=rights[grant] if status is None else status.shares.get(to, pb.RIGHT_UNSPECIFIED),
            )
            for to, grant in grants.items()
        ]

    await all_or_none("Share", {node: (requests(None), requests(status)) for node, status in held.nodes.values()})


async def unshare(pool: Pool, reservation_id: str, name: str, to: str) -> None:
    """End what is granted to somebody, on all nodes that answer. On the background loop.

    Raises:
        NodeUnreachable: a node does not answer: there it goes on until this is said again.
        AccessDenied: it is another's.
    """
    held = await pool.held(reservation_id, name)
    failed = [answer for answer in await _tell(held, to, pb.RIGHT_UNSPECIFIED) if answer is not None]
    if failed and not isinstance(failed[0], NodeUnreachable):
        raise failed[0]
    if away := held.missing + len(failed):
        nodes = "a node does" if away == 1 else f"{away} nodes do"
        raise NodeUnreachable(f"{nodes} not answer: {to} may use {name} there until you run this again")


async def _tell(held: HeldReservation, to: str, right: pb.Right.ValueType) -> list[MonarchNbError | None]:
    """Tell every node; return what each failed with."""

    async def one(node: int) -> MonarchNbError | None:
        request = pb.ShareRequest(reservation_id=held.reservation_id, to=to, right=right)
        try:
            await held.nodes[node][0].unary("Share", request)
        except MonarchNbError as error:
            return error
        return None

    return list(await asyncio.gather(*map(one, held.nodes)))
