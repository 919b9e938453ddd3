"""A stand-in for a Kubernetes cluster, for all tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.hosts.network import why_no_hosts
from integration.night.kubernetes.cluster import IMAGE, Cluster, cluster
from integration.ways import nothing_stays
from monarch_nb.provision.kubernetes import launcher as kubernetes


@dataclass(frozen=True)
class Kubernetes:
    """Kubernetes as a way to have nodes."""

    cluster: Cluster
    pools: Path
    on: str = "k8s"
    flags: tuple[str, ...] = (f"--image={IMAGE}",)
    too_many_nodes: int = 4

    def left(self) -> str:
        return " ".join(self.cluster.names())

    def lose(self, node: str) -> None:
        self.cluster.lose(node)

    def clean_up(self, node: str) -> None:
        """Its disk was the pod's."""


@pytest.fixture
def way(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """A cluster with three machines, on which nothing runs: no job, no pod and no secret."""
    if why := why_no_hosts():
        pytest.skip(why)
    with cluster(Path(tempfile.mkdtemp(prefix="mnb-k8s-", dir="/tmp")), gpus=8) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig()))
        monkeypatch.setattr(kubernetes, "NEVER_S", 0.0)
        engine = Kubernetes(made, client_home / "pools")
        with nothing_stays(engine):
            yield engine


@pytest.fixture
def standin(way: Kubernetes) -> Cluster:
    return way.cluster
