"""A stand-in for an LSF on this machine, for all tests of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.live import eventually
from integration.lsf import stand_in as lsf
from integration.ways import end_all_of, nothing_stays


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
        end_all_of("lsf-dev")

    @contextmanager
    def full(self) -> Iterator[None]:
        words = ["bsub", "-n", "4", "-R", "span[ptile=1]"]
        subprocess.run(words, input="exec sleep 1000", text=True, check=True)
        [other] = self.left().split()
        yield
        self.cancel(other)
        eventually(lambda: not self.left())

    def cancel(self, job: str) -> None:
        subprocess.run(["bkill", job], check=True)


@pytest.fixture
def way(tmp_path: Path, client_home: Path) -> Iterator[Lsf]:
    """An LSF on which nothing runs."""
    directory = tmp_path / "lsf"
    directory.mkdir()
    engine = Lsf(directory, client_home / "pools")
    with lsf.cluster(directory), nothing_stays(engine):
        yield engine
