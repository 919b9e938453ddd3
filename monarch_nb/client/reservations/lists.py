"""What is held in a pool or in all, and what was; found by name; and what somebody else holds, given back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.held import HeldReservation, is_called, not_found, not_whole
from monarch_nb.client.pools.infos import EndedReservation, ReservationInfo, ended_reservation, reservation_info
from monarch_nb.client.pools.leasing import Leftover, release
from monarch_nb.client.pools.others import how_to_name
from monarch_nb.client.pools.pool import Pool, pool_named, pool_object
from monarch_nb.client.presenting import where_here
from monarch_nb.client.reservations import sharing
from monarch_nb.config import default_pool, patience
from monarch_nb.errors import AccessDenied, MonarchNbError, NodeUnreachable, ReservationNotFound
from monarch_nb.ground.rank_sets import listed
from monarch_nb.provision import jobs
from monarch_nb.provision.known import known_pools

ELSEWHERE_S = patience(3.0)
"""How long pools that nobody has asked for may take to say that they have what was not found."""


@dataclass(frozen=True)
class Holdings:
    """The reservations in several pools.

    Attributes:
        pools: the pools that were asked. reservations: theirs, oldest first in each pool.
        failed: the errors of pools that could not be asked, by name.
        unheld: lines about jobs of engines that wait, or whose nodes nobody holds.
        unheard: lines about nodes that did not answer, and may hold more.
    """

    pools: tuple[str, ...]
    reservations: list[ReservationInfo]
    failed: Mapping[str, MonarchNbError]
    unheld: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()

    @property
    def besides(self) -> list[str]:
        """The lines of `unheld` and `unheard`."""
        return [*self.unheld, *self.unheard]

    @property
    def notes(self) -> list[str]:
        """One line for each pool that could not be asked."""
        return [f"{pool}: {error}" for pool, error in self.failed.items()]


def list_reservations(pool: str | None = None, *, memory: bool = False) -> list[ReservationInfo]:
    """Return every reservation in a pool, oldest first.

    Args:
        pool: its name; by default the default pool.
        memory: measure the memory of every rank too, which takes some milliseconds for each.

    Returns:
        One ReservationInfo for each reservation; an empty list when the pool is not up.

    Raises:
        NoSuchPool: no pool has that name. PoolError: all its allocators have died.

    Example:
        >>> [(info.name, str(info.shape)) for info in monarch_nb.list_reservations()]  # doctest: +SKIP
        [('dev', '2 nodes × 4 procs')]
    """
    chosen = pool_named(pool)
    if not chosen.is_there:
        return []
    return [reservation_info(held, chosen.name) for held in call(chosen.reservations(memory=memory))]


def list_one(pool: str, *, memory: bool = False) -> Holdings:
    """Return what is held in a pool. `memory` as of `list_reservations`."""
    infos = list_reservations(pool, memory=memory)
    return Holdings((pool,), infos, {}, unheard=_unheard([pool], infos))


def list_everywhere(*, memory: bool = False) -> Holdings:
    """Return the reservations in all your pools: the local pools that are up, and all pools of hosts.

    Args:
        memory: as for `list_reservations`.

    Returns:
        The Holdings, with the default pool first. `failed` has the pools that could not be asked.

    Raises:
        MonarchNbError: there is only one pool, and it can not be asked.

    Example:
        >>> [(info.pool, info.name) for info in monarch_nb.list_everywhere().reservations]  # doctest: +SKIP
        [('local', 'dev')]
    """
    pools = sorted(known_pools(), key=lambda pool: pool != default_pool())
    held = call(_ask_pools(pools, memory=memory))
    if len(pools) == 1 and held.failed:
        raise held.failed[pools[0]]
    nodes = {(info.pool, info.name): info.nodes for info in held.reservations}
    answering = [pool for pool in pools if pool not in held.failed]
    unheard = _unheard(answering, held.reservations)
    return replace(held, unheld=tuple(jobs.unheld(nodes, held.failed)), unheard=unheard)


def _unheard(pools: Iterable[str], shown: Collection[ReservationInfo]) -> tuple[str, ...]:
    """Return what there is to say of nodes that did not answer when pools were asked last, but for those that are known
    to hold what is shown."""
    known = {(info.pool, node) for info in shown for node in info.node_names}
    lines = []
    for pool in pools:
        chosen = pool_object(pool)
        if chosen.is_up and (silent := [node for node in chosen.silent if (pool, node) not in known]):
            do, they, hold = ("does", "it", "holds") if len(silent) == 1 else ("do", "they", "hold")
            others = {info.name for info in shown if info.pool == pool and info.held_by_me}
            held = [name for name in chosen.held_on_silent() or () if name not in others]
            last = f" ({listed(held)} of yours, when {they} last did)" if held else ""
            lines.append(
                f"{pool}: {listed(silent)} {do} not answer: reservations that only {they} {hold} are not shown{last}"
            )
    return tuple(lines)


def elsewhere(name: str | None, pool: str) -> str:
    """Return in which other pools somebody may use a reservation of that name (any, without one), and how these are
    named; empty when there is none, or they do not answer at once."""
    found: dict[str, list[str]] = {}
    for info in _held_in_others(pool):
        if _is_meant(info, name) if name else info.held_by_me:
            found.setdefault(info.pool, []).append(info.name)
    where = [f"you hold {', '.join(names)} in the pool {there}" for there, names in found.items()]
    if name:
        where = [f"{name} is held in the pool {there}" for there in found]
    return f"{'; '.join(where)}: {how_to_name(next(iter(found)))}" if found else ""


def pool_of(name: str, pool: str) -> str:
    """Return the pool that a reservation is in: `pool`, or when it is not there the only other one in which we hold
    such, or else may use one; or that of its job, if nobody holds what that brought. `pool` when there is none, or
    several."""
    here = call(_ask_pools([pool], timeout_s=ELSEWHERE_S))
    of_jobs = {job.pool for job in jobs.jobs_of(name)}
    if (here.failed and not of_jobs) or any(_is_meant(info, name) for info in here.reservations):
        return pool
    meant = [info for info in _held_in_others(pool) if _is_meant(info, name)]
    found = {info.pool for info in meant if info.held_by_me} or {info.pool for info in meant}
    found = found or of_jobs
    return found.pop() if len(found) == 1 else pool


def _held_in_others(pool: str) -> list[ReservationInfo]:
    others = [other for other in known_pools() if other != pool]
    return call(_ask_pools(others, timeout_s=ELSEWHERE_S)).reservations if others else []


def _is_meant(info: ReservationInfo, name: str) -> bool:
    """Whether we may use it, and it is called NAME or OWNER/NAME."""
    return bool(info.right) and is_called(name, info.name, info.owner)


async def _ask_pools(pools: Iterable[str], *, memory: bool = False, timeout_s: float | None = None) -> Holdings:
    pools = tuple(pools)
    answers = await asyncio.gather(*(_ask_pool(pool, memory, timeout_s) for pool in pools), return_exceptions=True)
    told: list[ReservationInfo] = []
    failed: dict[str, MonarchNbError] = {}
    for pool, answer in zip(pools, answers, strict=True):
        if isinstance(answer, MonarchNbError):
            failed[pool] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            told += answer
    return Holdings(pools, told, failed)


async def _ask_pool(pool: str, memory: bool, timeout_s: float | None) -> list[ReservationInfo]:
    chosen = pool_named(pool)
    try:
        async with asyncio.timeout(timeout_s):
            if not await asyncio.to_thread(lambda: chosen.is_there):
                return []
            return [reservation_info(held, pool) for held in await chosen.reservations(memory=memory)]
    except TimeoutError:
        raise NodeUnreachable(f"the pool {pool!r} did not answer in time") from None


def list_ended(pool: str | None = None) -> list[EndedReservation]:
    """Return your reservations that ended by themselves or were released elsewhere, oldest first. The list goes back
    as far as the nodes remember.

    Args:
        pool: name of the pool; by default the default pool.

    Example:
        >>> [ended.name for ended in monarch_nb.list_ended()]  # doctest: +SKIP
        ['dev']
    """
    chosen = pool_named(pool)
    if not chosen.is_up:
        return []
    return [ended_reservation(one) for one in call(chosen.ended())]


def release_of(name: str, pool: str | None = None) -> list[Leftover]:
    """End what somebody else holds, OWNER/NAME, as who made the pool may; return what its ranks wrote into copies of
    files, and which nodes did not answer, and are told when they do.

    Raises:
        ReservationNotFound: that owner holds no such.
        AccessDenied: we did not make the pool.
        NodeUnreachable: no node answers.
    """
    for held in call(pool_named(pool).reservations()):
        if is_called(name, held.facts.name, held.facts.owner):
            released = call(release(held.connections.values(), held.reservation_id, by=where_here()))
            if released.failed:
                raise released.failed[0]
            return [*released.kept, *released.later]  # its output is for its owner to read
    owner, _, short = name.partition("/")
    raise ReservationNotFound(f"{owner} holds no {short}")


def find(pool: Pool, name: str | None, notebook: str | None) -> HeldReservation:
    """Return what `attach` attaches to; it raises what that does."""
    if not pool.is_there:
        if there := elsewhere(name, pool.name):
            raise not_found(name, [], pool=pool.name, elsewhere=there)
        if name and pool.name == default_pool():  # which is meant when none is named: that it is not up is no news
            raise not_found(name, [])
    held = call(pool.reservations())
    try:
        matching = _matching(held, name, notebook)
    except AccessDenied as error:
        if there := elsewhere(name, pool.name):
            raise AccessDenied(f"{error}; {there}", error.owner, error.name) from None
        raise
    if not matching:
        several = pool.name if len(known_pools()) > 1 else ""
        silent = pool.silent
        raise not_found(name, held, call(pool.ended()), several, elsewhere(name, pool.name), silent)
    if not matching[-1].usable:
        raise not_whole(matching[-1], pool.name)
    return matching[-1]


def _matching(held: list[HeldReservation], name: str | None, notebook: str | None) -> list[HeldReservation]:
    mine = [one for one in held if one.is_mine]
    if name:
        called = [one for one in mine if is_called(name, one.facts.name, one.facts.owner)]
        return called or sharing.shared(name, held)
    return [one for one in mine if notebook and one.facts.notebook == notebook] or (mine if len(mine) == 1 else [])
