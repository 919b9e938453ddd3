"""A stand-in for a Kubernetes cluster, for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.hosts.network import why_no_hosts
from integration.night.kubernetes.cluster import IMAGE, Cluster, cluster
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.provision.kubernetes import launcher as kubernetes


@pytest.fixture
def standin(no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with three machines. No job, no pod, no secret and no key stays in the end."""
    if why := why_no_hosts():
        pytest.skip(why)
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    no_leaks(home)
    with cluster(Path(tempfile.mkdtemp(prefix="mnb-k8s-", dir="/tmp")), gpus=8) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig()))
        monkeypatch.setattr(kubernetes, "NEVER_S", 0.0)
        yield made
        left = made.names(), [str(path) for path in config.glob("pools/*/*")]
    shutil.rmtree(config)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks
    assert left == ([], [])


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
def way(standin: Cluster, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    from monarch_nb.config import config_directory

    return Kubernetes(standin, config_directory() / "pools")
