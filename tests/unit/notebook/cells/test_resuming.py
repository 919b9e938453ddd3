"""Which cells are run before a save is loaded, and when a cell whose nodes are gone runs again."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_nb.client.saving.saves import SaveInfo
from monarch_nb.errors import MonarchNbError, PoolError, ReservationExpired, ReservationReleased, UsageError
from monarch_nb.notebook.cells import resuming
from monarch_nb.notebook.cells.resuming import checked_plan, tagged_cells, taken_back
from monarch_nb.notebook.session import ResumePlan, Session
from monarch_nb.proto import run_pb2
from monarch_nb.worker.saving.asked import Origin


class Nodes:
    """Nodes that hold the only mesh of a reservation."""

    def __init__(self, armed: run_pb2.ArmSaves | None = None, saves: Collection[str] = ()) -> None:
        self.name, self.mesh, self.ranks = "dev", self, [0]
        self.core = SimpleNamespace(armed_saves=armed)
        self.saved, self.loaded = saves, ""
        self.armed: tuple[Any, ...] = ()

    def saves(self, directory: str) -> bool:
        return directory in self.saved

    def load(self, directory: str) -> str:
        self.loaded = directory
        return f"loaded {directory}"

    def autosave(self, *where: Any, **how: Any) -> None:
        self.armed = (*where, {name: value for name, value in how.items() if value})


def come_back_to(new: Nodes, before: Nodes) -> None:
    gone = SimpleNamespace(release=lambda progress: None)
    session = cast(Any, SimpleNamespace(reservation=before, pool=None, hold=lambda *_: None, current=lambda: gone))
    resuming.come_back(
        cast(Any, None), session, ResumePlan(lambda progress: cast(Any, new), "checkpoints/dev", ()), "time up"
    )


def test_what_was_armed_is_armed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "is_notebook", lambda _: False)
    armed = run_pb2.ArmSaves(directory="r", names=["model", "step"], every_s=3.0, at_end=True, before_s=60.0, keep=5)
    come_back_to(new := Nodes(saves=["r"]), Nodes(armed))
    assert new.loaded == "r", "ranks saved there last"
    how = {"every": 3.0, "at_end": True, "before": 60.0, "keep": 5}
    assert new.armed == ("r", ("model", "step"), how)
    come_back_to(new := Nodes(), Nodes(run_pb2.ArmSaves(directory="r", every_steps=500, keep=3)))
    assert new.loaded == "checkpoints/dev", "nothing was saved there yet"
    assert new.armed == ("r", (), {"every": "500steps", "keep": 3})
    come_back_to(new := Nodes(), Nodes())
    assert new.armed == ("checkpoints/dev", {"at_end": True}), "what the reservation says"


def test_when_the_time_is_up_the_save_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def last_save(reservation: object, name: str, directory: str) -> SaveInfo:
        asked.append(directory)
        return SaveInfo(str(Path(directory, "0002").absolute()), 0.0, 4, 10, Origin("dev"), ())

    monkeypatch.setattr(resuming, "last_save", last_save)
    up = ReservationExpired("dev was released; reserve it again", "dev", "its time of 30 s was up")
    for armed, directory in [(None, "checkpoints"), (run_pb2.ArmSaves(directory="r", at_end=True), "r")]:
        error = ReservationExpired(str(up), "dev", up.why)
        for _ in range(2):  # it may be raised again
            resuming.say_what_is_saved(cast(Any, SimpleNamespace(reservation=Nodes(armed))), error)
        assert str(error).endswith(f": %mesh load {directory}/0002 loads that")
        assert str(error).count("loads that") == 1
    other = ReservationExpired(str(up), "other", up.why)
    resuming.say_what_is_saved(cast(Any, SimpleNamespace(reservation=Nodes())), other)
    assert str(other) == str(up), "of another one than this notebook's"
    resuming.say_what_is_saved(cast(Any, SimpleNamespace(reservation=Nodes())), PoolError("lost"))
    resuming.say_what_is_saved(cast(Any, SimpleNamespace(reservation=None)), up)
    assert asked == ["checkpoints", "checkpoints", "r", "r"]


def cell(source: str | list[str], *tags: str, kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)} if tags else {}}


@pytest.fixture
def notebook(tmp_path: Path) -> str:
    title = cell("# title", "setup", kind="markdown")
    cells = [title, cell(["a = 1\n", "b = 2"], "setup"), cell("c"), cell("d", "data")]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    return str(path)


def never(_: object) -> Any:
    raise AssertionError


def plan(directory: str = "checkpoints/dev", *tags: str) -> ResumePlan:
    return ResumePlan(never, directory, tags)


def test_code_cells_that_have_a_tag_in_the_order_of_the_notebook(notebook: str) -> None:
    assert tagged_cells(notebook, ["data", "setup"]) == ["a = 1\nb = 2", "d"]


def test_a_tag_that_no_cell_has_is_refused_when_nodes_are_reserved(notebook: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no cell of train.ipynb has the tag 'stup': add it"):
        checked_plan(plan("a", "stup"), notebook, on="slurm")
    with pytest.raises(UsageError, match="no notebook whose file is known"):
        checked_plan(plan("a", "setup"), None, on="slurm")
    with pytest.raises(UsageError, match=r"the tags of gone.ipynb can not be read"):
        checked_plan(plan("a", "setup"), str(tmp_path / "gone.ipynb"), on="slurm")
    assert checked_plan(plan("a"), None, on="slurm").tags == ()


def test_what_can_not_be_resumed_is_refused(notebook: str) -> None:
    with pytest.raises(UsageError, match=r"--resume is for nodes of an engine \(--on slurm\)"):
        checked_plan(plan(), notebook, on=None)
    with pytest.raises(UsageError, match="--resume loads what --save DIR has saved"):
        checked_plan(plan(""), notebook, on="slurm")


def test_only_the_engine_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    time_up = "its time of 8 h was up"
    for error, became, why in (
        (PoolError("lost"), ("Slurm job 3 was cancelled: %mesh reserve", True), "Slurm job 3 was cancelled"),
        (PoolError("lost"), ("one node failed", False), ""),
        (ReservationExpired("dev was released; again", why=time_up), ("", False), "dev was released"),
        (ReservationExpired("dev was released; again", why="nobody used it for 2 h"), ("", True), ""),
        (ReservationReleased("dev was released", by="in the panel"), ("", True), ""),
        (MonarchNbError("else"), ("", True), ""),
    ):
        monkeypatch.setattr(resuming, "what_became", lambda pool, became=became: became)
        assert taken_back(cast(Session, SimpleNamespace(resume=plan(), pool="slurm-dev")), error) == why
        assert taken_back(cast(Session, SimpleNamespace(resume=None, pool="slurm-dev")), error) == ""
