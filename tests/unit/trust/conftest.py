"""A pool's directory and its authority, in a config of the test's own."""

from pathlib import Path

import pytest

from monarch_nb.config import CONFIG_VARIABLE, TrustPaths
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.pools import make_paths

NOW = 1_800_000_000.0
"""Some time in 2027."""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def paths() -> TrustPaths:
    return make_paths("lab")


@pytest.fixture
def authority(paths: TrustPaths) -> Authority:
    return Authority.create("lab", paths, NOW)


@pytest.fixture
def other() -> Authority:
    """Another pool's."""
    return Authority.create("other", make_paths("other"), NOW)
