"""What stands in the place of a live panel."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monarch_nb.client.pools.held import current_owner
from monarch_nb.notebook.panels.showing import pool_summary, reservation_summary
from monarch_nb.panel.shown.view import Before, Json, NodeAnswer, build_view, no_view
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.times import time_of_day
from unit.panel.replies import NOW, hold, node, run


@pytest.fixture
def nodes() -> list[pb.StatusReply]:
    """Two nodes of 4 CPU slots each, of which "dev" holds 2 each."""
    return [node("node0"), node("node1")]


@pytest.fixture
def meshes(nodes: list[pb.StatusReply]) -> list[pb.MeshStatus]:
    return hold(nodes, procs=2)


def view_of(replies: Sequence[pb.StatusReply]) -> Json:
    answers = [NodeAnswer(reply.node.node_id, reply=reply) for reply in replies]
    return build_view("local", answers, current_owner(), NOW, Before())


def kill(rank: pb.Rank) -> None:
    rank.state = pb.Rank.STATE_DEAD
    rank.death.signal = 9


def test_a_reservation_with_all_its_ranks(nodes: list[pb.StatusReply], meshes: list[pb.MeshStatus]) -> None:
    kill(meshes[1].ranks[1])
    shown = reservation_summary(view_of(nodes), "id-dev", "dev")
    lines = shown.splitlines()
    assert lines[:3] == ["dev · 2 nodes × 2 procs · 1 dead, 3 idle", "  node0  0-1 idle", "  node1  2 idle, 3 dead"]
    assert lines[3].startswith("  rank 3 killed by signal 9 (SIGKILL)")


def test_time_runs_and_memory_are_told(nodes: list[pb.StatusReply], meshes: list[pb.MeshStatus]) -> None:
    for reply in nodes:
        reply.reservations[0].time_s, reply.reservations[0].time_left_s = 8 * 3600, 2 * 3600
    run(meshes, cell_number=12, running_s=130.0)
    meshes[0].ranks[0].memory_bytes = 300_000_000
    plain = reservation_summary(view_of(nodes), "id-dev", "dev")
    assert plain.splitlines()[0] == "dev · 2 nodes × 2 procs · 2 h left · 4 running"
    assert "cell 12 runs for 2 min 10 s: train()" in plain
    assert plain.endswith(f"  300 MB in memory · as of {time_of_day(NOW)}")


def test_what_is_released_says_so_and_why(nodes: list[pb.StatusReply]) -> None:
    view = view_of(nodes)
    assert reservation_summary(view, "gone", "dev") == "dev · it has been released"
    view["ended"] = [{"id": "gone", "text": "dev was released at 02:15 in a terminal"}]
    assert reservation_summary(view, "gone", "dev") == "dev was released at 02:15 in a terminal"
    away = no_view("local", "me", NOW, "node0 does not answer")
    assert reservation_summary(away, "gone", "dev") == "dev · node0 does not answer"


def test_a_large_mesh_stays_small_in_a_saved_notebook() -> None:
    nodes = [node(f"node{number}", procs=8) for number in range(16)]
    hold(nodes, procs=8)
    shown = reservation_summary(view_of(nodes), "id-dev", "dev")
    assert "node15  120-127 idle" in shown
    assert len(shown) < 1000


def test_a_pool_shows_its_room_what_one_holds_and_what_others_hold(nodes: list[pb.StatusReply]) -> None:
    hold(nodes[:1], procs=2)
    hold(nodes[1:], "theirs", procs=4, owner="ann")
    assert pool_summary(view_of(nodes)).split("\n\n") == [
        "pool local · node0: 2 of 4 procs free · node1: 0 of 4 procs free",
        "dev · 1 node × 2 procs · 2 idle\n  node0  0-1 idle\n  as of " + time_of_day(NOW),
        "theirs: 1 node × 4 procs, held by ann",
    ]
