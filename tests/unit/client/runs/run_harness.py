"""A run on two nodes that are made up, and what its listener is told."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import ALLOCATOR_DOWN
from monarch_nb.client.runs.run import Run
from monarch_nb.errors import RunNotFound
from monarch_nb.ground.frames import pack_pickle
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire


class FakeConnection:
    def __init__(self, name: str) -> None:
        self.name, self.identity = name, None
        self.absence = f"{name} {ALLOCATOR_DOWN}"

    async def read_blob(self, mesh_id: str, blob: str) -> bytes:
        if blob == "gone":
            raise RunNotFound("not kept any more")
        return packed(f"from {blob}")


class FakeSession:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.asked: list[int] = []

    def submit(self, _: Run, submit: pb.Submit, numbered_by: int) -> None:
        self.asked.append(numbered_by)
        self.sent.append(("submit", pb.Submit.FromString(submit.SerializeToString())))

    def can_ask(self, node: int) -> bool:
        return True

    def number_by(self, run_id: str, node: int, newest: int) -> None:
        self.asked.append(node)

    def end_calls(self, run_id: str) -> None:
        self.sent.append(("end_calls", run_id))

    def follow(self, _: Run, mesh_id: str, *, from_shown: bool) -> None:
        self.sent.append(("follow", from_shown))

    def replay(self, _: Run, mesh_id: str) -> None:
        self.sent.append(("replay", mesh_id))

    def withdraw_cancel(self, run_id: str, nodes: Collection[int]) -> None:
        self.sent.append(("withdraw", sorted(nodes)))

    def cancel(self, run_id: str, whence: str = "") -> None:
        self.sent.append(("cancel", run_id))


class FakeCore:
    """Two nodes of four ranks."""

    first_node = newest_number = 0
    line_text = ""
    healed: ClassVar[list[str]] = []
    lost: int | None = None

    def __init__(self) -> None:
        self.session = FakeSession()
        self.told_collected: list[str] = []
        self.connections: dict[int, Any] = {0: FakeConnection("node0"), 1: FakeConnection("node1")}
        self.aborted: list[tuple[str, int]] = []
        self.asked_where: list[list[int]] = []
        self.places: dict[int, run_pb2.Where] = {}
        self.restarted: list[tuple[int, ...]] = []
        self.collected: list[str] = []

    def way_on(self, said: str) -> str:
        return ""

    def by_node(self, ranks: Iterable[int]) -> dict[int, list[int]]:
        nodes: dict[int, list[int]] = {}
        for rank in ranks:
            nodes.setdefault(rank // 4, []).append(rank)
        return nodes

    def connection_of(self, rank: int) -> Any:
        return self.connections[rank // 4]

    def is_node_up(self, node: int) -> bool:
        return node != self.lost

    async def number_of(self, run_id: str) -> int:
        return 0

    def collect(self, run_id: str) -> None:
        self.told_collected.append(run_id)

    async def choose_first(self) -> None:
        self.first_node = min(node for node in self.connections if node != self.lost)

    async def abort_groups(self, reason: str, *, last_run: int) -> None:
        self.aborted.append((reason, last_run))

    async def control(self, ranks: list[int], **message: Any) -> dict[int, wire.ControlReply]:
        return {}

    async def where(self, ranks: list[int], run_id: str = "", *, is_urgent: bool = True) -> dict[int, run_pb2.Where]:
        self.asked_where.append(ranks)
        return self.places

    async def names_running_on(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return ("run 4, cell [3]",) if ranks else ()

    async def restart(self, ranks: Iterable[int]) -> None:
        self.restarted.append(tuple(ranks))


async def several_turns() -> None:
    """Let tasks that wait for nothing come to their end."""
    for _ in range(10):
        await asyncio.sleep(0)


class Harness:
    """A run, what its listener was told, and its nodes."""

    def __init__(self, ranks: Iterable[int] = range(8), *, listen: bool = True, **options: Any) -> None:
        self.core = FakeCore()
        self.told: list[events.Event] = []
        holder, extent = SimpleNamespace(name="dev", pool=""), SimpleNamespace(size=8)
        mesh: Any = SimpleNamespace(core=self.core, id="mesh", extent=extent, reservation=holder)
        self.run = Run(mesh, "run-id", ranks, "title", listener=self.told.append if listen else None, **options)
        self.nodes = [self.core.connections[0], self.core.connections[1]]
        self.session = self.core.session

    def start(self) -> None:
        self.run.submit(run_pb2.RunSpec(run_id="run-id"))

    def queued(self, node: int = 0, number: int = 5, **more: Any) -> None:
        nodes = pb.NumberRanges(bounds=(node, node + 1))
        self.run.on_queued(pb.Queued(run_id="run-id", number=number, nodes=nodes, **more))

    def output(self, rank: int, *items: pb.OutputItem) -> None:
        output = pb.Output(run_id="run-id", ranks=[pb.RankOutput(rank=rank, items=items)])
        self.run.on_output(output)

    def finished(self, *ranks: int, **result: Any) -> None:
        for rank in ranks:
            packed = run_pb2.RankResult(rank=rank, **{"outcome": run_pb2.OUTCOME_OK, **result})
            self.run.on_finished(pb.Finished(run_id="run-id", results=[packed]))

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]


def packed(value: object) -> bytes:
    return b"".join(pack_pickle(value, cloudpickle.dumps))


def out(data: bytes) -> pb.OutputItem:
    return pb.OutputItem(stdout=data)
