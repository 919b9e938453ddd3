"""Browsers are told what is not as they have it: not what counted on."""

from __future__ import annotations

from typing import Any

from monarch_nb.panel.shown.changes import told
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from unit.panel.replies import NOW, hold, node, run, view_of

LIMITS: dict[str, Any] = {"time_s": 100.0, "time_left_s": 80.0, "idle_s": 50.0, "idle_left_s": 40.0}


def is_told(facts: Json, after_s: float, **changes: object) -> bool:
    """Whether something, so much later and changed so, is told again."""
    before = told(None, {"thing": facts}, NOW)
    return bool(told(before, {"thing": facts | changes}, NOW + after_s) != before)


def test_times_that_run_as_counted_are_not_told_again() -> None:
    assert not is_told(LIMITS, 10, time_left_s=70.4, idle_left_s=29.6)
    assert is_told(LIMITS, 10, time_left_s=70.0, idle_left_s=40.0)
    assert is_told(LIMITS, 10, time_left_s=3670.0, idle_left_s=30.0)
    assert is_told(LIMITS, 10, time_left_s=None, idle_left_s=30.0)
    in_use = {"idle_s": 50.0, "idle_left_s": 50.0}
    assert not is_told(in_use, 100)
    assert is_told(in_use, 100, idle_left_s=45.0)
    for state, counts in (("running", True), ("waiting", True), ("finished", False)):
        facts = {"state": state, "running_s": 5.0}
        assert is_told(facts, 10, running_s=15.0) != counts
        assert is_told(facts, 10) == counts


def test_little_drifts_do_not_add_up_and_times_are_true_when_only_other_things_changed() -> None:
    first = told(None, {"state": "running", "running_s": 0.0, "cpu": 0.1}, NOW)
    second = told(first, {"state": "running", "running_s": 11.0, "cpu": 0.1}, NOW + 10)
    assert second == first
    assert told(second, {"state": "running", "running_s": 22.0, "cpu": 0.1}, NOW + 20) != first
    later = told(first, {"state": "running", "running_s": 10.0, "cpu": 0.2}, NOW + 10)
    assert later == {"state": "running", "running_s": 0.0, "cpu": 0.2, "at_s": NOW}


def test_of_2048_ranks_that_run_on_nothing_is_told() -> None:
    replies = [node(f"node{number}", procs=8) for number in range(256)]
    meshes = hold(replies, procs=8)
    run(meshes, running_s=1.0)
    before = told(None, view_of(*replies), NOW)
    for mesh in meshes:
        for rank in mesh.ranks:
            rank.running_s += 1.0
    assert told(before, view_of(*replies, now=NOW + 1), NOW + 1) == before | {"now": NOW + 1}
    meshes[100].ranks[3].state = pb.Rank.STATE_DEAD
    (mesh,) = told(before, view_of(*replies, now=NOW + 1), NOW + 1)["reservations"]["id-dev"]["meshes"]
    was = before["reservations"]["id-dev"]["meshes"][0]["ranks"]
    assert [rank["rank"] for rank, old in zip(mesh["ranks"], was, strict=True) if rank != old] == [803]
