"""A stand-in for an LSF on this machine, for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import eventually
from integration.lsf import stand_in as lsf
from leaks import processes_of
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.provision import jobs


@dataclass(frozen=True)
class Lsf:
    """LSF as a way to have nodes."""

    directory: Path
    pools: Path
    on: str = "lsf"
    flags: tuple[str, ...] = ("-q", "normal")
    too_many_nodes: int = 9

    def left(self) -> str:
        return lsf.bjobs(directory=self.directory)

    def lose(self, node: str) -> None:
        lsf.lose(node, self.directory)

    def clean_up(self, node: str) -> None:
        """It had no time to do it."""
        home = Path(os.environ[HOME_VARIABLE])
        for process in processes_of(home):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(home / "lsf-dev")


@pytest.fixture
def way(tmp_path: Path, no_leaks: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lsf]:
    """An LSF on which nothing runs. No job, no file and no key stays in the end."""
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    monkeypatch.setenv(CONFIG_VARIABLE, str(config))
    no_leaks(home)
    directory = tmp_path / "lsf"
    directory.mkdir()
    with lsf.cluster(directory):
        engine = Lsf(directory, config / "pools")
        yield engine
        with contextlib.suppress(AssertionError):  # what was cancelled just now is ending
            eventually(lambda: not engine.left(), 20.0)
        left = [str(path) for path in config.glob("pools/*/*")], engine.left()
        for job in jobs.jobs():
            jobs.end(job)
        eventually(lambda: not engine.left())
    shutil.rmtree(config)
    shutil.rmtree(home / "notebooks", ignore_errors=True)  # what is remembered of notebooks
    assert left == ([], "")
