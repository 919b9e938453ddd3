"""pip on the nodes of a mesh: once in each environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.doctor.environments import (
    NodeEnvironment,
    PipReport,
    distinct_environments,
    may_change,
    pip_code,
)
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import RankDead
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.worker.environment_report import describe

_FORGET_WHAT_IS_NOT_THERE = "__import__('importlib').invalidate_caches()"


def pip(
    mesh: Mesh,
    nodes: Mapping[int, Connection],
    python: str,
    arguments: Iterable[str],
    run: Callable[[Mesh, str], object],
) -> PipReport:
    """Run pip on one rank of each distinct environment, and have all ranks look again for what they did not find.

    Args:
        nodes: those of the mesh, by number.
        python: of the ranks; empty for the nodes' own.
        run: runs code on a mesh to the end.
    """
    words = list(arguments)
    environments = call(distinct_environments(nodes, python, describe().installs_into))
    call(mesh.core.status())
    alive = [rank for rank in mesh.ranks if rank not in mesh.core.dead]
    chosen = [_first_alive(mesh, alive, environment) for environment in environments]
    run(mesh.select(chosen), pip_code(words))
    changes = may_change(words)
    if changes:
        mesh.select(alive).run(_FORGET_WHAT_IS_NOT_THERE, want_value=False)
    return PipReport(tuple(environments), changes)


def _first_alive(mesh: Mesh, alive: Iterable[int], environment: NodeEnvironment) -> int:
    on_nodes = mesh.core.by_node(mesh.ranks)
    ranks = [rank for node in environment.nodes for rank in on_nodes.get(node, ())]
    for rank in ranks:
        if rank in alive:
            return rank
    raise RankDead(f"no rank of {', '.join(environment.names)} is alive ({name_ranks(ranks)}): %mesh restart", ranks)
