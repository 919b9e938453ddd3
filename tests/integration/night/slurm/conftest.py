"""A real Slurm on this machine, for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import eventually
from integration.night.slurm.controller import cluster, run, squeue, why_no_slurm
from integration.ways import end_all_of, nothing_stays


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    if why := why_no_slurm():
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="mnb-slurm-", dir="/tmp"))
    with cluster(directory):
        yield
    shutil.rmtree(directory)


@dataclass(frozen=True)
class Slurm:
    """Slurm as a way to have nodes."""

    pools: Path
    on: str = "slurm"
    flags: tuple[str, ...] = ("--partition=main",)
    too_many_nodes: int = 9

    def left(self) -> str:
        return squeue("--format=%i")

    def lose(self, node: str) -> None:
        run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=fire")

    def clean_up(self, node: str) -> None:
        """Slurm gave it no time; and without cgroups it loses processes whose parent has died."""
        end_all_of("slurm-dev")

    @contextmanager
    def full(self, nodes: int = 4) -> Iterator[None]:
        words = ("--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 600")
        other = run("sbatch", "--parsable", f"--nodes={nodes}", *words)
        eventually(lambda: squeue(f"--jobs={other}", "--format=%t") == "R")
        yield
        self.cancel(other)

    def cancel(self, job: str) -> None:
        run("scancel", job)


@pytest.fixture
def way(_cluster: None, client_home: Path) -> Iterator[Slurm]:
    """A Slurm on which nothing runs."""
    engine = Slurm(client_home / "pools")
    with nothing_stays(engine):
        yield engine
