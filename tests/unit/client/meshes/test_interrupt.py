"""An interrupt of a whole mesh: what waits is gone from every node before what runs is interrupted on any."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.meshes import interrupt
from monarch_nb.client.meshes.interrupt import Part, interrupt_parts
from monarch_nb.client.runs.interrupting import Doomed, InterruptReport
from monarch_nb.config import MAIN_MESH, MONARCH_MESH
from monarch_nb.errors import MeshNotFound, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire


class FakeNode:
    """A node on which some runs have begun; an error is what it answers instead."""

    def __init__(self, name: str, log: list[str], answer: set[str] | Exception) -> None:
        self.name, self._log, self._answer = name, log, answer

    async def unary(self, method: str, request: pb.DropRequest, timeout_s: float) -> pb.DropReply:
        for _ in range(5):
            await asyncio.sleep(0)  # the others are asked meanwhile
        self._log.append(f"{self.name} answers {method}")
        if isinstance(self._answer, Exception):
            raise self._answer
        return pb.DropReply(begun=[run_id for run_id in request.run_ids if run_id in self._answer])


class FakeRun:
    def __init__(self, name: str, ranks: tuple[int, ...], log: list[str]) -> None:
        self.id, self.name, self.ranks, self._log = name, name, ranks, log
        self.is_unstopped = self.may_kill = False
        self.owner = ""
        self.is_calls = False
        self.may_stop: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)

    async def stop_ranks(self, *, kill_stuck: bool = False) -> InterruptReport:
        self._log.append(f"{'kill' if kill_stuck else 'interrupt'} {self.name}")
        await self.may_stop()
        return InterruptReport(stopped=self.ranks)

    def cancel(self) -> None:
        self._log.append(f"cancel {self.name}")

    def wait_freed(self, timeout_s: float) -> bool:
        self._log.append(f"{self.name} ended")
        return True


class Harness:
    """Two nodes of two ranks."""

    def __init__(self, *answers: set[str] | Exception) -> None:
        self.log: list[str] = []
        nodes = {node: FakeNode(f"node{node}", self.log, answer) for node, answer in enumerate(answers)}
        self.core: Any = SimpleNamespace(
            mesh_id="m",
            connections=nodes,
            by_node=lambda ranks: {rank // 2: [rank] for rank in ranks},
            unstopped=[],
            doomed_actors=Doomed(),
            dead={},
            control=self.control,
            restart=self.restart,
        )
        self.actors: dict[int, list[run_pb2.ActorStatus]] = {}
        self.stops = True
        self.runs: list[Any] = []

    def part(self, mesh: str = MAIN_MESH) -> Part:
        return Part(self.core, range(4), self.runs, mesh)

    async def control(self, ranks: list[int], **message: Any) -> dict[int, wire.ControlReply]:
        told = {rank: wire.ControlReply(actors=self.actors.get(rank, [])) for rank in ranks}
        if message.get("interrupt_actors"):
            self.log.append("interrupt actors")
            self.actors = {} if self.stops else self.actors
        return told

    async def restart(self, ranks: list[int]) -> None:
        self.log.append(f"restart {ranks}")

    def add(self, name: str, *ranks: int) -> None:
        self.runs.append(FakeRun(name, ranks, self.log))


def test_every_node_has_dropped_what_waits_before_anything_is_interrupted() -> None:
    harness = Harness({"run 1"}, {"run 2"})
    harness.add("run 1", 0, 1, 2, 3)
    harness.add("run 2", 1, 2)  # between nodes: it has begun on the second one
    harness.add("run 3", 0, 1, 2, 3)
    report = interrupt_parts([harness.part()], kill_stuck=False)
    assert sorted(harness.log[:2]) == ["node0 answers Drop", "node1 answers Drop"]
    assert harness.log[2:] == ["cancel run 3", "interrupt actors", "interrupt run 1", "interrupt run 2", "run 3 ended"]
    assert str(report) == "interrupted run 1 on ranks 0-3 and run 2 on ranks 1-2; dropped 1 that waited: run 3"


def test_what_takes_long_to_stop_holds_up_no_other_of_its_mesh_or_of_another() -> None:
    log: list[str] = []
    harnesses = [Harness({"run 1", "run 2"}), Harness({"run 1", "run 2"})]
    runs: list[FakeRun] = []
    for harness in harnesses:
        harness.log = log
        harness.add("run 1", 0)
        harness.add("run 2", 1)
        runs += harness.runs
    all_asked = asyncio.Barrier(len(runs))
    for run in runs:
        run.may_stop = lambda: asyncio.wait_for(all_asked.wait(), 20)
    interrupt_parts([harness.part() for harness in harnesses], kill_stuck=False)
    assert sorted(log) == sorted(["interrupt actors", "interrupt run 1", "interrupt run 2"] * 2)


def test_a_part_that_fails_holds_up_no_other() -> None:
    gone, harness = Harness(MeshNotFound("stopped")), Harness({"run 1"})
    for each in (gone, harness):
        each.add("run 1", 0)
    with pytest.raises(MeshNotFound):
        interrupt_parts([gone.part(), harness.part()], kill_stuck=False)
    assert "interrupt run 1" in harness.log


def test_a_node_that_does_not_answer_holds_nothing_up() -> None:
    harness = Harness({"run 1"}, NodeUnreachable("away", "node1"))
    harness.add("run 1", 0, 1)
    harness.add("run 2", 2, 3)  # nobody knows whether it has begun
    harness.add("run 3", 0, 1, 2, 3)
    interrupt_parts([harness.part()], kill_stuck=False)
    assert harness.log[2:] == ["cancel run 3", "interrupt actors", "interrupt run 1", "interrupt run 2", "run 3 ended"]


def test_what_else_goes_wrong_is_told() -> None:
    harness = Harness({"run 1"}, MeshNotFound("released"))
    harness.add("run 1", 0)
    with pytest.raises(MeshNotFound):
        interrupt_parts([harness.part()], kill_stuck=False)
    assert "interrupt run 1" not in harness.log


def sleeping(waiting: int = 0, running_s: float = 1000.0) -> run_pb2.ActorStatus:
    where = run_pb2.Where(line="sleep.py:3")
    return run_pb2.ActorStatus(name="e", running="sleep", running_s=running_s, waiting=waiting, where=where)


def test_actors_are_interrupted_in_whose_name_ever_they_execute() -> None:
    harness = Harness(set(), set())
    harness.actors = {1: [sleeping(waiting=2)], 2: [sleeping()]}
    report = interrupt_parts([harness.part()], kill_stuck=False)
    assert str(report) == "interrupted e.sleep on ranks 1-2; dropped 2 messages that waited for actors"


def test_what_a_run_tells_of_is_told_once() -> None:
    harness = Harness({"run 1"}, set())
    harness.add("run 1", 1)
    actor = sleeping()
    actor.where.run_id = "run 1"
    harness.actors = {1: [actor]}
    assert str(interrupt_parts([harness.part()], kill_stuck=False)) == "interrupted run 1 on rank 1"


def test_actors_that_do_not_stop_are_named_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "STOP_WAIT_S", 0.0)
    harness = Harness(set(), set())
    harness.actors, harness.stops = {1: [sleeping()]}, False
    report = interrupt_parts([harness.part()], kill_stuck=True)
    assert str(report) == "rank 1 does not stop (at sleep.py:3): interrupt again within 10 s to kill and restart it"
    report = interrupt_parts([harness.part()], kill_stuck=True)
    assert harness.log[-1] == "restart [1]"
    assert str(report) == "killed and restarted rank 1: their variables and actors are gone: spawn these again"


def test_of_somebody_elses_mesh_only_our_runs_are_interrupted() -> None:
    harness = Harness({"mine", "theirs"}, {"mine", "theirs"})
    mine, theirs = FakeRun("mine", (0,), harness.log), FakeRun("theirs", (1,), harness.log)
    theirs.owner = "alice"
    harness.runs = [theirs, mine]
    report = interrupt_parts([replace(harness.part(), is_ours=False)], kill_stuck=False)
    assert "interrupt theirs" not in harness.log
    assert "interrupt actors" not in harness.log
    assert str(report) == (
        "interrupted mine on rank 0; theirs goes on: the owner of the mesh interrupts all cells, you only yours"
    )
    harness.runs = [theirs]
    assert str(interrupt_parts([replace(harness.part(), is_ours=False)], kill_stuck=False)).startswith("theirs goes on")


def test_actors_of_monarchs_own_engine_are_named_and_never_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "STOP_WAIT_S", 0.0)
    harness = Harness({"calls"}, {"calls"})
    harness.add("calls", 0, 1)  # a cell that waits for them
    harness.runs[0].is_calls = True
    harness.actors, harness.stops = {0: [sleeping()], 1: [sleeping()]}, False
    for _ in range(2):
        report = interrupt_parts([harness.part(MONARCH_MESH)], kill_stuck=True)
        assert str(report).startswith("e.sleep at sleep.py:3 goes on: Monarch has no interrupt: stop() of its ProcMesh")
    assert harness.log == []
