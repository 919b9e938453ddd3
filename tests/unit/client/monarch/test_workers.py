"""torchmonarch must be everywhere, and the same everywhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_nb.client.monarch import engine, workers
from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.errors import UsageError

NODES = ["node0", "node1"]


def test_without_torchmonarch_the_line_for_pip_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(UsageError, match=r"torchmonarch is not installed here .*pip install 'monarch-nb\[monarch\]'"):
        engine.load()


def missing(name: str) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda: "0.7.0")
    workers.check([{"version": "0.7.0"}, {"version": "0.7.0"}], NODES)
    with pytest.raises(UsageError, match=r"not installed on node1: %mesh pip install torchmonarch==0\.7\.0"):
        workers.check([{"version": "0.7.0"}, {"missing": "monarch"}], NODES)
    with pytest.raises(UsageError, match=r"torchmonarch is 0\.7\.0 here and 0\.6\.1 on node0"):
        workers.check([{"version": "0.6.1"}, {"version": "0.7.0"}], NODES)


def info(rank: int, pid: int, running: str = "step", where: str = "train.py:41") -> ActorInfo:
    return ActorInfo(
        "monarch", rank, "trainers", "__main__.Trainer", "t", running=running, running_s=12, where=where, pid=pid
    )


def test_nodes_are_chosen_by_number() -> None:
    assert workers.chosen(["a", "b"], None) == ("a", "b")
    assert workers.chosen(["a", "b"], [1]) == ("b",)
    for wrong in ([], [2], [-1], ["node1"]):
        with pytest.raises(UsageError, match=r"nodes are numbers from 0 to 1, such as nodes=\[0\], not"):
            workers.chosen(["a", "b"], wrong)  # type: ignore[arg-type]


def test_an_interrupt_says_what_goes_on_and_where() -> None:
    infos = [info(0, 72), info(0, 71), info(1, 90), info(1, 91, running="")]
    said = workers.said_of_running(infos, {0: "node0", 1: "node1"})
    goes_on, way_on = said.splitlines()
    assert goes_on == "trainers.step goes on at train.py:41 (node0: pids 71, 72; node1: pid 90) for 12 s"
    assert way_on.startswith("Monarch has no interrupt: stop() of its ProcMesh ends its processes")
    assert workers.said_of_running([info(0, 71, running="")], {0: "node0"}) == ""


def test_a_call_of_workers_that_were_stopped_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    stopped = SimpleNamespace(core=SimpleNamespace(is_over=True), reservation=SimpleNamespace(name="dev"))
    monkeypatch.setattr(engine, "_meshes", {"mesh": workers.AttachedMesh(cast("Any", stopped))})
    monkeypatch.setattr(engine, "tell", told.append)
    engine._tag("trainers.step")
    (said,) = told
    assert said.startswith(
        "the Monarch workers of dev were stopped: their actors are gone. Monarch notices that after a"
    )
    assert engine._said_of_waiting() == ""  # a cell that waits on shows the same line once
    assert told == [said, said]


def test_a_cell_that_waits_says_what_actors_execute_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [replace(info(rank // 2, 71 + rank), own_rank=rank) for rank in range(4)]
    others = replace(info(0, 90), name="judges")
    mesh = SimpleNamespace(core=SimpleNamespace(is_over=False, dead={}))
    attached = workers.AttachedMesh(cast("Any", mesh))
    monkeypatch.setattr(attached, "_infos", lambda: [*own, others])
    assert attached.said_of_waiting({"trainers.step"}) == "trainers.step: ranks 0-3 run it at train.py:41 for 12 s"
    assert attached.said_of_waiting({"trainers.load"}) == ""


def test_an_actor_at_a_breakpoint_is_said_how_to_go_on_with() -> None:
    stopped = [info(0, 71, where="a breakpoint (Cell In[7]:3)")]
    for said in (workers.said_of_waiting(stopped), workers.said_of_running(stopped, {0: "node0"})):
        assert "at a breakpoint (Cell In[7]:3)" in said
        assert workers.DEBUGGER in said.splitlines()


def test_the_end_of_the_process_waits_for_no_workers_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def future(name: str) -> Any:
        return SimpleNamespace(get=lambda _: asked.append(name))

    def hosts(name: str, *, is_over: bool) -> tuple[Any, Any]:
        return SimpleNamespace(stop=lambda: future(name)), SimpleNamespace(is_over=lambda: is_over)

    monkeypatch.setattr(engine, "_attached", [hosts("ended", is_over=True), hosts("living", is_over=False)])
    monkeypatch.setattr(engine, "load", lambda: SimpleNamespace(shutdown_context=lambda host_timeout: future("client")))
    engine._end()
    assert asked == ["living", "client"]
