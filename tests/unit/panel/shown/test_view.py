"""What allocators say becomes what the panel shows."""

from __future__ import annotations

import os
from typing import Any

import pytest

from monarch_nb.client.pools.held import current_owner
from monarch_nb.client.reservations.memory import Memory, memory_of_this_kernel
from monarch_nb.config import POOL_VARIABLE
from monarch_nb.panel.shown.view import Before, CpuSlots, Json, NodeAnswer, build_view
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.panel.replies import NOW, hold, node, run, view_of


def the_only(view: Json) -> Json:
    (reservation,) = view["reservations"].values()
    return dict(reservation)


def states(view: Json) -> list[str]:
    return [rank["state"] for rank in the_only(view)["meshes"][0]["ranks"]]


def test_a_node_is_as_it_answers() -> None:
    unready = node(ready=False)
    failed = node(ready=False)
    failed.node.template_error = "ImportError: no torch"
    for answer, pool, state in (
        (NodeAnswer("node0", alive=False, served=False), "up", "starting"),
        (NodeAnswer("node0"), "up", "starting"),
        (NodeAnswer("node0", reply=unready), "up", "starting"),
        (NodeAnswer("node0", reply=node()), "up", "ok"),
        (NodeAnswer("node0", reply=node(), silent_s=5.0), "silent", "silent"),
        (NodeAnswer("node0", reply=node(), error="connection refused"), "silent", "silent"),
        (NodeAnswer("node0", alive=False, reply=node()), "down", "dead"),
    ):
        view = build_view("local", [answer], "me", NOW, Before())
        assert (view["pool"]["state"], view["nodes"]["node0"]["state"]) == (pool, state)
        assert (view["pool"]["message"] is None) == (pool == "up")
        assert view["nodes"]["node0"]["startable"] == (state == "dead")
    shown = view_of(failed)["nodes"]["node0"]
    assert (shown["state"], "no torch" in shown["message"]) == ("dead", True)
    assert view_of()["pool"] == {"name": "local", "state": "down", "message": "no pool 'local' is up", "nodes": 0}


def test_a_pool_that_is_silent_says_why_when_all_nodes_say_the_same() -> None:
    def message(*errors: str) -> str:
        answers = [NodeAnswer(f"node{place}", reply=node(), error=error) for place, error in enumerate(errors)]
        said: str = build_view("lab", answers, "me", NOW, Before())["pool"]["message"]
        return said

    assert message("bob's certificate was revoked", "bob's certificate was revoked") == (
        "no node of the pool 'lab' answers: bob's certificate was revoked"
    )
    assert message("node0 does not answer", "node1 does not answer") == "no node of the pool 'lab' answers"


def test_a_notebook_uses_what_somebody_shares_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOL_VARIABLE, "local")
    reply = node()
    hold([reply], "dev", procs=1, owner="anna", right=pb.RIGHT_READ)
    view = view_of(reply, root="/home/me", memories=[now_held("/home/me/a.ipynb", "id-dev")])
    assert the_only(view)["used_by"] == ["a.ipynb"]
    assert the_only(view)["refusals"].keys() == {"restart", "resize"}, "which are anna's to do"
    monkeypatch.setenv(POOL_VARIABLE, "lab")  # which a notebook means that names none
    view = view_of(reply, root="/home/me", memories=[now_held("/home/me/a.ipynb", "id-dev")])
    assert the_only(view)["used_by"] == []


def test_only_a_notebook_below_the_servers_directory_has_a_path_there() -> None:
    for notebook, path in (
        ("/home/me/work/a.ipynb", "work/a.ipynb"),
        ("/elsewhere/a.ipynb", ""),
        ("/home/mean/a.ipynb", ""),
        ("", ""),
    ):
        reply = node()
        hold([reply], procs=1, notebook=notebook)
        assert the_only(view_of(reply, root="/home/me"))["notebook_path"] == path, notebook


def now_held(*facts: str) -> Memory:
    """What a notebook holds whose kernel lives: this process."""
    return memory_of_this_kernel(*facts)


