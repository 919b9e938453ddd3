"""Which nodes run in one environment, and pip, once in each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.doctor.diagnosis import name_nodes
from monarch_nb.client.doctor.doctor import ANSWER_TIMEOUT_S
from monarch_nb.client.files.evidence import token_of_node
from monarch_nb.errors import RankDead
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import files_pb2
from monarch_nb.worker.environment_report import Environment, describe

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh


@dataclass(frozen=True)
class NodeEnvironment:
    """An environment of some nodes: what is installed on one of them is there on all of them.

    Attributes:
        nodes: their ranks. names: their names.
        here: whether it is this process's too; None when that is not known.
    """

    nodes: tuple[int, ...]
    names: tuple[str, ...]
    here: bool | None


@dataclass(frozen=True)
class PipReport:
    """What `pip` did.

    Attributes:
        environments: in each of which it ran once.
        changes: whether it may have changed what is installed.
    """

    environments: tuple[NodeEnvironment, ...]
    changes: bool

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return what to tell a user."""
        everyone = [name for environment in self.environments for name in environment.names]
        each = [name_nodes(environment.names, everyone) for environment in self.environments]
        if len(self.environments) == 1 and len(everyone) > 1:
            lines = ["pip ran once: all nodes share one environment"]
        else:
            lines = [f"pip ran once for {', once for '.join(each)}"]
        if self.changes:
            lines.append("modules that are imported already stay as they are until %mesh restart")
            if not any(environment.here in (True, None) for environment in self.environments):
                lines.append("this kernel's own environment is another one, and is as it was: %pip changes it")
        return lines


def may_change(arguments: Iterable[str]) -> bool:
    """Return whether pip may change what is installed. Options may stand before its command.

    Example:
        >>> may_change(["-q", "install", "einops"]), may_change(["list"])
        (True, False)
    """
    return not {"install", "uninstall"}.isdisjoint(arguments)


def pip_code(arguments: Iterable[str]) -> str:
    """Return code for a rank that runs pip; it defines nothing."""
    return f"__import__('monarch_nb.worker.pip').worker.pip.run({', '.join(map(repr, arguments))})"


async def distinct_environments(
    nodes: Mapping[int, Connection], python: str, installs_into_here: str
) -> list[NodeEnvironment]:
    """Find out which nodes install into one place: what one writes there, the others see.

    Args:
        nodes: by rank.
        installs_into_here: where this process's pip installs.

    Raises:
        NodeUnreachable: a node does not answer.
    """
    request = files_pb2.DescribeEnvironmentRequest(python=python)
    calls = (node.unary("DescribeEnvironment", request, ANSWER_TIMEOUT_S) for node in nodes.values())
    replies = await asyncio.gather(*calls)
    places = {rank: Environment.from_json(reply.json).installs_into for rank, reply in zip(nodes, replies, strict=True)}
    found = []
    pending = sorted(nodes)
    while pending:
        first, *others = pending
        try:
            async with token_of_node(nodes[first], places[first]) as token:
                unseen = await token.why_unseen([nodes[rank] for rank in others], [places[rank] for rank in others])
                here: bool | None = await asyncio.to_thread(token.is_here, installs_into_here)
        except OSError:  # nothing can be installed there: its pip will say so
            unseen, here = ["nothing was written"] * len(others), None
        pending = [rank for rank, why_not in zip(others, unseen, strict=True) if why_not]
        members = tuple(rank for rank in (first, *others) if rank not in pending)
        found.append(NodeEnvironment(members, tuple(nodes[rank].name for rank in members), here))
    return found


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
