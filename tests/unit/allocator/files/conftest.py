"""A workspace of one reservation."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.allocator.files.workspaces import Workspaces
from unit.allocator.files.syncing import Client, open_workspaces

ID = "reservation-1"


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    return open_workspaces(tmp_path)


@pytest.fixture
def tree(workspaces: Workspaces) -> Path:
    return workspaces.directory(ID)


@pytest.fixture
def client(workspaces: Workspaces) -> Client:
    return Client(workspaces, ID)


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))
