"""A real Slurm on this machine, for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import eventually
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.provision import jobs
from slurm import cluster, run, squeue, why_no_slurm


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


@pytest.fixture
def open_kernel(tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
    """Start kernels of one notebook."""
    kernels: list[Kernel] = []

    def open_one() -> Kernel:
        kernels.append(Kernel(tmp_path / "a.ipynb"))
        return kernels[-1]

    yield open_one
    for kernel in kernels:
        kernel.kill()
