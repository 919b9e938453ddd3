"""A real Ray of three nodes on this machine, for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import eventually
from integration.night.ray.ray_cluster import RayCluster, cluster
from leaks import processes_of, wait_for_end
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.provision import jobs


@pytest.fixture(scope="module")  # its ten processes never rest
def _cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with cluster(nodes=3) as made:
        yield made


@dataclass(frozen=True)
class Ray:
    """Ray as a way to have nodes."""

    cluster: RayCluster
    home: Path
    pools: Path
    on: str = "ray"
    flags: tuple[str, ...] = ("--cpus=1",)
    too_many_nodes: int = 4

    def left(self) -> str:
        return self.cluster.left()

    def lose(self, node: str) -> None:
        self.cluster.kill(node)

    def clean_up(self, node: str) -> None:
        """The allocator was no child of what was killed, and has ended everything."""


@pytest.fixture
def way(_cluster: RayCluster, no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    """A Ray on which nothing runs. No placement group, no actor, no file and no key stays in the end."""
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    no_leaks(home)
    yield Ray(_cluster, home, config / "pools")
    left = [str(path) for path in config.glob("pools/*/*")], _cluster.left()
    for job in jobs.jobs():
        jobs.end(job)
    eventually(lambda: not _cluster.left())
    for process in processes_of(home):
        wait_for_end(process.pid, 60)
    _cluster.mend()
    shutil.rmtree(config)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks
    assert left == ([], "")