ENDED = Memory("/home/me/a.ipynb", "id-old", pid=os.getpid(), began="long before")  # its pid is another's by now


def test_a_notebook_uses_what_its_kernel_is_attached_to() -> None:
    for memories, used_by, remembered_by in (
        ([], {}, {"new": ["a.ipynb"]}),
        ([now_held("/home/me/a.ipynb", "id-old")], {"old": ["a.ipynb"]}, {}),
        ([Memory("/home/me/a.ipynb", "id-old")], {}, {"old": ["a.ipynb"]}),
        ([ENDED], {}, {"old": ["a.ipynb"]}),
        ([now_held("/home/me/a.ipynb", "id-gone")], {}, {"new": ["a.ipynb"]}),
        ([now_held("/home/me/a.ipynb", "")], {}, {}),
        ([now_held("/home/me/a.ipynb", "id-elsewhere", "slurm")], {}, {}),
        ([now_held("/home/me/b.ipynb", "id-old")], {"old": ["b.ipynb"]}, {"new": ["a.ipynb"]}),
        ([now_held("/home/you/b.ipynb", "id-old")], {}, {"new": ["a.ipynb"]}),
    ):
        reply = node()
        hold([reply], "old", procs=1, notebook="/home/me/a.ipynb", created_at=NOW - 50)
        hold([reply], "new", procs=1, notebook="/home/me/a.ipynb", created_at=NOW - 10)
        view = view_of(reply, root="/home/me", memories=memories)
        held = view["reservations"].values()
        assert {each["name"]: each["used_by"] for each in held if each["used_by"]} == used_by
        assert {each["name"]: each["remembered_by"] for each in held if each["remembered_by"]} == remembered_by


def test_ranks_of_a_node_that_does_not_answer_or_never_did_are_unreachable() -> None:
    replies = [node("node0"), node("node1")]
    hold(replies, procs=2)
    answers = [NodeAnswer("node0", reply=replies[0]), NodeAnswer("node1", reply=replies[1], silent_s=4.0)]
    for view in (build_view("local", answers, "me", NOW, Before()), view_of(replies[0])):
        assert states(view) == ["idle", "idle", "unreachable", "unreachable"]
        assert the_only(view)["nodes_answering"] == 1
    for number in range(2):
        replies[0].reservations[0].members.add(node_id=f"node{number}")
    held = the_only(view_of(replies[0]))
    assert (held["node_ids"], held["nodes_answering"]) == (["node0", "node1"], 1), "others know of it"


def test_a_node_that_lost_its_place_while_it_was_away_is_none_of_the_reservations() -> None:
    """What it said last is from before."""
    replies = [node("node0"), node("node1"), node("node2")]
    hold(replies[:2], procs=2)
    hold([replies[0], replies[2]], "new", procs=2)
    for reply in replies:  # node2 has the place of node1
        for status in reply.reservations:
            status.reservation_id, status.meshes[0].mesh_id = "id-dev", "mesh-dev"
    del replies[0].reservations[0]
    for reply in (replies[0], replies[2]):
        status = reply.reservations[0]
        status.revision = 1
        status.members.add(node_id="node0")
        status.members.add(node_id="node2")
    answers = [NodeAnswer(f"node{number}", reply=reply) for number, reply in enumerate(replies)]
    answers[1].silent_s = 4.0
    view = build_view("local", answers, "me", NOW, Before())
    assert states(view) == ["idle"] * 4
    held = the_only(view)
    assert (held["node_ids"], held["nodes"], held["nodes_answering"]) == (["node0", "node2"], 2, 2)


def test_what_was_released_while_a_node_was_away_is_not_shown_as_that_node_last_had_it() -> None:
    replies = [node("node0"), node("node1")]
    hold(replies, procs=2)
    for reply in replies:
        reply.node.address = reply.node.node_id
        for other in replies:
            reply.reservations[0].members.add(node_id=other.node.node_id, address=other.node.node_id)
    answers = [NodeAnswer(f"node{number}", reply=reply) for number, reply in enumerate(replies)]
    answers[0].silent_s = answers[1].silent_s = 4.0
    assert the_only(build_view("local", answers, "me", NOW, Before()))["nodes_answering"] == 0
    answers[0].silent_s = 0.0
    assert the_only(build_view("local", answers, "me", NOW, Before()))["nodes_answering"] == 1
    del replies[0].reservations[:]
    assert not build_view("local", answers, "me", NOW, Before())["reservations"]


