"""What `reserve` is given, read and checked; what is held under the name already, or free, or waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from monarch_nb.client.connections.bridge import call, post
from monarch_nb.client.files.project import find_root, read_settings
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.answering import all_away
from monarch_nb.client.pools.choosing import WAITING_HELPS, Shape, lacking
from monarch_nb.client.pools.held import Asked, HeldReservation, check_same, current_owner, not_whole
from monarch_nb.client.pools.leasing import release
from monarch_nb.client.pools.line import Line
from monarch_nb.client.pools.others import no_nodes, other_pools
from monarch_nb.client.pools.pool import Pool, Progress, SpawnOptions, Terms, pool_named
from monarch_nb.client.presenting import where_here
from monarch_nb.config import RANK_TOKEN_VARIABLE, SHARED_VARIABLE
from monarch_nb.errors import CapacityError, MonarchNbError, PoolError, UsageError
from monarch_nb.ground.places import Place
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import NOBODY, provisioner_of
from monarch_nb.provision.known import why_no_local_pool
from monarch_nb.times import Duration, duration, seconds_of
from monarch_nb.trust.identity import expiry_warning
from monarch_nb.trust.pools import is_pool

_OF_A_RANK = frozenset(
    (
        *Place(0, 1, 0, 1, 0, 1).variables,
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", RANK_TOKEN_VARIABLE),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    )
)
"""Variables with another value of which ranks would not find each other, or would not be known."""


def project_of(start: str, files: str | os.PathLike[str] | bool, reload: bool | None) -> tuple[str, bool]:
    """Return the directory whose files ranks work with ("" for none), and whether they reload what changed."""
    if not os.path.isdir(start):
        raise UsageError(f"there is no directory {start} for ranks to start in")
    settings = read_settings(find_root(Path(start)) if isinstance(files, bool) else Path(files).expanduser().absolute())
    if not settings.root.is_dir():
        raise UsageError(f"--files {settings.root}: there is no such directory")
    return str(settings.root) if files is not False else "", settings.reload if reload is None else reload


def limit_of(given: Duration | None, what: str) -> float:
    """Return seconds, 0 when nothing is given."""
    return 0.0 if given is None else seconds_of(given, what)


def checked_name(name: str) -> str:
    """Return the name, or raise UsageError when it is none for a reservation."""
    if name.startswith("-"):
        raise UsageError(f"{name!r} is no name for a reservation: words that begin with - are flags")
    if not name or len(name) > 64 or any(each in "/\\\0" or each.isspace() for each in name):
        raise UsageError(f"{name!r} is no name for a reservation: at most 64 characters, no spaces or slashes")
    return name


def checked_shape(nodes: int, procs: int | None, gpus: int | None) -> Shape:
    """Return what each node is to have, or raise UsageError."""
    for option, value in (("nodes", nodes), ("procs", procs), ("gpus", gpus)):
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{option} must be a whole number of at least 1, not {value!r}")
    if (procs is None) == (gpus is None):
        raise UsageError("ask for procs=N (CPU ranks) or gpus=N, per node: exactly one of them")
    return Shape(nodes, procs or 0, gpus or 0)


def environment_option(chosen: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return what `--env NAME[=VALUE]` adds: a name without a value takes the client's.

    Raises:
        UsageError: what no process can have, or what every rank has of its own.
    """
    environment = {}
    for name, value in (chosen or {}).items():
        text = os.environ.get(name) if value is None else value
        if not name or "=" in name:
            raise UsageError(f"env: no variable can be called {name!r}")
        if name in _OF_A_RANK:
            raise UsageError(f"env: {name} is none to choose: monarch_nb sets it in every rank, as torchrun does")
        if not isinstance(text, str | None):
            raise UsageError(f"env: {name} is {text!r}, which is no string: {{{name!r}: {str(text)!r}}} is")
        if "\0" in name + (text or ""):
            raise UsageError(f"env: {name!r} has a zero byte, which no variable can have")
        if text is not None:
            environment[name] = text
    return environment


def unset_note(chosen: Mapping[str, str | None] | None) -> str:
    """Return what to say of names without a value that this process does not have, either; empty when it has all.

    Example:
        >>> unset_note({"HF_TOKNE": None})
        '--env HF_TOKNE changes nothing: it is not set here'
    """
    unset = [f"--env {name}" for name, value in (chosen or {}).items() if value is None and name not in os.environ]
    if not unset:
        return ""
    return (
        f"{', '.join(unset)} {'changes nothing: it is' if len(unset) == 1 else 'change nothing: they are'} not set here"
    )


