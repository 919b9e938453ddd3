"""An allocator has its ranks save before the time is up, and tells new processes what is armed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.processes.grace import BEFORE_S, Grace
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire


class Link:
    def __init__(self, problem: str = "") -> None:
        self.told: list[wire.ControlRequest] = []
        self.problem = problem

    def tell(self, request: wire.ControlRequest) -> bool:
        self.told.append(request)
        return True

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> wire.ControlReply:
        self.told.append(request)
        return wire.ControlReply(saves=run_pb2.SavesStatus(path="/saves/0001", problem=self.problem))


@pytest.fixture
def rank() -> Any:
    return SimpleNamespace(home_id="m", record=SimpleNamespace(script_of=""), link=Link())


@pytest.fixture
def script() -> Any:
    return SimpleNamespace(home_id="m", record=SimpleNamespace(script_of="m"), link=Link())


@pytest.fixture
def grace(rank: Any, script: Any) -> Grace:
    record = state_pb2.MeshRecord(spec=pb.SpawnRequest(mesh_id="m", reservation_id="r"))
    records: Any = SimpleNamespace(meshes={"m": record}, save_mesh=lambda _: None)
    supervisor: Any = SimpleNamespace(ranks={("m", 0): rank, ("run", 0): script})
    node: Any = SimpleNamespace(records=records, supervisor=supervisor)
    return Grace(node, 0.0)


async def test_ranks_and_scripts_save_where_armed_for_the_end(grace: Grace, rank: Any, script: Any) -> None:
    grace.arm("m", run_pb2.ArmSaves(secret="s", every_s=60))
    assert grace.before_s("r") == 0
    await grace.save([rank, script], "the node is taken away", 5.0)
    assert not rank.link.told, "not for the end; a live rank is told by whoever asks for it"
    assert [each.WhichOneof("message") for each in script.link.told] == ["arm_saves"]
    grace.arm("m", run_pb2.ArmSaves(secret="s", at_end=True))
    assert grace.before_s("r") == BEFORE_S
    grace.ask_soon("unknown", "its time is up", 5.0)
    await grace.save([rank, script], "the node is taken away", 5.0, begin_within_s=2.0)
    for process in (rank, script):
        asked = process.link.told[-1].save_now
        assert (asked.why, asked.within_s, asked.is_last) == ("the node is taken away", 2.0, True)


async def test_a_process_learns_what_is_armed(grace: Grace, rank: Any) -> None:
    grace.tell(rank)
    assert not rank.link.told
    grace.arm("m", run_pb2.ArmSaves(secret="s", at_end=True, before_s=30))
    grace.tell(rank)
    assert rank.link.told[-1].arm_saves.before_s == 30
    grace.arm("m", run_pb2.ArmSaves())
    assert grace.armed("m") is None
    assert grace.before_s("r") == 0
