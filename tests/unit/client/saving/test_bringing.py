"""Saves of nodes without common storage become one save on this computer, and go to nodes again."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.saving.saves import bring_here, take
from monarch_nb.errors import SaveError
from monarch_nb.worker.saving.asked import LoadReport, LoadRequest, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import collect
from monarch_nb.worker.saving.manifest import Manifest, damage
from monarch_nb.worker.saving.reading import load
from monarch_nb.worker.saving.writing import save
from unit.worker.saving.threads import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
RANKS = 2


class Nodes:
    """A mesh of a rank on each node, whose directories of one path are directories of their own here."""

    id = "mesh"
    ranks = tuple(range(RANKS))

    def __init__(self, home: Path) -> None:
        self.home = home
        self.core = SimpleNamespace(by_node=lambda ranks: {rank: [rank] for rank in ranks})
        self.reservation = self.one_per_node = self
        self._pushed: dict[str, Any] = {}
        for node in self.ranks:
            (home / f"node{node}").mkdir()

    def on(self, node: int, path: str) -> Path:
        return self.home / f"node{node}" / path.lstrip("/")

    def fetch(self, path: str, *, rank: int, to: Path) -> None:
        shutil.copytree(self.on(rank, path), to)

    def push(self, names: dict[str, Any]) -> None:
        self._pushed = names

    def run(self, code: str, **_: object) -> None:
        for node in self.ranks:
            exec(code.replace("'/scratch", f"'{self.home}/node{node}/scratch"), dict(self._pushed))


def test_parts_become_a_save_here_and_go_to_nodes_again(tmp_path: Path) -> None:
    nodes: Any = Nodes(tmp_path)
    report = written(nodes)
    brought = bring_here(nodes, "/scratch", tmp_path / "here", 3, report)
    path = Path(brought.path)
    assert path == tmp_path / "here" / "0001"
    assert damage(path, Manifest.read(path)) == {}

    for node in nodes.ranks:
        shutil.rmtree(nodes.on(node, "/scratch"))
    take(nodes, "/scratch", path)
    loaded = [{"mine": -1, "step": -1} for _ in nodes.ranks]
    reports = on_ranks(
        RANKS, lambda rank, exchange: load(LoadRequest(str(nodes.on(rank, "/scratch"))), loaded[rank], (), exchange)
    )
    assert all(isinstance(each, LoadReport) for each in reports), reports
    assert loaded == [{"mine": rank, "step": 7} for rank in nodes.ranks]


def test_a_part_that_did_not_come_whole_leaves_no_save(tmp_path: Path) -> None:
    nodes: Any = Nodes(tmp_path)
    report = written(nodes)
    part = next(nodes.on(1, "/scratch").glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(SaveError, match="the save did not come whole"):
        bring_here(nodes, "/scratch", tmp_path / "here", 3, report)
    assert list((tmp_path / "here").iterdir()) == []


def written(nodes: Nodes) -> SaveReport:
    """Have each rank write its part of a save on its node."""

    def write(rank: int, exchange: Any) -> SaveReport:
        request = SaveRequest(str(nodes.on(rank, "/scratch")), scattered=True)
        return save(request, collect({"mine": rank, "step": 7}, ()), exchange, "mesh")

    reports = on_ranks(RANKS, write)
    assert isinstance(reports[0], SaveReport), reports
    return reports[0]
