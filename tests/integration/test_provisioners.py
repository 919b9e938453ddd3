"""The launcher of docs/provisioners.md is whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.errors import CapacityError, UsageError
from monarch_nb.provision import launchers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "provisioners.md"
MOST_LINES = 60


@pytest.fixture
def pools(client_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The example installed, and where its pools lie."""
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < MOST_LINES
    (tmp_path / "my_engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    [name, value] = re.findall(r'^(\w+) = "(my_engine:\w+)"$', PAGE.read_text(), re.MULTILINE)[0]
    point = EntryPoint(name, value, launchers.ENTRY_POINTS)
    monkeypatch.setattr(launchers, "entry_points", lambda group: [point])
    yield client_home / "pools"
    assert list((client_home / "pools").iterdir()) == [], "no pool and no key stays"


def test_the_example_obtains_nodes(pools: Path) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[], on="processes")
    assert dev.mesh.run("rank * 2").values == [0, 2]
    again = attach("dev")
    assert again.id == dev.id
    with pytest.raises(UsageError, match="no time limit"):
        dev.extend("1h")
    dev.release()


def test_what_it_has_not_is_refused(pools: Path) -> None:
    with pytest.raises(CapacityError, match="there are at most 4 nodes, not 5"):
        reserve("dev", nodes=5, procs=1, on="processes")
