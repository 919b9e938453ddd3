"""The other pools that somebody has: the likely mistake is to have forgotten which one is meant."""

from __future__ import annotations

from monarch_nb.config import DEFAULT_POOL, POOL_VARIABLE, TrustPaths
from monarch_nb.ground.rank_sets import listed
from monarch_nb.provision import provisioner_of
from monarch_nb.provision.known import is_known, no_such_pool, why_no_local_pool
from monarch_nb.trust.pools import is_pool, pool_names, pools_directory


def _is_of_jobs(pool: str) -> bool:
    """Whether a pool was made for jobs of an engine."""
    return TrustPaths(pools_directory() / pool).jobs.exists()


def how_to_name(pool: str) -> str:
    """Return how one says which pool is meant."""
    return f"--pool {pool}, or {POOL_VARIABLE}={pool}"


def other_pools(name: str) -> str:
    """Return which pools of hosts there are besides one, and how they are named; empty when there are none.

    Example:
        >>> other_pools("local")  # doctest: +SKIP
        'you have the pool lab: --pool lab, or MONARCH_NB_POOL=lab'
    """
    others = [other for other in pool_names() if other != name and not _is_of_jobs(other)]
    if not others:
        return ""
    what = "the pool" if len(others) == 1 else "the pools"
    return f"you have {what} {', '.join(others)}: {how_to_name(others[0])}"


def no_nodes(name: str) -> str:
    """Return what there is to say of a pool without any node, and what to do."""
    if not is_known(name):
        return no_such_pool(name)
    others = other_pools(name)
    if _is_of_jobs(name):
        return f"no node of the pool {name!r} is there: %mesh list says what its jobs wait for"
    if is_pool(name):
        said = f"the pool {name!r} has no nodes yet: monarch-nb pool add {name} HOST says where one is"
    elif why := why_no_local_pool():
        said = why
    else:
        up = "monarch-nb up" if name == DEFAULT_POOL else f"monarch-nb up --pool {name}"
        said = f"no pool {name!r} is up: {up} starts one, and so does %mesh reserve"
        if died := [node.node_id for node in provisioner_of(name).nodes(pool=name) if node.has_died]:
            they, them = "are not started by themselves", "them"
            if len(died) == 1:
                they, them = "is not started by itself", "it"
            said = f"{listed(died)} died and {they} now: {up} starts {them} again"
    return f"{said}; {others}" if others else said


def how_to_add(name: str, nodes: int) -> str:
    """Return how a pool comes to have so many nodes, behind what was said; empty for one of jobs: its engine is asked.

    Example:
        >>> how_to_add("local", 4)
        '; monarch-nb up --nodes 4 adds nodes to a local pool'
    """
    if not is_pool(name):
        return f"; monarch-nb up --nodes {nodes} adds nodes to a local pool"
    return "" if _is_of_jobs(name) else f"; monarch-nb pool add {name} HOST says where another one is"
