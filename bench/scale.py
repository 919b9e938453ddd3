"""Many nodes: how the client's processor time grows with their number, and what an allocator spends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from bench.harness import PROGRAMS, Bench, CannotRun, Outcome, Row, duration
from monarch_nb.config import HOME_VARIABLE

SIZES = (64, 256, 1024)
_GOALS_S = {64: 0.003, 256: 0.003, 1024: 0.006}
_ALLOCATOR_GOAL_S = 0.002
_IDLE_GOAL = 0.01


def measure(bench: Bench, nodes: int) -> Outcome:
    """Measure a pool of so many nodes."""
    home, project = bench.directory / f"m{nodes}", bench.directory / f"project{nodes}"
    home.mkdir(mode=0o700)
    project.mkdir()
    environment = os.environ | {HOME_VARIABLE: str(home)}
    with allocators(environment, 0, 1) as first, allocators(environment, 1, nodes - 1) as others:
        bench.say(f"{nodes} allocators serve")
        command = [sys.executable, str(PROGRAMS / "many_cells.py"), bench.repeats(30, 10), first, others]
        done = subprocess.run([*map(str, command)], env=environment, cwd=project, capture_output=True, text=True)
    if done.returncode and not done.stdout:
        raise CannotRun(f"the client ended with {done.returncode}: {done.stderr[-600:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    spent = {name: duration(value) for name, value in found.items()}
    reached = (
        found["empty"] <= _GOALS_S[nodes]
        and max(found["first"], found["other"]) <= _ALLOCATOR_GOAL_S
        and found["idle"] <= _IDLE_GOAL
        and found["flood"] <= 1.1 * found["flood_few"]
    )
    return Outcome(
        f"empty cell {spent['empty']}, changed file {spent['changed']}, a line of each rank {spent['line']}, "
        f"flood {spent['flood']} (on 8 ranks {spent['flood_few']}), reserve {spent['reserve']}, "
        f"idle {found['idle']:.2%} of a core; an empty cell costs the first node {spent['first']}, another one "
        f"{spent['other']}",
        reached,
    )


@contextmanager
def allocators(environment: dict[str, str], first: int, count: int, procs: int = 1) -> Iterator[int]:
    """So many allocators in a process; yield its id."""
    command = [sys.executable, str(PROGRAMS / "many_nodes.py"), str(first), str(count), str(procs)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise CannotRun(f"{count} allocators did not start")
            yield process.pid
        finally:
            process.kill()


ROWS = [
    Row(
        f"nodes-{nodes}",
        f"{nodes} simulated nodes: what the client spends",
        f"an empty cell at most {duration(_GOALS_S[nodes])}, of an allocator {duration(_ALLOCATOR_GOAL_S)}; a flood no "
        f"more than on 8 ranks; idle at most {_IDLE_GOAL:.0%} of a core",
        f"{nodes} real allocators with their own servers (Unix sockets), databases and files, but in two processes, "
        "the first node in one of its own (`bench/programs/many_nodes.py`). Each has one rank, a stand-in that "
        "answers at once. The client is real (`many_cells.py`). Everything is processor time, of all threads: of the "
        "client for a cell, a reservation or while it does nothing; of an allocator for an empty cell.",
        partial(measure, nodes=nodes),
    )
    for nodes in SIZES
]
