"""Releasing on a local pool whose allocators were killed: ranks end, and everything is given back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_nb
from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually, kill, pids_of
from leaks import wait_for_end
from monarch_nb.cli.main import main
from monarch_nb.config import home_directory
from monarch_nb.panel.requests import Panel
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

DIED = "the allocators of node0, node1 died; new ones adopt their ranks"

local = LocalProvisioner()


class Dev:
    """A reservation of ranks without torch, whose allocators are to be killed."""

    def __init__(self) -> None:
        self.reservation = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[])
        self._pids = pids_of(self.reservation.mesh).values()

    def lose_allocators(self) -> None:
        """Kill them; the ranks live on."""
        for node in local.nodes():
            assert node.pid is not None
            kill(node.pid)

    def check_released(self) -> None:
        """The ranks have ended, and nothing is held on nodes that serve."""
        for pid in self._pids:
            wait_for_end(pid, TIMEOUT_S)
        assert all(node.alive for node in local.nodes())
        assert monarch_nb.list_reservations() == []


@pytest.fixture
def dev(spare_pool: list[Node]) -> Dev:
    return Dev()


@pytest.fixture
def notebook(spare_pool: list[Node], tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path / "a.ipynb")
    yield kernel
    kernel.kill()
    shutil.rmtree(home_directory() / "notebooks", ignore_errors=True)  # what is remembered of it


def test_in_a_terminal(dev: Dev, capsys: pytest.CaptureFixture[str]) -> None:
    dev.reservation.detach()
    dev.lose_allocators()
    assert main(["release"]) == 0
    assert capsys.readouterr() == ("released dev (2 nodes × 1 proc)\n", f"{DIED}\n")
    dev.check_released()


def test_on_the_panel(dev: Dev) -> None:
    panel = Panel(refresh_s=3600.0)

    def ask(name: str, **body: Any) -> Any:
        answer = panel.handle(name, body).result(TIMEOUT_S)
        assert "error" not in answer, answer
        return answer["result"]

    assert list(ask("view")["reservations"]) == [dev.reservation.id]
    dev.lose_allocators()
    ask("release", reservation=dev.reservation.id)
    eventually(lambda: not panel._jobs.running())
    dev.check_released()


def test_in_a_notebook(dev: Dev, notebook: Kernel) -> None:
    notebook.run("%load_ext monarch_nb")
    notebook.run("%mesh attach dev")
    dev.lose_allocators()
    first, second = notebook.run("%mesh release").splitlines()
    assert first == DIED
    assert second.startswith("dev: released 2 nodes × 1 proc in ")
    dev.check_released()
