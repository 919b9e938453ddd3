"""A real Slurm on this machine, for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import eventually
from integration.night.slurm.controller import cluster, run, squeue, why_no_slurm
from leaks import processes_of
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.provision import jobs


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    if why := why_no_slurm():
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="mnb-slurm-", dir="/tmp"))
    with cluster(directory):
        yield
    shutil.rmtree(directory)


@pytest.fixture
def slurm(_cluster: None, no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Slurm on which nothing runs; the config directory of its user. No job, no file and no key stays in the end."""
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    no_leaks(home)
    yield config
    left = [str(path) for path in config.glob("pools/*/*")], squeue()
    for job in jobs.jobs():
        jobs.end(job)
    run("scancel", "--user=root")
    eventually(lambda: not squeue())
    shutil.rmtree(config)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks
    assert left == ([], "")


@dataclass(frozen=True)
class Slurm:
    """Slurm as a way to have nodes."""

    pools: Path
    on: str = "slurm"
    flags: tuple[str, ...] = ("--partition=main",)
    too_many_nodes: int = 9

    def left(self) -> str:
        return squeue()

    def lose(self, node: str) -> None:
        run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=fire")

    def clean_up(self, node: str) -> None:
        """Slurm gave it no time; and without cgroups it loses processes whose parent has died."""
        home = Path(os.environ[HOME_VARIABLE])
        for process in processes_of(home):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(home / "slurm-dev")


@pytest.fixture
def way(slurm: Path) -> Slurm:
    return Slurm(slurm / "pools")
