"""torchmonarch must be everywhere, and the same everywhere."""

from __future__ import annotations

import pytest

from monarch_nb.client.monarch import engine, workers
from monarch_nb.errors import UsageError

NODES = ["node0", "node1"]


def test_without_torchmonarch_the_line_for_pip_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(UsageError, match=r"torchmonarch is not installed here .*pip install 'monarch-nb\[monarch\]'"):
        engine.load()


def missing(name: str) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_nodes_without_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda: "0.7.0")
    with pytest.raises(UsageError, match=r"not installed on node1: %mesh pip install torchmonarch==0\.7\.0"):
        workers.check([{"version": "0.7.0"}, {"missing": "monarch"}], NODES)


def test_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda: "0.7.0")
    workers.check([{"version": "0.7.0"}, {"version": "0.7.0"}], NODES)
    with pytest.raises(UsageError, match=r"torchmonarch is 0\.7\.0 here and 0\.6\.1 on node0"):
        workers.check([{"version": "0.6.1"}, {"version": "0.7.0"}], NODES)
