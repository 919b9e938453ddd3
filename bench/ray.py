"""Nodes of a Ray cluster, from the moment that they are free: a real one, all of whose nodes are this machine."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.harness import (
    PROGRAMS,
    Bench,
    CannotRun,
    Outcome,
    Row,
    compared,
    duration,
    first_and_second_s,
    median,
)
from bench.rivals import rival_python
from monarch_nb.config import CONFIG_VARIABLE

NODES, PROCS = 4, 2
PROGRAM = "first_all_reduce.py"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""To 0: else a cluster on loopback does not find itself."""


def programs(bench: Bench) -> Outcome:
    ours, theirs = [], []
    with _cluster(bench) as train:
        for _ in range(bench.repeats(3, 1)):
            ours.append(first_and_second_s("ray", NODES, PROCS, PROGRAM))
            bench.say(f"ours {duration(ours[-1][0])}, then {duration(ours[-1][1])}; now Ray Train")
            theirs.append((train(), train()))
            bench.say(f"Ray Train {duration(theirs[-1][0])}, then {duration(theirs[-1][1])}")
    first_s, second_s = (median(times) for times in zip(*ours, strict=True))
    their_first_s, their_second_s = (median(times) for times in zip(*theirs, strict=True))
    return Outcome(
        f"{duration(first_s)}; the second {duration(second_s)}",
        their_first_s / first_s >= 5 and their_second_s / second_s >= 30,
        f"`TorchTrainer` {duration(their_first_s)} and {duration(their_second_s)}",
        f"{compared(first_s, their_first_s)}; the second {compared(second_s, their_second_s)}",
    )


@contextmanager
def _cluster(bench: Bench) -> Iterator[Callable[[], float]]:
    """Run a cluster, by the python that has Ray Train; yield what runs a program by that, and returns its seconds."""
    directory = Path(tempfile.mkdtemp(prefix="mnb-ray-", dir="/tmp"))  # short: socket paths end at 107 bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOOPBACK, "0")
        command = [str(rival_python(bench.say)), str(PROGRAMS / "ray_nodes.py"), str(NODES), str(PROCS), str(directory)]
        errors = (directory / "errors.log").open("wb")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
        assert process.stdin
        assert process.stdout

        def answer() -> str:
            assert process.stdout
            if not (line := process.stdout.readline()):
                raise CannotRun(f"Ray ended: {(directory / 'errors.log').read_text()[-300:]}")
            return line.strip()

        def train() -> float:
            assert process.stdin
            process.stdin.write("\n")
            return float(answer())

        try:
            patch.setenv("RAY_ADDRESS", answer())
            patch.setenv(CONFIG_VARIABLE, str(directory / "config"))
            yield train
        finally:
            started = psutil.Process(process.pid).children(recursive=True)
            process.stdin.close()
            process.wait(60)
            process.stdout.close()
            for one in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            errors.close()
            shutil.rmtree(directory, ignore_errors=True)


ROWS = [
    Row(
        "ray",
        f"{NODES} free nodes of a Ray cluster × {PROCS} ranks, to the end of the first all-reduce, and of the second "
        "program on them, against a Ray Train `TorchTrainer`",
        "at least 5 times faster, the second at least 30 times",
        "Ray is real. All its nodes are this machine, so they share its cores. Ours: the time from the call of "
        '`reserve(..., on="ray")`, in a process that is not connected to Ray, to the end of `mesh.run(program)`. Then '
        "the same program runs again in the same ranks. Ray Train: the time from the call of `TorchTrainer.fit`, in a "
        "driver that is connected already, to the end of the all-reduce on the last rank, and then of a second call. "
        f"All are medians of 3. The program is `bench/programs/{PROGRAM}`, and the same in a loop of "
        "`TorchTrainer`.",
        programs,
    )
]
