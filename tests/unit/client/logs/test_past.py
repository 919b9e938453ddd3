"""Which parts of what a reservation printed are asked for, and of whom."""

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.logs import records
from monarch_nb.proto import allocator_pb2 as pb


def part(mesh_id: str, *ranks: int) -> pb.PastLog:
    told = pb.PastLog(reservation_id="r", reservation="dev", ended_at=1.0, owner="me")
    told.mesh.mesh_id, told.mesh.name = mesh_id, "main"
    for rank in ranks:
        told.mesh.ranks.add(rank=rank)
    return told


def test_a_node_that_has_taken_over_another_s_part_is_asked_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = SimpleNamespace(name="node0", identity=None)
    reply = pb.StatusReply(past_logs=[part("own", 0, 1), part("taken over", 2, 3)])
    monkeypatch.setattr(records, "pool_named", lambda _: node)
    monkeypatch.setattr(records, "current_owner", lambda _: "me")
    monkeypatch.setattr(records, "_ask", lambda *_: None)
    monkeypatch.setattr(records, "call", lambda _: {"node0": reply})
    monkeypatch.setattr(records, "read_logs", lambda requests: [(each.mesh_id, [*each.ranks]) for _, each in requests])

    def asked(targets: str | None) -> Any:
        found = records.past_log("dev", None, targets=targets)
        assert found is not None
        return found.records(None, None)

    assert asked(None) == [("own", [0, 1]), ("taken over", [2, 3])]
    assert asked("hosts=1") == [("taken over", [2, 3])], "they are hosts as before"
