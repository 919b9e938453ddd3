"""What is asked of ranks that save or load, and what is said of saves that there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_nb.client.pools.infos import RunInfo
from monarch_nb.client.saving import asking, saves
from monarch_nb.client.saving.asking import check_free
from monarch_nb.client.saving.saves import SaveInfo
from monarch_nb.errors import NodeUnreachable, ReservationReleased, SaveError, UsageError
from monarch_nb.notebook.commands import saving
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.notebook.syntax.declarations import SAVES
from monarch_nb.worker.saving.asked import LoadReport, NamedPart, Origin


class Mesh:
    """Ranks that see what the notebook sees."""

    name = "main"
    load, save, saves = saves.load, saves.save, saves.saves
    reservation = SimpleNamespace(name="dev", shared="", files=SimpleNamespace(copies=False))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ranks were asked for."""
    requests: list[Any] = []

    def ask(mesh: object, what: str, request: Any, **_: object) -> dict[str, Any]:
        requests.append(request)
        return {"path": "a/0001"}

    monkeypatch.setattr(saves, "ask", ask)
    return requests


def test_a_text_is_one_name(asked: list[Any]) -> None:
    mesh: Any = Mesh()
    mesh.save("a", "model")
    mesh.load("a", "model")
    mesh.load("a", ["model", "step"])
    assert [each["names"] for each in asked] == [("model",), ("model",), ("model", "step")]


def test_a_save_of_actors_is_loaded_into_actors(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mesh: Any = Mesh()
    mesh.save("a", actors="trainers")
    origin = Origin.from_facts(asked[0]["origin"])
    info = SaveInfo(str(Path("a/0001").absolute()), 0.0, 4, 10, origin, (NamedPart("net", "state"),))
    assert "dev, actors trainers" in info.row()
    monkeypatch.setattr(saving, "last_save", lambda *_: info)
    [line] = saving.last_save_line(mesh.reservation, None)
    said = "net of 4 ranks): monarch_nb.attach('dev').actors['trainers'].load('a/0001') loads it"
    assert line.endswith(said)


def test_a_save_at_a_step_tells_which_and_of_which_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run counts its own steps."""
    origin = Origin("dev", run=7, reason="every 10 min", step=1200)
    info = SaveInfo("a/0001", 0.0, 4, 10, Origin.from_facts(dataclasses.asdict(origin)), (NamedPart("net", "state"),))
    assert "dev, run 7, step 1,200, every 10 min" in info.row()
    monkeypatch.setattr(saving, "last_save", lambda *_: info)
    mesh: Any = Mesh()
    [line] = saving.last_save_line(mesh.reservation, None)
    assert ", after step 1,200 of run 7: net of 4 ranks): %mesh load " in line


def test_a_reservation_that_is_over_is_not_asked_for_saves(tmp_path: Path) -> None:
    def over(name: str | None) -> None:
        raise ReservationReleased("dev was released")

    session: Any = SimpleNamespace(reservation=object(), mesh=over)
    with pytest.raises(UsageError, match=r"this computer sees no directory .*/nowhere: name another"):
        saving.list_saves(session, Parsed(SAVES, words=(str(tmp_path / "nowhere"),)))


def test_what_has_no_tensors_has_no_bytes() -> None:
    plain = LoadReport("a/0001", 0, 0.5, 4, 4, ("losses",))
    assert str(plain) == "loaded losses into 4 ranks: plain values in 0.5 s, from a/0001"
    assert "4 ranks: 2.0 kB in" in str(LoadReport("a/0001", 2000, 0.5, 4, 4, ("model",)))


def test_an_allocator_that_has_just_died_is_started_again_before_a_save() -> None:
    done: list[str] = []

    def unfinished() -> list[Any]:
        done.append("asked")
        if len(done) == 1:
            raise NodeUnreachable("node0 does not answer", "node0")
        return []

    mesh: Any = SimpleNamespace(unfinished=unfinished, _check_nodes=lambda: done.append("healed"))
    check_free(mesh)
    assert done == ["asked", "healed", "asked"]


@pytest.mark.parametrize("own", ["is_script", "is_calls"])
def test_what_does_not_run_on_main_threads_of_the_ranks_holds_up_no_save(own: str) -> None:
    """A fresh script has processes of its own, as a colleague's `monarch-nb run` has."""
    cell = RunInfo("1", 1, "loopint.py", (0, 1), (), False, 0.0, 0, running=(0, 1))
    check_free(cast(Any, SimpleNamespace(unfinished=lambda: [dataclasses.replace(cell, **{own: True})])))


def test_a_save_beside_a_run_names_it_as_other_commands_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async def where(*_: object) -> dict[int, Any]:
        return {}

    monkeypatch.setattr(asking, "_stopped", lambda *_: "")
    runs = [RunInfo("1", 17, "for _ in range(40):", (0, 1), (), False, 0.0, 53, running=(0, 1))]
    mesh: Any = SimpleNamespace(unfinished=lambda: runs, ranks=(0, 1), core=SimpleNamespace(where=where))
    with pytest.raises(SaveError) as refused:
        check_free(mesh)
    how = "wait for it, or interrupt it (%mesh interrupt)"
    assert str(refused.value) == f"nothing was begun: ranks 0-1 compute (run 17, cell [53]): {how}"
