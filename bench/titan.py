"""TorchTitan's output on 16 nodes of 8 ranks: how many rows it has in a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.harness import PROGRAMS, Bench, CannotRun, Outcome, Row, duration
from bench.scale import allocators
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.ground import escapes

NODES, PROCS = 16, 8
RECORDED = Path(__file__).parents[1] / "tests" / "recorded" / "titan.json"


def measure(bench: Bench) -> Outcome:
    """Measure one cell in which every rank prints what TorchTitan does in 20 steps."""
    home, project = bench.directory / "titan", bench.directory / "titans"
    home.mkdir(mode=0o700)
    project.mkdir()
    environment = os.environ | {HOME_VARIABLE: str(home)}
    with allocators(environment, 0, NODES, PROCS):
        command = [sys.executable, str(PROGRAMS / "many_titans.py"), str(RECORDED)]
        done = subprocess.run(command, env=environment, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"the client ended with {done.returncode}: {done.stderr[-600:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    texts = json.loads(RECORDED.read_text())["train"]
    of_one = len(texts[0].splitlines())
    lines = sum(len(texts[rank % len(texts)].splitlines()) for rank in range(NODES * PROCS))
    marks = ", ".join(map(escapes.strip, found["marked"])) or "none"
    return Outcome(
        f"{found['rows']} rows ({found['stored_bytes'] / 1000:.0f} kB) of {found['lines']:,} lines; marked: {marks}; "
        f"the client's processor time {duration(found['spent_s'])}",
        found["rows"] <= of_one and "[77]! loss: nan" in marks and found["lines"] == lines,
        "one rank alone",
        f"{of_one} rows",
    )


ROWS = [
    Row(
        "titan",
        "TorchTitan's output of 16 × 8 ranks, 20 steps",
        "as many rows as one rank prints, and a rank without a loss is named",
        "TorchTitan 0.2.2 trained its debug model on 8 real CPU ranks, and what each of them printed is in "
        f"`tests/recorded/titan.json`. {NODES} real allocators with {PROCS} stand-ins for ranks each "
        "(`bench/programs/many_nodes.py`) print it again: each line of a recorded rank on "
        f"{NODES} of them, a step about every 0.2 s, each rank up to a tenth sooner or later, with the present time of "
        "day. Rank 77 has nan as its loss of step 13. The client is real, and shows what comes as a notebook does "
        "(`many_titans.py`).",
        measure,
    )
]
