"""Saves of nodes that see neither each other's files nor the notebook's."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import UsageError

pytestmark = pytest.mark.slow


def test_saves_come_to_the_notebook_and_go_back(synced: Reservation, project: Path) -> None:
    mesh = synced.mesh
    mesh.run("import torch\nmine, same = torch.full((1 << 18,), float(rank)), torch.ones(3)")
    with pytest.raises(UsageError, match=r"copies of the notebook's files, .* Without such storage, --bring keeps"):
        mesh.save("checkpoints/a")
    report = mesh.save("checkpoints/a", bring=True)
    assert report.path == str(project / "checkpoints" / "a" / "0001")
    assert len(list(Path(report.path).glob("*.distcp"))) == 8
    assert all(file.stat().st_mode & 0o077 == 0 for file in Path(report.path).iterdir())
    assert [info.path for info in mesh.saves()] == [report.path]
    mesh.run("mine.zero_(); same.zero_()")
    mesh.load("checkpoints/a", bring=True)
    assert mesh.run("mine.mean().item(), same.sum().item()").values == [(float(rank), 3.0) for rank in range(8)]
    assert mesh.run("import glob\nglob.glob('/tmp/monarch-nb-save-*')").values == [[]] * 8, "nothing stays on nodes"
