"""Browsers are told what is not as they have it: not what counted on, and of a large mesh only what moved."""

from __future__ import annotations

import json
from typing import Any

from monarch_nb.panel.shown.changes import change, told
from monarch_nb.panel.shown.view import Before, Json
from monarch_nb.proto import allocator_pb2 as pb
from told import view_after
from unit.panel.replies import NOW, hold, node, run, view_of

LIMITS: dict[str, Any] = {"time_s": 100.0, "time_left_s": 80.0, "idle_s": 50.0, "idle_left_s": 40.0}


def is_told(facts: Json, after_s: float, **changes: object) -> bool:
    """Whether something, so much later and changed so, is told again."""
    before = told(None, {"thing": facts}, NOW)
    return told(before, {"thing": facts | changes}, NOW + after_s) is not before


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
    assert second is first
    assert told(second, {"state": "running", "running_s": 22.0, "cpu": 0.1}, NOW + 20) is not first
    later = told(first, {"state": "running", "running_s": 10.0, "cpu": 0.2}, NOW + 10)
    assert later == {"state": "running", "running_s": 0.0, "cpu": 0.2, "at_s": NOW}


def test_what_is_told_is_what_is_seen_however_the_view_changes() -> None:
    replies, before = [node("node0", gpus=2), node("node1", gpus=2)], Before()
    views = [view_of(*replies, before=before)]
    meshes = hold(replies, gpus=2, time_s=7200.0, time_left_s=3600.0)
    views.append(view_of(*replies, now=NOW + 1, before=before))
    run(meshes, running_s=1.0)
    replies[1].readings.gpus.add(index=1, utilisation=0.5, memory_used_bytes=10**9, memory_total_bytes=10**10)
    views.append(view_of(*replies, now=NOW + 2, before=before))
    meshes[1].ranks[0].state = pb.Rank.STATE_DEAD
    views.append(view_of(*replies, now=NOW + 3, before=before))
    views.append(view_of(replies[0], now=NOW + 4, before=before))
    del replies[0].reservations[:]
    views.append(view_of(replies[0], now=NOW + 5, before=before))
    kept, last = None, None
    for view in views:
        now = told(last, view, view["now"])
        event = {"type": "view", "view": now} if last is None else change(last, now)
        kept = view_after(kept, json.loads(json.dumps(event)))
        assert kept | {"now": 0} == json.loads(json.dumps(now)) | {"now": 0}
        last = now


def test_of_2048_ranks_those_are_told_that_changed() -> None:
    replies = [node(f"node{number}", procs=8) for number in range(256)]
    meshes = hold(replies, procs=8)
    run(meshes, running_s=1.0)
    before = told(None, view_of(*replies), NOW)
    for mesh in meshes:
        for rank in mesh.ranks:
            rank.running_s += 1.0
    later = told(before, view_of(*replies, now=NOW + 1), NOW + 1)
    assert change(before, later) is None
    meshes[100].ranks[3].state = pb.Rank.STATE_DEAD
    event = change(later, told(later, view_of(*replies, now=NOW + 1), NOW + 1))
    assert event is not None
    (ranks,) = [mesh["~"]["ranks"] for mesh in event["reservations"]["id-dev"]["~"]["meshes"]["~"].values()]
    assert list(ranks["~"]) == ["803"]
    assert ranks["~"]["803"]["~"]["state"] == "dead"
    assert len(json.dumps(event)) < 1000


def test_an_object_with_other_keys_comes_whole() -> None:
    rest: Json = {"pool": {}, "pools": [], "ended": [], "now": NOW, "nodes": {}}
    view = told(None, rest | {"reservations": {"a": {"extent": {"gpus": 2}}}}, NOW)
    event = change(view, told(view, rest | {"reservations": {"a": {"extent": {"hosts": 2}}}}, NOW))
    assert event is not None
    assert event["reservations"] == {"a": {"~": {"extent": {"hosts": 2}}}}