def shared_option(directory: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return what `--shared DIR` adds to the ranks' environment; a relative one is this process's."""
    return {} if directory is None else {SHARED_VARIABLE: str(Path(directory).expanduser().absolute())}


def working_directory(directory: str | os.PathLike[str] | None, notebook: str | None) -> str:
    """Return where ranks start: as asked, else the notebook's directory, else the current one."""
    if directory is not None:
        return str(Path(directory).expanduser().absolute())
    with contextlib.suppress(OSError):
        if notebook and Path(notebook).is_file():
            return str(Path(notebook).absolute().parent)
    return os.getcwd()


T = TypeVar("T")


def with_room(pool: Pool, shape: Shape, say: Progress, take: Callable[[], T], but: tuple[str, str] = NOBODY) -> T:
    """Take what is free; else let the pool start, or make room, as far as that takes nothing from anybody.

    Args:
        but: name and owner of a reservation that is to have more nodes: its own are not free for it.
    """
    with provisioner_of(pool.name).steady(pool=pool.name, progress=say), contextlib.suppress(CapacityError):
        if pool.is_up:
            return take()
    if not pool.is_up and why_no_local_pool() and not is_pool(pool.name):
        raise PoolError(no_nodes(pool.name))
    if not pool.is_up and (others := other_pools(pool.name)):
        say(f"on this machine; {others}")
    room = provisioner_of(pool.name).room
    with room(shape.nodes, shape.procs, shape.gpus, pool=pool.name, but=but, progress=say):
        return take()


def in_line(
    pool: Pool,
    name: str,
    shape: Shape,
    longest_s: float | None,
    say: Progress,
    take: Callable[[], T],
    but: tuple[str, str] = NOBODY,
) -> T:
    """The same, and when others hold what is missing, wait in line and try again at every turn.

    Args:
        longest_s: how long to wait; None for as long as it takes.
        take: leaves nothing leased when it raises.
        but: as `with_room` has it.

    Raises:
        CapacityError: the pool will never have so much, or the time was up.
    """
    try:
        return with_room(pool, shape, say, take, but)
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
                return with_room(pool, shape, say, take, but)
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


def has_room(pool: str, nodes: int, per_node: int, kind: str, *, instead: str = "") -> bool:
    """Return whether a pool can take a reservation of a shape as it is; True when it does not say.

    Args:
        kind: procs or gpus.
        instead: the name of one of ours that is released before.
    """
    shape = Shape(nodes, 0, per_node) if kind == "gpus" else Shape(nodes, per_node, 0)
    with contextlib.suppress(MonarchNbError):
        chosen = pool_named(pool)
        described, owner = call(chosen.described()), current_owner(chosen.identity)
        for node in described:
            own = [each for each in node.holders if (each.reservation, each.owner) == (instead, owner)]
            node.procs_free += sum(each.procs for each in own)
            node.gpus_free += sum(each.gpus for each in own)
            for each in own:
                node.holders.remove(each)
        prospect = provisioner_of(pool).prospect
        return not lacking(shape, described) or bool(prospect(nodes, shape.procs, described, pool=pool))
    return True


def fits_when_idle(pool: str, shape: Shape, nodes: Sequence[pb.DescribeReply]) -> bool:
    """Whether a pool can take another shape for this, when nobody holds anything of it any more."""
    idle = [
        pb.DescribeReply(node_id=node.node_id, procs=node.procs, procs_free=node.procs, gpus=node.gpus)
        for node in nodes
    ]
    return bool(provisioner_of(pool).prospect(shape.nodes, shape.procs, idle, pool=pool))


def taken(
    chosen: Pool,
    name: str,
    asked: Asked,
    options: SpawnOptions,
    terms: Terms,
    replace: bool,
    waits: bool,
    longest_s: float | None,
    held_here: Collection[str],
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one; `waits` for what others hold.

    Args:
        held_here: the ids of those of that name that this process uses.
    """
    chosen.heal(say)
    if chosen.identity and (warning := expiry_warning(chosen.identity)):
        say(warning)

    def take() -> tuple[HeldReservation, bool]:
        taken = call(_reserve(chosen, name, asked, options, terms, replace, held_here, say), undo=give_back)
        if chosen.namesakes:
            say(chosen.namesakes)
        return taken

    if not waits:
        return with_room(chosen, asked.shape, say, take)
    return in_line(chosen, name, asked.shape, longest_s, say, take)


async def _reserve(
    pool: Pool,
    name: str,
    asked: Asked,
    options: SpawnOptions,
    terms: Terms,
    replace: bool,
    held_here: Collection[str],
    say: Progress,
) -> tuple[HeldReservation, bool]:
    """Return the reservation of that name, and whether it is a new one."""
    held = await pool.find(name, say)
    if held is not None:
        replace = replace or pool.end_of(held.reservation_id) is not None  # one node's time is up before another's
        if not replace:
            check_same(held, asked)
            if held.complete:
                return held, False
            if held.missing:
                raise await asyncio.to_thread(not_whole, held, pool.name)
        if held.complete or replace:
            say(f"releasing {name}")
        released = await release(held.connections.values(), held.reservation_id, by=where_here())
        for leftover in released.leftovers:
            say(str(leftover))
        for core in MeshCore.of_reservation(held.reservation_id):
            core.close()  # whoever of this process still has it knows that it is over
    elif pool.silent and not replace:
        _check_not_lost(pool, name, held_here)
    return await pool.reserve(name, asked.shape, options, terms, say), True


def _check_not_lost(pool: Pool, name: str, held_here: Collection[str]) -> None:
    """Raise NodeUnreachable when this process knows that nodes hold it that do not answer."""
    for reservation_id in held_here:
        if (away := pool.away(reservation_id)) and pool.end_of(reservation_id) is None:
            raise all_away(name, away)


async def give_back(reserved: tuple[HeldReservation, bool]) -> None:
    """Release what was reserved for somebody who has pressed Ctrl-C."""
    held, is_new = reserved
    if is_new:
        await release(held.connections.values(), held.reservation_id)
