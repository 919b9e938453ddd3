"""A stand-in for SkyPilot's server, asked by SkyPilot's own client, for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.night.sky.skypilot import SkyService, service, skypilot_python
from integration.night.ssh.conftest import make_lab  # noqa: F401 -- a fixture
from integration.night.ssh.sshd import SshLab
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, SSH_VARIABLE
from monarch_nb.provision import jobs


@dataclass
class Sky:
    """SkyPilot as a way to have nodes."""

    service: SkyService
    lab: SshLab
    pools: Path
    on: str = "sky"
    flags: tuple[str, ...] = ()
    too_many_nodes: int = 3
    lost: str = ""

    def left(self) -> str:
        files = [path for path in self.lab.left() if path.startswith(tuple(self.lab.living))]
        return "\n".join([*files, *self.lab.processes(), *self.service.clusters()])

    def lose(self, node: str) -> None:
        """Nodes are called as SkyPilot calls its machines."""
        cluster, _, worker = node.partition("-worker")
        self.lost = self.service.clusters()[cluster][int(worker or 0)]
        self.lab.cut_power(self.lost)

    def clean_up(self, node: str) -> None:
        """Its disk went with it; its state is on this machine."""
        shutil.rmtree(self.lab.home(self.lost) / ".local", ignore_errors=True)
        for state in Path(os.environ[HOME_VARIABLE]).glob(f"*/{node}-*"):
            shutil.rmtree(state)
            state.parent.rmdir()


@pytest.fixture(scope="session")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyService]:
    python = skypilot_python()
    if python is None:
        pytest.skip("there is no SkyPilot (make install has it in .venv/sky)")
    with service(python, tmp_path_factory.mktemp("sky")) as made:
        yield made


@pytest.fixture
def way(
    _service: SkyService,
    make_lab: Callable[..., SshLab],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sky]:
    """A cloud of two machines that are free; in the end they are so again, and SkyPilot's client knows of none."""
    lab = make_lab(2)
    _service.have(lab)
    monkeypatch.setenv(SSH_VARIABLE, f"ssh -F {_service.ssh_config}")
    monkeypatch.setenv("PATH", f"{_service.binaries}{os.pathsep}{os.environ['PATH']}")
    made = Sky(_service, lab, Path(os.environ[CONFIG_VARIABLE]) / "pools")
    yield made
    left = _service.left()
    for job in jobs.jobs():
        jobs.end(job)
    _service.have(lab)
    assert left == []
