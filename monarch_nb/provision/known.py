"""Which pools there are by name, and the refusal of a name that is none: nothing is started under it."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches

from monarch_nb.config import DEFAULT_POOL, POOL_VARIABLE, home_directory
from monarch_nb.errors import NoSuchPool
from monarch_nb.trust.pools import pool_names

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
