"""A panel on a pool that is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.panel.requests import Panel
from unit.panel.fake_pool import FakePool, panel_on
from unit.panel.replies import node


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool of the user's is looked at."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings"))


@pytest.fixture
def pool() -> FakePool:
    """Two nodes of 4 CPU slots each, nothing reserved."""
    return FakePool(node("node0"), node("node1"))


@pytest.fixture
def panel(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Panel:
    return panel_on(pool, monkeypatch)
