"""From how many nodes on a tree pays: what a cell takes with all nodes directly below the first, and through a tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from bench.harness import PROGRAMS, Bench, CannotRun, Outcome, Row, duration, median
from bench.scale import allocators
from monarch_nb.client.connections import session
from monarch_nb.config import HOME_VARIABLE

SIZES = (8, 16, 32, 64)
_MOST_NODES = 1024

_Taken = dict[str, dict[str, list[float]]]
"""By way and by what is measured: a cell's seconds, of each turn."""


def measure(bench: Bench) -> Outcome:
    """Measure pools of all sizes, and say where nodes with cores of their own are faster through a tree."""
    by_nodes = {nodes: _taken(bench, nodes) for nodes in SIZES}
    hop_s = (min(by_nodes[16]["chain"]["latency"]) - min(by_nodes[8]["chain"]["latency"])) / 8
    star_s = {nodes: min(taken["star"]["first"]) for nodes, taken in by_nodes.items()}
    node_s = (star_s[SIZES[-1]] - star_s[SIZES[0]]) / (SIZES[-1] - SIZES[0])
    pays = crossover(hop_s, node_s)
    return Outcome(
        f"{'; '.join(_said(nodes, taken) for nodes, taken in by_nodes.items())}; a hop takes {duration(hop_s)}, one "
        f"more node costs who is above it {duration(node_s)}: with cores of their own a tree is faster from {pays} "
        "nodes on",
        pays > session.FEW_NODES,
    )


def crossover(hop_s: float, node_s: float) -> int:
    """Return the number of nodes from which a cell is faster through a tree, when each node has cores of its own.

    Args:
        hop_s: from a node to one below it and back.
        node_s: what each further node below costs a node: it serves one after the other.
    """
    level_s = hop_s + (session.FAN_OUT - 1) * node_s
    sizes = range(2, _MOST_NODES)
    return 1 + max(nodes for nodes in sizes if hop_s + (nodes - 2) * node_s <= _levels(nodes) * level_s)


def _levels(nodes: int) -> int:
    """Return how many levels are below the first node of a tree."""
    below = nodes - 1
    return 1 + _levels(-(-below // session.FAN_OUT)) if below else 0


def _said(nodes: int, taken: _Taken) -> str:
    ways = []
    for way in ("star", "tree"):
        best, usual = ({what: duration(of(each)) for what, each in taken[way].items()} for of in (min, median))
        ways.append(
            f"{way} {best['latency']} (median {usual['latency']}), client {best['client']} ({usual['client']}), "
            f"allocators {best['nodes']} ({usual['nodes']})"
        )
    return f"{nodes} nodes: {', '.join(ways)}"


def _taken(bench: Bench, nodes: int) -> _Taken:
    home, project = bench.directory / f"w{nodes}", bench.directory / f"levels{nodes}"
    home.mkdir(mode=0o700)
    project.mkdir()
    environment = os.environ | {HOME_VARIABLE: str(home)}
    with ExitStack() as stack:
        pids = [stack.enter_context(allocators(environment, node, 1, procs=3)) for node in range(nodes)]
        bench.say(f"{nodes} allocators serve")
        command = [sys.executable, str(PROGRAMS / "levels.py"), bench.repeats(30, 10), *pids]
        done = subprocess.run([*map(str, command)], env=environment, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"the client ended with {done.returncode}: {done.stderr[-600:]}")
    found: Any = json.loads(done.stdout)
    taken: _Taken = found
    bench.say(_said(nodes, taken))
    return taken


ROWS = [
    Row(
        "levels",
        "on how many nodes a cell goes through more than one level",
        f"{session.FEW_NODES} nodes, as many as are directly below the first, are no slower so",
        f"{', '.join(map(str, SIZES))} allocators, each in a process of its own, with stand-in ranks. The same client "
        "runs empty cells in turns with all nodes directly below the first, through a tree, and through a chain of 8 "
        "and 16 nodes; best and median of 5 cells each, in 30 turns. All share this machine's cores, so latency is "
        "processor time here. With cores of their own: a hop is what each node of a chain adds. A node serves those "
        "directly below it one after the other, and each further one takes what it adds to the first node's processor "
        "time. So a level takes a hop and all further nodes of it.",
        measure,
    ),
]
