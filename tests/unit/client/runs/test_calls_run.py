"""The end of a run of calls as its client sees it: what was printed is waited for, nodes that are away are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.runs import calls_run
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.errors import MeshNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.shape import Extent
from unit.client.runs.run_harness import FakeCore, several_turns


@pytest.fixture
async def run() -> CallsRun:
    """One that has come to both nodes."""
    core = FakeCore()
    mesh: Any = SimpleNamespace(
        core=core, id="mesh", reservation=SimpleNamespace(name="dev", pool=""), extent=Extent({"hosts": 2, "procs": 4})
    )
    made = CallsRun(mesh, "run-id", range(8), "trainers.step", listener=lambda _: None)
    made.submit(run_pb2.RunSpec(run_id="run-id"))
    made.on_queued(pb.Queued(run_id="run-id", number=5, nodes=pb.NumberRanges(bounds=(0, 2))))
    return made


def sent_by(run: CallsRun) -> list[tuple[str, Any]]:
    session: Any = run.mesh.core.session
    sent: list[tuple[str, Any]] = session.sent
    return sent


def finish(run: CallsRun, node: int) -> None:
    results = [run_pb2.RankResult(rank=rank) for rank in range(4 * node, 4 * node + 4)]
    run.on_finished(pb.Finished(run_id="run-id", results=results))


def link(run: CallsRun, node: int, *, up: bool) -> None:
    run.on_link(run.mesh.core.connections[node], up)


class TestPrinted:
    async def test_all_nodes_have_told_all(self, run: CallsRun) -> None:
        run._end()
        finish(run, 0)
        assert not run._printed.is_set()
        finish(run, 1)
        assert run._printed.is_set()

    @pytest.mark.parametrize("goes", ["before the end", "after the end", "last"])
    async def test_a_node_that_is_away_is_not_waited_for(self, run: CallsRun, goes: str) -> None:
        if goes == "before the end":
            link(run, 1, up=False)
        run._end()
        if goes == "after the end":
            link(run, 1, up=False)
        finish(run, 0)
        if goes == "last":
            assert not run._printed.is_set()
            link(run, 1, up=False)
        assert run._printed.is_set()
        assert not run.done

    async def test_a_node_that_is_back_is(self, run: CallsRun) -> None:
        link(run, 1, up=False)
        link(run, 1, up=True)
        run._end()
        finish(run, 0)
        assert not run._printed.is_set()

    async def test_what_goes_on_is_not_over_because_all_nodes_are_away(self, run: CallsRun) -> None:
        link(run, 0, up=False)
        link(run, 1, up=False)
        assert not run._printed.is_set()

    async def test_nothing_more_comes_from_a_mesh_that_was_released(self, run: CallsRun) -> None:
        run.on_refused(MeshNotFound("released"))
        assert run._printed.is_set()
        assert run.mesh.core.is_over, "the next cell opens no run there"


class TestPress:
    async def test_a_node_that_is_away_has_the_time_to_come_back(
        self, run: CallsRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls_run, "GAP_S", 60.0)
        monkeypatch.setattr(calls_run, "LOOK_S", 0.0)
        sent = sent_by(run)
        link(run, 1, up=False)
        press = asyncio.create_task(run.stop_ranks())
        await several_turns()
        assert sent[-1] == ("cancel", "run-id"), "it hears of it when it is there again"
        link(run, 1, up=True)
        report = await press
        assert (report.stopped, report.unreachable) == (tuple(range(8)), {})
        assert sent[-1] == ("withdraw", [0, 1])

    async def test_one_that_stays_away_is_not_interrupted_later(
        self, run: CallsRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls_run, "GAP_S", 0.0)
        link(run, 1, up=False)
        report = await run.stop_ranks()
        assert (report.stopped, [*report.unreachable]) == ((0, 1, 2, 3), [4, 5, 6, 7])
        assert sent_by(run)[-1] == ("withdraw", [0, 1])
