"""A real Ray of three nodes on this machine, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S
from integration.night.ray.ray_cluster import RayCluster, cluster
from integration.ways import nothing_stays
from leaks import processes_of, wait_for_end
from monarch_nb.config import HOME_VARIABLE


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
def way(_cluster: RayCluster, client_home: Path) -> Iterator[Ray]:
    """A Ray on which nothing runs: no placement group, no actor and no key."""
    engine = Ray(_cluster, Path(os.environ[HOME_VARIABLE]), client_home / "pools")
    with nothing_stays(engine):
        yield engine
    for process in processes_of(engine.home):
        wait_for_end(process.pid, TIMEOUT_S)
    _cluster.mend()
