"""What many ranks return: how much more of the client's processor time different numbers take than equal ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from bench.harness import PROGRAMS, Bench, CannotRun, Outcome, Row, duration
from bench.scale import allocators
from monarch_nb.config import HOME_VARIABLE

SIZES = (128, 1024)
PROCS = 8
_MOST_ROWS, _MOST_STORED_BYTES = 3, 100_000


def measure(bench: Bench) -> Outcome:
    """Measure cells that return a number on all ranks of each size."""
    told, reached = [], True
    for ranks in SIZES:
        found = _found(bench, ranks)
        parts = [
            f"{name} {duration(each['spent_s'])} ({each['rows']} rows, {each['stored_bytes'] / 1000:.0f} kB)"
            for name, each in found.items()
        ]
        told.append(f"{ranks} ranks: {', '.join(parts)}")
        reached &= all(
            each["rows"] <= _MOST_ROWS and each["stored_bytes"] <= _MOST_STORED_BYTES for each in found.values()
        )
    return Outcome("; ".join(told), reached)


def _found(bench: Bench, ranks: int) -> dict[str, dict[str, float]]:
    home, project = bench.directory / f"v{ranks}", bench.directory / f"values{ranks}"
    home.mkdir(mode=0o700)
    project.mkdir()
    environment = os.environ | {HOME_VARIABLE: str(home)}
    with allocators(environment, 0, ranks // PROCS, PROCS):
        command = [sys.executable, str(PROGRAMS / "many_values.py"), str(bench.repeats(20, 5))]
        done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"the client ended with {done.returncode}: {done.stderr[-600:]}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


ROWS = [
    Row(
        "values",
        "a number of 128 and of 1,024 ranks: what the client spends",
        f"at most {_MOST_ROWS} rows, and {_MOST_STORED_BYTES // 1000} kB in the notebook",
        f"Stand-ins for ranks, {PROCS} on each of many real allocators in one process "
        "(`bench/programs/many_nodes.py`); the client is real, and shows what comes as a notebook does "
        "(`many_values.py`). Processor time of the client, all threads, median of the cells.",
        measure,
    )
]
