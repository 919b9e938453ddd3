"""Hosts with a real sshd each, for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.hosts.network import Network
from integration.live import eventually
from integration.night.ssh.sshd import SshLab, why_no_sshd
from monarch_nb.config import CONFIG_VARIABLE, GPU_LOCKS_VARIABLE, HOME_VARIABLE, SSH_VARIABLE
from monarch_nb.provision import jobs


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str, str], str]:
    """Make a command that does something else; return the PATH in which it is found first."""

    def make(name: str, shell: str) -> str:
        (tmp_path / "bin").mkdir(exist_ok=True)
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/sh\n{shell}\n")
        command.chmod(0o755)
        return f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    return make


@pytest.fixture
def make_lab(no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SshLab]]:
    """Makes hosts lab-1, lab-2, …; in the end no process, file or key of ours is on them, or here."""
    if why := why_no_sshd():
        pytest.skip(why)
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config, directory = (Path(tempfile.mkdtemp(prefix=f"mnb-{kind}-", dir="/tmp")) for kind in ("config", "ssh"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    made: list[SshLab] = []

    def make(count: int = 2, hidden: tuple[Path, ...] = (), environment: dict[str, str] | None = None) -> SshLab:
        network = Network(count).__enter__()
        variables = {HOME_VARIABLE: str(home), GPU_LOCKS_VARIABLE: os.environ[GPU_LOCKS_VARIABLE]}
        made.append(SshLab(directory, network, variables | (environment or {}), (config, *hidden)))
        made[-1].begin()
        monkeypatch.setenv(SSH_VARIABLE, made[-1].client)
        return made[-1]

    yield make
    left = [str(path) for path in config.glob("pools/*/*")]
    for job in jobs.jobs():
        jobs.end(job)
    left += [each for lab in made for each in lab.left() if "/nodes/" in each and "/code/" not in each]
    with contextlib.suppress(AssertionError):
        eventually(lambda: not any(lab.processes() for lab in made))
    for lab in made:
        left += lab.processes()
        for name in lab.living:
            lab.cut_power(name)
        lab.network.__exit__()
    shutil.rmtree(config)
    shutil.rmtree(directory)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks
    no_leaks(home)
    assert left == []


@dataclass(frozen=True)
class Ssh:
    """Hosts that ssh reaches, as a way to have nodes."""

    lab: SshLab
    pools: Path
    on: str = "ssh:lab"
    flags: tuple[str, ...] = ()
    too_many_nodes: int = 3

    def left(self) -> str:
        files = [path for path in self.lab.left() if path.startswith(tuple(self.lab.living))]
        return "\n".join([*files, *self.lab.processes()])

    def lose(self, node: str) -> None:
        self.lab.cut_power(node)

    def clean_up(self, node: str) -> None:
        """Its disk is as it was."""
        shutil.rmtree(self.lab.home(node) / ".local")
        for state in Path(os.environ[HOME_VARIABLE]).glob(f"*/{node}-*"):
            shutil.rmtree(state)
            state.parent.rmdir()


@pytest.fixture
def way(make_lab: Callable[..., SshLab]) -> Ssh:
    return Ssh(make_lab(2), Path(os.environ[CONFIG_VARIABLE]) / "pools")
