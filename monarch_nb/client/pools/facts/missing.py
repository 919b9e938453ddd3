"""Why a reservation can not be found, or not be used: the errors that say so, with what there is instead."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb import config
from monarch_nb.allocator.state.limits import released
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.errors import MonarchNbError, NodeUnreachable, ReservationNotFound
from monarch_nb.ground.rank_sets import listed
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.jobs import trouble


def raise_if_released(ended: pb.Ended | None) -> None:
    """Raise ReservationReleased, or ReservationExpired, when a reservation has ended."""
    if ended is not None:
        raise released(ended)


def not_found(
    name: str | None,
    held: Sequence[HeldReservation],
    ended: Sequence[pb.Ended] = (),
    pool: str = "",
    elsewhere: str = "",
    silent: Sequence[str] = (),
) -> ReservationNotFound:
    """Return the error that lists what there is, and says why that of this name is gone, or where it is.

    Args:
        pool: where it was looked for, when there are several. elsewhere: in which others it is, in words.
        silent: nodes that were not heard.
    """
    if gone := [one for one in ended if one.name == name]:
        return released(gone[-1])
    mine = [f"{one.facts.name} ({one.shape})" for one in held if one.is_mine]
    what = f"no reservation {name!r}" if name else "nothing to attach to"
    what += f" in the pool {pool}" if pool else ""
    if silent:
        what += f" on the nodes that answer ({listed(silent)} {'does' if len(silent) == 1 else 'do'} not)"
    if elsewhere:
        return ReservationNotFound(f"{what}; {elsewhere}")
    there = f"you hold {', '.join(mine)}" if mine else "you hold none: %mesh reserve NAME --nodes 1 --procs 4"
    return ReservationNotFound(f"{what}; {there}")


def not_whole(held: HeldReservation, pool: str = "") -> MonarchNbError:
    """Return the error that says why a reservation can not be used; given its pool, also why a job lost nodes."""
    name, facts = held.facts.name, held.facts
    if held.missing:
        said = f": {why}" if (why := trouble(pool)) else ""
        who = held.absence or f"{held.missing} of its {facts.nodes} nodes"
        do = "does" if len(held.absent) == 1 else "do"
        ways = f"; %mesh attach {name} uses the others" if held.absent else ""
        if held.meshes and held.main is None:
            anew = f"%mesh reserve {name} --nodes {facts.nodes} --{held.shape.kind}s {held.shape.per_node} --replace"
            ways = f", and {config.MAIN_MESH} had ranks only there: {anew} gives the other nodes back and begins anew"
        return NodeUnreachable(f"{name!r} is held, but {who} {do} not answer{said}{ways}")
    return ReservationNotFound(
        f"{name!r} is not ready: another process is just reserving it, or died half-way (then it is given back within "
        f"{config.PROVISIONAL_LEASE_S:g} s)"
    )
