"""Deaths and reservations that end are told, once."""

from __future__ import annotations

from monarch_nb.panel.shown.changes import notices
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.panel.replies import NOW, hold, node, view_of


def held(*dead: int, **facts: object) -> Json:
    reply = node()
    (mesh,) = hold([reply], procs=4, **facts)
    for rank in dead:
        mesh.ranks[rank].state = pb.Rank.STATE_DEAD
        mesh.ranks[rank].death.CopyFrom(run_pb2.Death(signal=9))
    return view_of(reply)


def texts(before: Json | None, view: Json) -> list[str]:
    return [notice["text"] for notice in notices(before, view)]


def test_ranks_that_died_alike_are_told_together_and_once() -> None:
    (notice,) = notices(held(), held(1, 2))
    assert notice["text"] == "ranks 1-2 of dev: killed by signal 9 (SIGKILL)"
    assert (notice["level"], notice["reservation"]) == ("error", "id-dev")
    assert texts(held(1), held(1)) == []
    assert texts(held(1), held(1, 2)) == ["rank 2 of dev: killed by signal 9 (SIGKILL)"]
    theirs = {"owner": "somebody"}
    assert texts(held(**theirs), held(1, **theirs)) == []


def test_who_begins_to_look_is_not_told_of_old_deaths_but_of_time_that_is_nearly_up() -> None:
    view = held(1, time_s=7200.0, time_left_s=300.0)
    (text,) = texts(None, view)
    assert text == "dev will be released in 5 min, when its time of 2 h is up: extend it to keep it"


def test_time_that_is_nearly_up_is_told_once_and_again_after_it_was_extended() -> None:
    near, far = held(time_s=7200.0, time_left_s=300.0), held(time_s=7200.0, time_left_s=3000.0)
    again = held(time_s=10800.0, time_left_s=300.0)
    assert len(texts(far, near)) == 1
    assert texts(near, near) == []
    (first,), (second,) = notices(far, near), notices(far, again)
    assert first["id"] != second["id"]


def test_what_ended_is_told_unless_it_ended_before_or_a_person_released_it() -> None:
    reply, owner = node(), view_of()["owner"]
    reply.ended.add(reservation_id="a", name="dev", owner=owner, ended_at=NOW, why="nobody used it for 2 h")
    reply.ended.add(reservation_id="b", name="dev", owner=owner, ended_at=NOW, by="in the panel")
    view = view_of(reply)
    (text,) = texts(view_of(node()), view)
    assert "nobody used it for 2 h" in text
    assert texts(None, view) == texts(view, view) == []