def test_what_ranks_do() -> None:
    reply = node(procs=8)
    (mesh,) = hold([reply], procs=5)
    run([mesh], running_s=3.0)
    mesh.ranks[1].where.CopyFrom(
        run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, collective="all_reduce", line="train.py:41")
    )
    mesh.ranks[2].state, mesh.ranks[2].run_id = pb.Rank.STATE_IDLE, ""
    mesh.ranks[2].failure.CopyFrom(run_pb2.Failure(name="ValueError", message="bad", where="Cell In[7]:3"))
    mesh.ranks[3].state = pb.Rank.STATE_DEAD
    mesh.ranks[3].death.CopyFrom(run_pb2.Death(signal=9, likely_cause="out of memory", stderr_tail=["oh"]))
    mesh.ranks[4].state, mesh.ranks[4].run_id = pb.Rank.STATE_STARTING, ""
    mesh.ranks[0].trouble = "GPU 0 has fallen off the bus"
    ranks = the_only(view_of(reply))["meshes"][0]["ranks"]
    assert [(rank["state"], rank["detail"]) for rank in ranks] == [
        ("running", ""),
        ("waiting", "waits in all_reduce (train.py:41)"),
        ("failed", "ValueError: bad (Cell In[7]:3)"),
        ("dead", "killed by signal 9 (SIGKILL): out of memory"),
        ("starting", ""),
    ]
    assert (ranks[0]["run"], ranks[0]["running_s"]) == ("run1", 3.0)
    assert [rank["trouble"] for rank in ranks] == ["GPU 0 has fallen off the bus", "", "", "", ""]
    assert ranks[3]["stderr_tail"] == ["oh"]


def test_runs_of_all_nodes() -> None:
    replies = [node("node0"), node("node1")]
    meshes = hold(replies, procs=2)
    first = run(meshes, running_s=4.0, cell_number=12)
    first[0].finished.append(0)
    first[0].failed.append(0)
    for part in run(meshes, "run2", 2):
        part.ClearField("running")
        for mesh in meshes:
            for rank in mesh.ranks:
                rank.run_id = "run1"
    running, queued = the_only(view_of(*replies))["meshes"][0]["runs"]
    assert (running["state"], running["ranks"], running["finished"], running["failed"]) == ("running", "0-3", "0", "0")
    assert (running["running_s"], running["cell_number"], running["title"]) == (4.0, 12, "train()")
    assert queued["state"] == "queued"


def test_readings_of_a_node_and_its_gpus_are_rounded() -> None:
    reply = node(gpus=1)
    hold([reply], gpus=1)
    gpu = pb.GpuReading(index=0, utilisation=0.931, temperature_c=54.4, power_w=311.7)
    memory = {"memory_used_bytes": 10_010_000_000, "memory_total_bytes": 32_000_000_000}
    reply.readings.CopyFrom(pb.NodeReadings(cpu=0.4218, gpus=[gpu], **memory))
    shown = view_of(reply)["nodes"]["node0"]
    assert (shown["cpu"], shown["memory"]) == (0.42, {"used": 10_000_000_000, "total": 32_000_000_000})
    slot = shown["slots"][0]
    assert (slot["rank"], slot["utilisation"], slot["temperature_c"], slot["power_w"]) == (0, 0.93, 54, 312)


def test_gpus_that_others_hold_are_not_drawn_as_free() -> None:
    reply = node(gpus=3)
    hold([reply], gpus=2, owner="bob")
    del reply.reservations[0].meshes[:]  # as a node tells of what is others'
    reply.node.holders[0].owner = "bob"
    reply.node.holders[0].gpu_indices.extend([0, 2])
    slots = view_of(reply)["nodes"]["node0"]["slots"][:3]
    assert [slot["reservation"] for slot in slots] == ["id-dev", None, "id-dev"]
    assert {slot["rank"] for slot in slots} == {None}


