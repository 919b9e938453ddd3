"""Which pools there are by name, and the refusal of a name that is none; what a local pool is: its shape, kept in its
directory, and what it would become for who asks for more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.config import DEFAULT_POOL, LOG_LIMIT_VARIABLE, POOL_VARIABLE, home_directory
from monarch_nb.errors import NoSuchPool
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import NOBODY
from monarch_nb.times import duration
from monarch_nb.trust.pools import pool_names

if TYPE_CHECKING:
    from monarch_nb.proto import allocator_pb2 as pb

SHAPE_FILE = "pool.json"
"""In the directory of a local pool, from its start to its end."""


def why_no_local_pool() -> str:
    """Return why this machine can have no local pool, and what to use instead; empty where it can."""
    if sys.platform != "linux":
        return "a local pool needs Linux: use a pool of hosts (--pool NAME), or have ssh start nodes (--on ssh:HOST)"
    return ""


def local_pools() -> list[str]:
    """Return the pools of this machine that were started and not ended, also those whose allocators died."""
    return sorted(path.parent.name for path in home_directory().glob(f"*/{SHAPE_FILE}"))


def known_pools() -> list[str]:
    """Return the pools that there are for this user, from here: those of this machine that are up, and all pools of
    hosts."""
    return list(dict.fromkeys([*local_pools(), *pool_names()]))


def is_known(name: str) -> bool:
    """Whether a name means a pool: one that there is, or the default local one, which a reservation starts."""
    return name == DEFAULT_POOL or name in known_pools()


def check_known(name: str) -> None:
    """Refuse a name that means no pool.

    Raises:
        NoSuchPool: the message lists the pools that there are, and the nearest name.
    """
    if not is_known(name):
        raise NoSuchPool(no_such_pool(name), name)


def no_such_pool(name: str) -> str:
    """Return what is said of a name that means no pool.

    Example:
        >>> no_such_pool("labb")  # doctest: +SKIP
        "there is no pool 'labb'; did you mean lab? there are local, lab; monarch-nb up --pool labb makes …"
    """
    why = why_no_local_pool()
    there = list(dict.fromkeys([*([] if why else [DEFAULT_POOL]), *known_pools()]))
    variable = f" ({POOL_VARIABLE} names it)" if os.environ.get(POOL_VARIABLE) == name else ""
    near = "".join(f"did you mean {close}? " for close in get_close_matches(name, there, n=1))
    which = f"there are {', '.join(there)}" if there[1:] else f"there is only {''.join(there)}"
    if not there:
        return f"there is no pool {name!r}{variable}, and {why}"
    makes = "" if why else f"monarch-nb up --pool {name} makes a local pool of that name, "
    return f"there is no pool {name!r}{variable}; {near}{which}; {makes}monarch-nb pool join FILE joins one of hosts"


_MANY_NODES, _MANY_PROCS = 4, 16
"""More of them for each core are rarely meant."""
_START_CORE_S, _START_GB = 2.0, 0.4
"""What a node needs to import torch: so many seconds of a core, so much memory."""


@dataclass(frozen=True)
class PoolShape:
    """What every node of a local pool is.

    Attributes:
        procs: CPU slots of each node.
        gpus: "all" or "none": whether the first node owns this machine's GPUs.
        isolate: every node has copies of the notebook's files instead of the files themselves.
        log_limit: how much of what ranks print each node keeps; "" for the default.
        by_itself: reservations have made it what it is, not `up`: they may add nodes while others hold some.
    """

    procs: int
    gpus: str
    isolate: bool = False
    log_limit: str = ""
    by_itself: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        text = counted(self.procs, "proc") + (", no GPUs" if self.gpus == "none" else "")
        text += ", isolated" if self.isolate else ""
        return text + (f", log limit {self.log_limit}" if self.log_limit else "")


def read_shape(directory: Path) -> PoolShape | None:
    """Return the shape of the pool in a directory; None when there is none."""
    try:
        return PoolShape(**json.loads((directory / SHAPE_FILE).read_text()))
    except FileNotFoundError:
        return None


def write_shape(directory: Path, shape: PoolShape) -> None:
    """Keep the shape of the pool in a directory."""
    if read_shape(directory) == shape:
        return  # there may be no room to write it again, and allocators are to come back on a full disk, too
    partial = directory / f"{SHAPE_FILE}.partial"
    partial.write_text(json.dumps(asdict(shape)))
    partial.replace(directory / SHAPE_FILE)


def wanted_shape(
    now: PoolShape | None, procs: int | None, gpus: str | None, isolate: bool, log_limit: str | None
) -> PoolShape:
    """Return what each node is to be: what is not said is as it is now, if there is a pool."""
    if now is None:
        now = PoolShape(usable_cpus(), "all", log_limit=os.environ.get(LOG_LIMIT_VARIABLE, ""))
    shape = PoolShape(procs or now.procs, gpus or now.gpus, isolate or now.isolate, log_limit or now.log_limit)
    return now if shape == now else shape


@dataclass(frozen=True)
class Change:
    """What a local pool is to become so that a reservation finds room; as text its shape.

    Attributes:
        nodes, procs: how many nodes, of how many slots.
        anew: all nodes are ended first, which hold nothing; else some are added.
    """

    nodes: int
    procs: int
    anew: bool

    def __str__(self) -> str:
        return f"{counted(self.nodes, 'node')} × {counted(self.procs, 'proc')}"


def change_for(
    nodes: int,
    procs: int,
    described: Sequence[pb.DescribeReply],
    *,
    by_itself: bool,
    cores: int,
    but: tuple[str, str] = NOBODY,
) -> Change | None:
    """Return how a local pool makes room for so many nodes and slots of each; None when it should not change: they
    fit, it would take something from somebody, or the pool is as somebody wanted it (not `by_itself`) and in use.

    Nodes on which `but` holds something are not free: name and owner of a reservation that is to have more.

    All its nodes have the same slots: as few as are asked for, when more would be too much for the `cores`. GPUs do not
    grow: 0 `procs` fit.
    """
    free = (node for node in described if all((each.reservation, each.owner) != but for each in node.holders))
    missing = nodes - sum(node.procs_free >= procs for node in free)
    is_idle = not any(node.holders for node in described)
    if not procs or not described or missing <= 0:
        return None
    is_too_wide = procs < described[0].procs and by_itself and too_much(nodes, described[0].procs, cores)
    if is_idle and (procs > described[0].procs or is_too_wide):
        return Change(nodes, procs, anew=True)
    if procs > described[0].procs:
        return None
    return Change(len(described) + missing, described[0].procs, anew=False) if is_idle or by_itself else None


def too_much(nodes: int, procs: int, cores: int) -> str:
    """Return what to say before so much is started on one machine; empty when it is no more than people mean.

    Example:
        >>> too_much(1, 200, 2)
        "1 node × 200 procs share this machine's 2 cores (100 ranks for each); Ctrl-C (■) ends them again"
    """
    if nodes <= _MANY_NODES * cores and nodes * procs <= _MANY_PROCS * cores:
        return ""
    shape = f"{counted(nodes, 'node')} × {counted(procs, 'proc')}"
    said = f"{shape} share this machine's {counted(cores, 'core')} ({nodes * procs // cores} ranks for each)"
    if nodes > _MANY_NODES * cores:
        said += f"; to start them takes about {duration(nodes * _START_CORE_S / cores)}"
        said += f" and {nodes * _START_GB:.0f} GB of memory"
    return f"{said}; Ctrl-C (■) ends them again"
