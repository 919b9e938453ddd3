"""Where a script is on the nodes of a mesh, and whether its ranks there make a world."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import os
from dataclasses import replace
from pathlib import Path

from monarch_nb.client.files.fetch import list_files
from monarch_nb.client.pools.facts.conflicts import start_directory
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.scripts.script import Script
from monarch_nb.errors import FilesError, UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks


def check_ranks(mesh: HeldMesh) -> None:
    """Raise UsageError unless a mesh has equally many ranks on each node, as torchrun's worlds do."""
    numbers = {node: len(ranks) for node, ranks in mesh.core.by_node(mesh.ranks).items()}
    if len(set(numbers.values())) > 1:
        each = ", ".join(f"{counted(number, 'rank')} on node {node}" for node, number in numbers.items())
        raise UsageError(f"a script needs equally many ranks on each node, and {name_ranks(mesh.ranks)} are {each}")


def as_in_copies(script: Script, mesh: HeldMesh) -> Script:
    """Return the script with a path that holds in copies of the project, too: no absolute one does."""
    files = mesh.reservation.files
    if not (script.is_file and files.copies and Path(script.path).is_relative_to(files.root)):
        return script
    return replace(script, path=os.path.relpath(script.path, start_directory(mesh.reservation.spec)))


async def find_on_nodes(mesh: HeldMesh, script: Script) -> None:
    """Look for a script on the nodes of a mesh.

    Raises:
        UsageError: it is not there, or is a directory, on some of them.
    """
    path = script.place

    async def problem_on(rank: int) -> tuple[str, str]:
        connection = mesh.core.connection_of(rank)
        try:
            reply = await list_files(connection, mesh.reservation.id, rank, path)
        except FilesError as error:
            beside = await _names_in(mesh, rank, os.path.dirname(path))
            close = difflib.get_close_matches(os.path.basename(path), beside, n=1, cutoff=0.75)
            told = str(error).removeprefix(f"{connection.name}: ")
            return told + (f"; did you mean {close[0]}?" if close else ""), connection.name
        if reply.is_file:
            return "", connection.name
        is_package = any(entry.path == b"__main__.py" for entry in reply.entries)
        name = script.path.removeprefix("./").strip("/").replace("/", ".")
        hint = f": -m {name} runs it" if is_package else ""
        return f"{script.path} is a directory{hint}", connection.name

    by_node = mesh.core.by_node(mesh.ranks).values()
    names: dict[str, list[str]] = {}
    for problem, name in await asyncio.gather(*(problem_on(ranks[0]) for ranks in by_node)):
        if problem:
            names.setdefault(problem, []).append(name)
    if names:
        raise UsageError("; ".join(f"{', '.join(nodes)}: {problem}" for problem, nodes in names.items()))


async def _names_in(mesh: HeldMesh, rank: int, directory: str) -> list[str]:
    with contextlib.suppress(FilesError):
        reply = await list_files(mesh.core.connection_of(rank), mesh.reservation.id, rank, directory)
        return [os.fsdecode(entry.path) for entry in reply.entries]
    return []


async def nodes_see(mesh: HeldMesh, directory: str) -> bool:
    """Return whether a directory of this computer is there on all nodes of a mesh."""
    by_node = mesh.core.by_node(mesh.ranks).values()
    lists = (
        list_files(mesh.core.connection_of(ranks[0]), mesh.reservation.id, ranks[0], directory) for ranks in by_node
    )
    try:
        return not any(reply.is_file for reply in await asyncio.gather(*lists))
    except FilesError:
        return False