def test_cpu_slots_show_the_ranks_in_them() -> None:
    reply = node(procs=3)
    (mesh,) = hold([reply], procs=2)
    mesh.ranks[1].cpu, mesh.ranks[1].memory_bytes = 0.987, 18_400_000
    slots = view_of(reply)["nodes"]["node0"]["slots"]
    assert [(slot["reservation"], slot["rank"]) for slot in slots] == [("id-dev", 0), ("id-dev", 1), (None, None)]
    assert (slots[1]["utilisation"], slots[1]["memory"]) == (0.99, {"used": 18_000_000, "total": None})


def test_slots_of_others_stay_where_they_are_when_a_reservation_goes() -> None:
    slots = CpuSlots()
    assert slots.assign("node0", 4, {"a": 1, "b": 2}) == ["a", "b", "b", None]
    assert slots.assign("node0", 4, {"b": 2}) == [None, "b", "b", None]
    assert slots.assign("node0", 4, {"b": 2, "c": 2}) == ["c", "b", "b", "c"]


def test_time_left() -> None:
    def told(confirmed: bool = True, **limits: float) -> list[object]:
        reply = node()
        hold([reply], procs=1, **limits)
        reply.reservations[0].confirmed = confirmed
        held = the_only(view_of(reply))
        return [held[key] for key in ("time_s", "time_left_s", "idle_s", "idle_left_s", "nearly_up")]

    left = {"time_left_s": 500.0, "idle_left_s": 600.0}
    assert told(time_s=7200.0, idle_s=600.0, **left) == [7200.0, 500.0, 600.0, 600.0, True]
    assert told(False, time_s=7200.0, idle_s=600.0) == [7200.0, None, 600.0, None, False], "no time runs"
    assert told() == [None, None, None, None, False]


def test_what_became_of_a_run_is_said_as_the_ranks_are() -> None:
    for facts, ranks, outcome, failed in (
        ({}, ["idle", "idle", "idle"], "finished", ""),
        ({"failed": [1]}, ["idle", "failed", "idle"], "failed on 1", "1"),
        ({"failed": [0, 1, 2]}, ["failed", "failed", "failed"], "failed", "0-2"),
        ({"failed": [1]}, ["idle", "dead", "idle"], "died on 1", "1"),
        ({"failed": [1], "stopped": [0, 2]}, ["idle", "failed", "idle"], "failed on 1, interrupted on 0,2", "1"),
        ({"stopped": [0, 1, 2]}, ["idle", "idle", "idle"], "interrupted", ""),
        ({"stopped": [0, 1, 2], "running_s": 0.0}, ["idle", "idle", "idle"], "cancelled", ""),
    ):
        reply = node()
        meshes = hold([reply], procs=3)
        (part,) = run(meshes, **{"running_s": 1.0, **facts})
        part.ClearField("running")
        part.finished.extend([0, 1, 2])
        part.collected = True  # the newest stays
        for rank, state in zip(meshes[0].ranks, ranks, strict=True):
            rank.run_id, rank.state = "", pb.Rank.STATE_DEAD if state == "dead" else pb.Rank.STATE_IDLE
            if state == "failed":
                rank.failure.CopyFrom(run_pb2.Failure(name="ValueError"))
        view = view_of(reply)
        told = the_only(view)["meshes"][0]["runs"][0]
        assert (states(view), told["outcome"], told["failed"]) == (ranks, outcome, failed)


def test_a_mesh_says_when_its_ranks_save_by_themselves() -> None:
    reply = node()
    (mesh,) = hold([reply])
    assert the_only(view_of(reply))["meshes"][0]["saves"] is None
    mesh.saves.CopyFrom(run_pb2.ArmSaves(directory="/home/ada/saves", every_steps=500, at_end=True))
    saves = {"when": "every 500 steps and before the nodes are taken away", "directory": "/home/ada/saves"}
    assert the_only(view_of(reply))["meshes"][0]["saves"] == saves


