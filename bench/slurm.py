"""Nodes of a Slurm, from the moment that they are free: a real one, all of whose nodes are this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

from bench.harness import (
    PROGRAM_TIMEOUT_S,
    PROGRAMS,
    Bench,
    CannotRun,
    Outcome,
    Row,
    compared,
    duration,
    first_and_second_s,
    free_port,
    median,
    numbers_after,
)
from integration.night.slurm import controller as slurm
from monarch_nb.config import CONFIG_VARIABLE

NODES, PROCS = 4, 2
PROGRAM = "first_all_reduce.py"


def programs(bench: Bench) -> Outcome:
    if why := slurm.why_no_slurm():
        raise CannotRun(why)
    directory = bench.directory / "slurm"
    directory.mkdir()
    before = os.environ.get(CONFIG_VARIABLE)
    os.environ[CONFIG_VARIABLE] = str(directory / "config")
    try:
        with slurm.cluster(directory):
            return _compared(bench)
    finally:
        os.environ.pop(CONFIG_VARIABLE)
        os.environ.update({} if before is None else {CONFIG_VARIABLE: before})
        shutil.rmtree(directory)


def _compared(bench: Bench) -> Outcome:
    ours, torchruns, ipyparallels = [], [], []
    profile = bench.directory / "ipyparallel"
    for _ in range(bench.repeats(3, 1)):
        ours.append(first_and_second_s("slurm", NODES, PROCS, PROGRAM))
        bench.say(f"ours {duration(ours[-1][0])}, then {duration(ours[-1][1])}; now torchrun")
        torchruns.append(_torchrun())
        bench.say(f"torchrun {duration(torchruns[-1])}; now ipyparallel")
        told = bench.rival("ipyparallel", "ipyparallel_slurm.py", NODES, PROCS, PROGRAMS / PROGRAM, profile)
        ipyparallels.append((told["first_s"], told["second_s"]))
    first_s, second_s = (median(times) for times in zip(*ours, strict=True))
    theirs = [median(times) for times in zip(*ipyparallels, strict=True)]
    torchrun_s = median(torchruns)
    return Outcome(
        f"{duration(first_s)}; the second {duration(second_s)}",
        torchrun_s / first_s >= 5 and torchrun_s / second_s >= 30,
        f"srun torchrun {duration(torchrun_s)} each, ipyparallel {duration(theirs[0])} and {duration(theirs[1])}",
        f"{compared(first_s, torchrun_s)}; the second {compared(second_s, torchrun_s)}",
    )


def _torchrun() -> float:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(PROCS)]
    torchrun += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(PROGRAMS / PROGRAM)]
    began_s = time.time()
    done = subprocess.run(
        ["srun", f"--nodes={NODES}", "--ntasks-per-node=1", *torchrun],
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    ended = numbers_after("ended", done.stdout)
    if len(ended) != NODES * PROCS:
        raise CannotRun(f"srun torchrun ended with {done.returncode}: {done.stderr[-300:]}")
    return max(ended) - began_s


ROWS = [
    Row(
        "slurm",
        f"{NODES} free nodes of a Slurm × {PROCS} ranks, to the end of the first all-reduce, and of the second program "
        "on them, against `srun torchrun`, and ipyparallel's engines in a Slurm job",
        "at least 5 times faster, the second at least 30 times",
        "Slurm is real. All its nodes are this machine, so they share its cores. Ours: the time from the call of "
        '`reserve(..., on="slurm")`, which submits a job, to the end of `mesh.run(program)`. Then the same program '
        "runs again in the same ranks. torchrun: the time from `srun torchrun`, one per node, to the end of the "
        "all-reduce on the last rank; a second program takes as long. ipyparallel: the time from the start of a "
        '`Cluster(engines="slurm")` to the end of the program on the last engine, and then of the program again. '
        f"All are medians of 3. The program is `bench/programs/{PROGRAM}`.",
        programs,
    )
]
