"""More nodes and fewer: what is said before, what it costs, and what is done."""

from __future__ import annotations

import pytest

from monarch_nb.client.pools.held import current_owner
from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from unit.panel.asking import ask, refused
from unit.panel.fake_pool import FakeNode, FakePool
from unit.panel.replies import hold, node


def resized(panel: Panel, nodes: object, mesh: str = "all") -> Json:
    """What the form says."""
    return ask(panel, "check", action="resize", reservation="id-dev", values={"nodes": nodes, "mesh": mesh})


def test_more_nodes_are_named_before(panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    hold([fake.reply for fake in pool.fakes], procs=2)
    pool.fakes.append(FakeNode(node("node2")))
    assert resized(panel, 3) == {"ok": True, "message": "node2 besides; all has 6 ranks then, others stay"}
    assert resized(panel, 2)["errors"] == {"nodes": "dev has 2 nodes already"}
    assert resized(panel, 0)["errors"] == {"nodes": "at least 1"}
    monkeypatch.setattr(pool, "prospect", lambda *_, **__: "")
    assert not (answer := resized(panel, 4))["ok"]
    assert "but only 1 of 1 other node can take 2 procs" in answer["errors"]["nodes"]
    left = pool.fakes.pop()
    alone = "the pool has no other node that answers: Add nodes… (at Nodes) makes it larger"
    panel.live.wake()
    assert resized(panel, 4)["errors"] == {"nodes": alone}
    pool.fakes.append(left)
    owners: list[tuple[str, str]] = []

    def prospect(*_: object, but: tuple[str, str], **__: object) -> str:
        owners.append(but)
        return "4 nodes × 4 procs"

    monkeypatch.setattr(pool, "prospect", prospect)
    becomes = "the local pool becomes 4 nodes × 4 procs for it"
    assert resized(panel, 4)["message"] == f"{becomes}; all has 8 ranks then, others stay"
    assert owners == [("dev", current_owner())], "its own nodes are not free for it"


def test_a_node_that_does_not_answer(panel: Panel, pool: FakePool) -> None:
    """It is the first to be given back, and no ranks can start there."""
    pool.fakes.append(FakeNode(node("node2")))
    hold([fake.reply for fake in pool.fakes], procs=2)
    ask(panel, "view")
    pool.fakes[0].alive = False
    panel.live.wake()
    assert resized(panel, 2)["errors"] == {"nodes": "main has ranks on node0: main stays on its nodes"}
    away = {"nodes": "node0 does not answer: Replace nodes… first, or have fewer nodes"}
    assert resized(panel, 4)["errors"] == away
    assert refused(panel, "resize", reservation="id-dev", values={"nodes": 4})["errors"] == away


def beside(fake: FakeNode, name: str, *ranks: int) -> None:
    """Let a node have a part of another mesh."""
    mesh = fake.reply.reservations[0].meshes.add(mesh_id=f"mesh-{name}", name=name)
    mesh.spec.extent.add(name="procs", size=len(ranks))
    for rank in ranks:
        mesh.ranks.add(rank=rank, pid=5000 + rank, state=pb.Rank.STATE_IDLE)


def test_nodes_without_ranks_are_given_back(panel: Panel, pool: FakePool) -> None:
    pool.fakes.append(FakeNode(node("node2")))
    hold([fake.reply for fake in pool.fakes], procs=2)
    third = pool.fakes[2]
    del third.reply.reservations[0].meshes[:]  # it came later
    assert resized(panel, 2) == {"ok": True, "message": "node2 given back"}
    text = ask(panel, "lost", action="resize", reservation="id-dev", values={"nodes": 2})["text"]
    assert text.startswith("Nothing is lost: all ranks stay as they are. Logs of ranks on node2 are deleted")
    beside(third, "eval", 0)
    panel.live.wake()
    assert resized(panel, 2)["errors"] == {"nodes": "eval has ranks on node2: %mesh stop eval ends them first"}
    several = "main and eval have ranks on node1, node2: main stays on its nodes"
    assert resized(panel, 1)["errors"] == {"nodes": several}
