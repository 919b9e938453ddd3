"""What a cell costs on a node that runs everybody as their own account."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil

from bench.harness import RANKS, Bench, Outcome, Row, duration, median, seconds
from integration.hosts.lab import Allocator, Lab
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, POOL_VARIABLE

CELLS = 25
"""In a turn: so the other load of the machine is the same for both."""
WAYS = {"direct": (), "through": ("--plain-rooms",)}
GOAL = 1.1


def empty_cell(bench: Bench) -> Outcome:
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    ratios: list[float] = []
    used_s = dict.fromkeys(WAYS, 0.0)
    with _nodes(bench.directory) as nodes:
        meshes = {way: mesh for way, (_, mesh) in nodes.items()}
        for mesh in meshes.values():
            _turn(mesh)
        for _ in range(bench.repeats(60, 12)):
            middles = {}
            for way, mesh in meshes.items():
                before_s = _processor_s(nodes[way][0])
                turn = _turn(mesh)
                used_s[way] += _processor_s(nodes[way][0]) - before_s
                times[way] += turn
                middles[way] = median(turn)
            ratios.append(middles["through"] / middles["direct"])
    ours, theirs = median(times["through"]), median(times["direct"])
    fastest = [duration(statistics.quantiles(times[way], n=10)[0]) for way in WAYS]
    each = [duration(used_s[way] / len(times[way])) for way in WAYS]
    bench.say(f"gateway: fastest tenth {' and '.join(fastest)}; processor time of allocators {' and '.join(each)}")
    ratio = median(ratios)
    return Outcome(duration(ours), ratio <= GOAL, f"direct {duration(theirs)}", f"{ratio:.2f} times as long")


def _turn(mesh: Mesh) -> list[float]:
    return [seconds(lambda: mesh.run("pass")) for _ in range(CELLS)]


@contextmanager
def _nodes(directory: Path) -> Iterator[dict[str, tuple[Allocator, Mesh]]]:
    """Two nodes that serve TLS on loopback, one with a gateway, and a mesh on each."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp") as home:
        ours = {HOME_VARIABLE: home, CONFIG_VARIABLE: str(directory / "config"), POOL_VARIABLE: "lab"}
        (directory / "config").mkdir(mode=0o700)
        with patch.dict(os.environ, ours):
            lab, found = Lab.make(directory / "config", Path(home)), {}
            try:
                for way, flags in WAYS.items():  # what is full does not get the next one
                    node = lab.start(procs=RANKS, flags=flags)
                    found[way] = node, reserve(way, procs=RANKS, preload=[]).mesh
                yield found
            finally:
                lab.end()


def _processor_s(node: Allocator) -> float:
    """Return what the allocators of a node have used: its own, and its room's."""
    allocator = psutil.Process(node.process.pid)
    rooms = [child for child in allocator.children() if "--room" in child.cmdline()]
    return sum(sum(process.cpu_times()[:2]) for process in (allocator, *rooms))


ROWS = [
    Row(
        "gateway",
        f"an empty cell on {RANKS} ranks of a node with `--as-users`, against a node without",
        f"at most {GOAL} times as long",
        f"Two nodes of loopback serve TLS; one has a gateway, whose room is the same user's. Turns of {CELLS} calls of "
        '`mesh.run("pass")` alternate. The median of the turns\' ratios counts.',
        empty_cell,
    )
]