# ---- hangs ----

WAITS = {"all_reduce": "train.py:41", "broadcast": "train.py:57"}


def hanging(*waits: str, **facts: Any) -> pb.StatusReply:
    """A node whose ranks, a run going on, wait in these collectives; "" for those that do not."""
    reply = node()
    (mesh,) = hold([reply], procs=len(waits))
    run([mesh], running_s=3.0, **facts)
    for rank, collective in zip(mesh.ranks, waits, strict=True):
        if collective:
            where = run_pb2.Where(state=run_pb2.Where.STATE_COLLECTIVE, collective=collective, line=WAITS[collective])
            rank.where.CopyFrom(where)
        elif rank.rank in mesh.runs[0].finished:
            rank.state, rank.run_id = pb.Rank.STATE_IDLE, ""
    return reply


def hang_of(*replies: tuple[float, pb.StatusReply]) -> Any:
    """What the last of some views says, each of its time."""
    before, told = Before(), None
    for after_s, reply in replies:
        told = the_only(view_of(reply, now=NOW + after_s, before=before))["meshes"][0]["hang"]
    return told


def test_a_hang_says_what_became_of_the_others_and_is_over_when_its_run_is() -> None:
    for facts, state, fate in (
        ({}, pb.Rank.STATE_IDLE, "finished the cell"),
        ({"stopped": [0]}, pb.Rank.STATE_IDLE, "ended by an interrupt"),
        ({"failed": [0]}, pb.Rank.STATE_DEAD, "died"),
        ({"failed": [0]}, pb.Rank.STATE_IDLE, "restarted"),
    ):
        reply = hanging("", "all_reduce", finished=[0], **facts)
        reply.reservations[0].meshes[0].ranks[0].state = state
        assert (
            hang_of((0, reply), (2, reply))["text"]
            == f"rank 1 waits in all_reduce (train.py:41) for rank 0, which {fate}"
        )
        assert hang_of((0, reply), (2, reply), (3, hanging("", "", finished=[0, 1]))) is None


def test_ranks_that_wait_in_different_places_hang_only_when_that_lasts() -> None:
    reply, moved = hanging("all_reduce", "broadcast"), hanging("broadcast", "all_reduce")
    assert hang_of((0, reply), (5, reply)) is None
    assert hang_of((0, reply), (5, moved), (10, reply)) is None  # they make progress
    hang = hang_of((0, reply), (6, reply))
    assert (hang["ranks"], hang["text"].endswith(", for each other, it seems")) == ("0-1", True)


def test_calls_that_do_not_match_are_named() -> None:
    reply = hanging("all_reduce", "all_reduce")
    for rank, operands in zip(reply.reservations[0].meshes[0].ranks, ("float32[4]", "float32[8]"), strict=True):
        rank.where.call.CopyFrom(run_pb2.Call(collective="all_reduce", operands=operands, group="the default group"))
        rank.where.calls["the default group"] = 5
    assert hang_of((0, reply), (1, reply)) is None
    assert "call 5 in the default group is all_reduce of float32[4] on" in hang_of((0, reply), (2, reply))["text"]


def test_ranks_that_wait_for_one_that_works_do_not_hang() -> None:
    for waits in (("all_reduce", "all_reduce"), ("all_reduce", ""), ("", "")):
        reply = hanging(*waits)
        assert hang_of((0, reply), (100, reply)) is None


def test_what_ended_is_told_to_its_owner_only_and_can_not_be_used() -> None:
    reply = node()
    hold([reply], procs=1)
    reply.ended.add(reservation_id="id-dev", name="dev", owner=current_owner(), ended_at=NOW, by="in eval.ipynb")
    reply.ended.add(reservation_id="b", name="other", owner="somebody", ended_at=NOW, why="its time of 8 h was up")
    view = view_of(reply)
    assert set(the_only(view)["refusals"].values()) == {"dev is being released"}
    assert [(one["by"], one["text"].endswith(" in eval.ipynb")) for one in view["ended"]] == [("in eval.ipynb", True)]
