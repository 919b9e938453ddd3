"""The actors of a reservation as the panel shows them: folded, bounded, the important ones first."""

from __future__ import annotations

from typing import Any

from monarch_nb.client.pools.held import current_owner
from monarch_nb.panel.shown.ranks import MAX_ACTORS, MAX_DOINGS
from monarch_nb.panel.shown.view import Before, Json, NodeAnswer, build_view
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.panel.replies import NOW, hold, node, view_of

COLLECTIVE = run_pb2.Where.STATE_COLLECTIVE
RUNNING = run_pb2.Where.STATE_RUNNING


def add(rank: pb.Rank, name: str = "trainers", **facts: Any) -> run_pb2.ActorStatus:
    """Let a rank have an actor."""
    actor: run_pb2.ActorStatus = rank.actors.add(name=name, class_name="__main__.Trainer", uid=f"uid-{name}")
    actor.MergeFrom(run_pb2.ActorStatus(**facts))
    return actor


def runs(line: str, state: run_pb2.Where.State.ValueType = RUNNING, **facts: Any) -> dict[str, Any]:
    """What an actor says that runs "step"."""
    collective = "all_reduce" if state == COLLECTIVE else ""
    return {"running": "step", "where": run_pb2.Where(state=state, line=line, collective=collective), **facts}


def actors_in(view: Json) -> Json:
    (reservation,) = view["reservations"].values()
    return dict(reservation["actors"])


def test_ranks_that_do_the_same_are_one_and_trouble_comes_first() -> None:
    replies = [node("node0"), node("node1")]
    meshes = hold(replies, procs=4)
    ranks = [rank for mesh in meshes for rank in mesh.ranks]
    for rank in ranks[:4]:
        add(rank, **runs(f"t.py:{rank.rank}", running_s=10 + rank.rank, waiting=rank.rank, caller="the notebook"))
    for rank in ranks[4:6]:
        add(rank, **runs("t.py:9", COLLECTIVE, running_s=3, caller=f"feeders[{rank.rank}]"))
    add(ranks[6], waiting=2)
    add(ranks[7], failure="Traceback\n  line\nValueError: no model")
    (actor,) = actors_in(view_of(*replies))["shown"]
    assert (actor["name"], actor["class"], actor["mesh"], actor["ranks"]) == ("trainers", "Trainer", "main", "0-7")
    failed, waiting, running, idle = actor["doings"]
    assert (failed["state"], failed["ranks"], failed["failure"]) == ("failed", "7", "ValueError: no model")
    assert (waiting["state"], waiting["ranks"], waiting["where"]) == ("waiting", "4-5", "all_reduce at t.py:9")
    assert waiting["caller"] == "", "not the same on all"
    assert (running["state"], running["ranks"], running["running"], running["where"]) == ("running", "0-3", "step", "")
    assert (running["running_s"], running["waiting"], running["caller"]) == (13, 3, "the notebook")
    assert (idle["state"], idle["ranks"], idle["waiting"], idle["running_s"]) == ("idle", "6", 2, None)


def test_a_rank_whose_actors_work_is_not_idle() -> None:
    reply = node()
    [mesh] = hold([reply], procs=4)
    add(mesh.ranks[0], **runs("t.py:1"))
    add(mesh.ranks[1], **runs("t.py:1", COLLECTIVE))
    add(mesh.ranks[2], failure="ValueError: no model")
    (reservation,) = view_of(reply)["reservations"].values()
    told = [(rank["state"], rank["detail"]) for rank in reservation["meshes"][0]["ranks"]]
    assert told == [
        ("running", "trainers.step"),
        ("waiting", "waits in all_reduce at t.py:1 (trainers.step)"),
        ("idle", ""),
        ("idle", ""),
    ]


def test_of_128_ranks_that_all_differ_little_is_shown() -> None:
    replies = [node(f"node{index}", procs=8) for index in range(16)]
    ranks = [rank for mesh in hold(replies, procs=8) for rank in mesh.ranks]
    for rank in ranks:
        for name in range(MAX_ACTORS + 3):
            add(rank, f"actor{name:02}", failure=f"ValueError: {rank.rank}" if name == MAX_ACTORS + 2 else "")
        rank.more_actors = 10
    told = actors_in(view_of(*replies))
    assert len(told["shown"]) == MAX_ACTORS
    assert told["more"] == 128 * (3 + 10)
    last = told["shown"][-1]
    assert last["name"] == f"actor{MAX_ACTORS + 2}", "one that has failed is shown"
    assert (len(last["doings"]), last["more"]) == (MAX_DOINGS, 128 - MAX_DOINGS)


def test_actors_of_monarchs_engine_have_ranks_of_their_own_and_are_chosen_by_their_nodes() -> None:
    reply = node()
    [mesh] = hold([reply], procs=2)
    for own, rank in enumerate([mesh.ranks[0], mesh.ranks[0], mesh.ranks[1], mesh.ranks[1]]):
        add(rank, actor_rank=own, **(runs("t.py:9") if own == 3 else {}))
    (actor,) = actors_in(view_of(reply))["shown"]
    assert (actor["ranks"], actor["actor_ranks"]) == ("0-1", "0-3")
    assert [(doing["state"], doing["ranks"]) for doing in actor["doings"]] == [("running", "3"), ("idle", "0-2")]


def test_of_a_node_that_does_not_answer_no_actors_are_known() -> None:
    replies = [node("node0"), node("node1")]
    for mesh in hold(replies, procs=1):
        add(mesh.ranks[0])
    answers = [NodeAnswer("node0", reply=replies[0]), NodeAnswer("node1", reply=replies[1], silent_s=4.0)]
    (actor,) = actors_in(build_view("local", answers, current_owner(), NOW, Before()))["shown"]
    assert actor["ranks"] == "0"
