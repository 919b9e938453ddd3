"""Requests by name: what they answer, and how they refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.logs.lines import LogLines
from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.pools.leasing import Released
from monarch_nb.errors import NodeUnreachable
from monarch_nb.panel import actions
from monarch_nb.panel.logs.log import LogRequest, Logs
from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from monarch_nb.proto import allocator_pb2 as pb
from unit.panel.asking import ask, finished, refused
from unit.panel.fake_pool import FakeNode, FakePool, Inbox
from unit.panel.replies import hold, node, run

VALUES = {"name": "dev", "nodes": 2, "kind": "procs", "per_node": 4}


# ---- view, forms, check ----


def test_a_check_says_what_is_wrong_with_a_name(panel: Panel) -> None:
    assert ask(panel, "check", action="reserve", values=VALUES | {"name": "🚀"})["ok"]
    for name in ("a b", "a/b", "x" * 65):
        errors = ask(panel, "check", action="reserve", values=VALUES | {"name": name})["errors"]
        assert "at most 64 characters, no spaces or slashes" in errors["name"]


def test_a_check_says_who_holds_what_is_missing_and_for_whom_one_would_wait(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[1].reply], "other", procs=3)
    told = ask(panel, "check", action="reserve", values=VALUES)
    assert "only 1 of 2 nodes can take 4 procs; Wait in line waits for it" in told["errors"]["nodes"]
    assert "other" in told["message"]
    told = ask(panel, "check", action="reserve", values=VALUES | {"wait": True})
    assert told["ok"]
    assert re.fullmatch(r"waits in line: other \(.+\) holds 3 procs", told["message"])


def test_nobody_waits_in_line_for_what_the_pool_will_never_have(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePool, "prospect", lambda *_, **__: "")
    told = ask(panel, "check", action="reserve", values=VALUES | {"nodes": 3, "wait": True})
    assert "nodes" in told["errors"]


def test_gpus_on_which_others_compute_are_taken_when_asked_for(panel: Panel, pool: FakePool) -> None:
    reply = node("node0", gpus=2)
    reply.node.gpus[1].used_by.add(pid=4711, name="python", user="bob")
    reply.node.gpus_free = 1
    pool.fakes[0].reply = reply
    values = VALUES | {"nodes": 1, "kind": "gpus", "per_node": 2}
    told = ask(panel, "check", action="reserve", values=values)
    assert "Use busy GPUs also takes those that others use" in told["errors"]["nodes"]
    told = ask(panel, "check", action="reserve", values=values | {"force_busy": True})
    assert told["ok"]


def test_a_pool_of_which_no_node_answers_takes_nothing(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakePool, "prospect", lambda *_, **__: "")
    for fake in pool.fakes:
        fake.refuses = True
    told = ask(panel, "check", action="reserve", values=VALUES)
    assert told["errors"] == {
        "nodes": "no node of the pool 'local' answers: nothing can be reserved there until one does"
    }


def test_a_name_that_is_held_with_another_shape_is_refused_at_the_name(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=1)
    assert "name" in ask(panel, "check", action="reserve", values=VALUES)["errors"]
    same = VALUES | {"nodes": 1, "per_node": 1}
    assert ask(panel, "check", action="reserve", values=same)["message"] == "you hold dev already, with 1 node × 1 proc"


def test_without_a_pool_a_local_one_would_be_started_and_there_are_no_gpus(panel: Panel, pool: FakePool) -> None:
    pool.fakes.clear()
    assert "starts first" in ask(panel, "check", action="reserve", values=VALUES)["message"]
    gone = refused(panel, "reserve", values=VALUES | {"kind": "gpus"})
    assert (gone["status"], list(gone["errors"])) == (409, ["kind"])
    assert ask(panel, "check", action="reserve", values=VALUES | {"kind": "gpus"})["message"] == gone["message"]
    assert "the pool is no longer up" in gone["message"]


def test_a_form_that_was_opened_while_there_were_gpus_still_reserves(panel: Panel) -> None:
    told = ask(panel, "check", action="reserve", values=VALUES | {"force_busy": True})
    assert told["ok"]


# ---- jobs ----


class Reserved:
    """Stands for a Reservation."""

    id, pool = "id-dev", "local"
    detached = False

    def detach(self) -> None:
        Reserved.detached = True


def test_reserving_passes_on_what_was_filled_in(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def reserve(name: str, **options: Any) -> Reserved:
        asked.append((name, options))
        options["progress"]("starting 8 ranks")
        return Reserved()

    monkeypatch.setattr(actions, "reserve", reserve)
    values = VALUES | {"time": "8h", "idle": "", "wait": True}
    job = finished(panel, "reserve", values=values, notebook="/home/me/a.ipynb", python="/usr/bin/python3")
    assert (job["state"], job["result"]) == ("done", {"reservation": "id-dev", "pool": "local"})
    ((name, options),) = asked
    assert (name, options["nodes"], options["procs"], options["gpus"]) == ("dev", 2, 4, None)
    assert (options["time"], options["idle"]) == (28800.0, None)
    assert (options["wait"], options["force_busy"]) == (True, False)
    assert (options["notebook"], options["python"]) == ("/home/me/a.ipynb", "/usr/bin/python3")
    assert Reserved.detached  # else it would never count as idle


def test_a_job_is_told_to_who_connects_meanwhile(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def reserve(_: str, **options: Any) -> None:
        begun.set()
        goes_on.wait(10)

    monkeypatch.setattr(actions, "reserve", reserve)
    job = ask(panel, "reserve", values=VALUES)["job"]
    assert begun.wait(10)
    inbox = Inbox()
    subscription = panel.subscribe(inbox.deliver).result(10)
    while (event := inbox.any())["type"] != "job":
        pass
    assert event["job"]["id"] == job["id"]
    told = refused(panel, "reserve", values=VALUES)
    assert "is being reserved, or waits in line, already" in told["errors"]["name"], "not two in line for one name"
    goes_on.set()
    subscription.close_soon()


def test_a_pool_whose_start_is_cancelled_is_ended_again(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.fakes.clear()
    ended: list[str] = []

    def up(**options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "up", up)
    monkeypatch.setattr(pool, "down", lambda force=False, **_: ended.append("down"))
    assert finished(panel, "up", values={})["state"] == "cancelled"
    assert ended == ["down"]


def test_what_was_released_elsewhere_just_now_fails_the_job(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reservations() -> list[object]:
        return []

    hold([pool.fakes[0].reply], procs=2)
    monkeypatch.setattr(pool, "reservations", reservations)
    job = finished(panel, "release", reservation="id-dev")
    assert (job["state"], job["error"]) == ("failed", "dev was released meanwhile")


@pytest.mark.parametrize("error", [NodeUnreachable("no node answers"), None])
def test_what_no_node_tells_of_any_more_is_asked_of_those_that_did(
    error: Exception | None, panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reservations() -> list[object]:
        if error:
            raise error
        return []

    async def release(nodes: Iterable[FakeNode], _: str, *, by: str) -> Released:
        return Released(failed=[NodeUnreachable(f"{node.name} does not answer", node.name) for node in nodes])

    hold([pool.fakes[0].reply], procs=2)
    ask(panel, "view")
    pool.fakes[0].refuses = True
    call(panel.live.refresh())
    monkeypatch.setattr(pool, "reservations", reservations)
    monkeypatch.setattr(actions, "release", release)
    job = finished(panel, "release", reservation="id-dev")
    assert job["state"] == "failed"
    assert job["error"].startswith("dev is not released, because no node of it answers (node0 does not answer): when")


def test_nodes_that_are_away_are_told_of_a_release_as_well(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reservations() -> list[HeldReservation]:
        (held,) = await FakePool.reservations(pool)
        held.absent[1] = pool.fakes[1]  # type: ignore[assignment]
        return [held]

    async def release(nodes: Iterable[FakeNode], _: str, *, by: str) -> Released:
        assert by == "in the panel"
        told.extend(node.name for node in nodes)
        return Released()

    told: list[str] = []
    hold([pool.fakes[0].reply], procs=2)
    monkeypatch.setattr(pool, "reservations", reservations)
    monkeypatch.setattr(actions, "release", release)
    assert finished(panel, "release", reservation="id-dev")["state"] == "done"
    assert told == [pool.fakes[0].name, pool.fakes[1].name]


def test_what_ended_by_itself_says_why(panel: Panel, pool: FakePool) -> None:
    owner = ask(panel, "view")["owner"]
    pool.fakes[0].reply.ended.add(
        reservation_id="gone", name="dev", owner=owner, ended_at=1.0, why="its time of 8 h was up"
    )
    error = refused(panel, "extend", reservation="gone", values={"by": "1h"})
    assert error["status"] == 404
    assert "its time of 8 h was up" in error["message"]


# ---- refusals ----

BAD = {
    "check": {"action": 7},
    "reserve": {"values": {"nodes": 0}},
    "up": {"values": {"nodes": "many"}},
    "release": {},
    "replace": {},
    "extend": {"reservation": "id-dev", "values": {"by": "soon"}},
    "resize": {"reservation": "id-dev", "values": {"nodes": 0}},
    "restart": {"reservation": "id-dev", "ranks": "99"},
    "interrupt": {"reservation": "id-dev", "ranks": "x"},
    "stacks": {"reservation": "id-dev", "ranks": 3},
    "lost": {"reservation": 7},
    "attach_lines": {"reservation": None},
    "cancel": {},
    "log_open": {"mesh": "mesh-dev", "streams": "stdin"},
    "log_rows": {"log": "x", "first": -1, "count": 1},
    "log_find": {"log": 1, "text": "x"},
    "log_row": {"log": "x", "row": -1},
    "log_close": {},
    "own_lines": {"mesh": "mesh-dev", "run": 1, "lines": "3", "text": "x"},
    "curves_found": {"mesh": "mesh-dev", "run": "x"},
    "curves_read": {"mesh": "mesh-dev", "runs": [1], "names": "loss"},
    "top": {"mesh": "mesh-dev", "ranks": 7},
}
"""Every request that takes something, and a body that makes no sense."""

RESERVATION = {"reservation": "x", "by": "1h"}
MESH = {"mesh": "x", "run": 1, "lines": "0:0", "text": "x", "runs": [1], "names": ["loss"]}
LOG = {"log": "x", "first": 0, "count": 1, "text": "x", "from": 0, "row": 0}
UNKNOWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("release", "extend", "resize", "replace", "restart", "interrupt", "stacks"), RESERVATION),
    **dict.fromkeys(("lost", "attach_lines"), RESERVATION),
    **dict.fromkeys(("log_open", "own_lines", "curves_found", "curves_read", "top"), MESH),
    **dict.fromkeys(("log_rows", "log_find", "log_row"), LOG),
    "check": {"action": "dance", "values": {}},
    "cancel": {"job": "x"},
    "dance": {},
}
RANKS = ({"ranks": "9"}, 400), ({"ranks": "x"}, 400), ({"ranks": [1]}, 400), ({"mesh": "nonsense"}, 404)
WINDOWS = {}, {"first": 0, "count": 10**9}, {"first": "0", "count": 1}
LOGS = {"ranks": "99"}, {"run": 0}, {"run": "1"}, {"search": 1}, {"regex": "yes"}, {"fold": "some"}


def test_nonsense_is_refused_with_a_message(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2, time_s=100.0)
    bad = [(name, BAD[name]) for name in panel._handlers if name not in ("view", "forms")]
    bad += [("log_rows", {"log": "x", **window}) for window in WINDOWS]
    bad += [("log_open", {"mesh": "mesh-dev", **log}) for log in LOGS]
    for name, body in bad:
        error = refused(panel, name, **body)
        assert (error["status"], bool(error["message"])) == (400, True), (name, body)
    for body in (None, [], "x", 3):
        assert panel.handle("view", body).result(10)["error"]["status"] == 400


def test_what_is_unknown_is_not_found(panel: Panel, pool: FakePool) -> None:
    for name, body in UNKNOWN.items():
        assert refused(panel, name, **body)["status"] == 404, name
    assert ask(panel, "log_close", log="nonsense") == {}


def test_bad_ranks_and_meshes_are_refused(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2)
    for name in ("restart", "interrupt", "stacks"):
        for body, status in RANKS:
            assert refused(panel, name, reservation="id-dev", **body)["status"] == status, (name, body)


def test_others_reservations_are_not_touched(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2, owner="somebody")
    for name, body in UNKNOWN.items():
        if "reservation" in body:
            error = refused(panel, name, **body | {"reservation": "id-dev"})
            assert (error["status"], "is held by somebody" in error["message"]) == (403, True), name


def test_who_may_run_cells_may_interrupt_and_not_restart(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2, owner="somebody", right=pb.RIGHT_RUN)
    both = ("interrupt", "restart")
    status = {name: refused(panel, name, reservation="id-dev", ranks="x")["status"] for name in both}
    assert status == {"interrupt": 400, "restart": 403}, "the ranks are looked at, or nothing is"


def test_a_pool_that_is_away_says_so(panel: Panel, pool: FakePool) -> None:
    pool.fakes.clear()
    for name, body in UNKNOWN.items():
        if body.keys() & {"reservation", "mesh"}:
            error = refused(panel, name, **body)
            assert (error["status"], error["message"]) == (503, "no pool 'local' is up"), name


def test_only_a_time_limit_can_be_extended(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2)
    error = refused(panel, "extend", reservation="id-dev", values={"by": "1h"})
    assert (error["status"], list(error["errors"])) == (409, ["by"])


def test_a_reservation_whose_nodes_are_away_is_not_used(panel: Panel, pool: FakePool) -> None:
    hold([fake.reply for fake in pool.fakes], procs=2)
    pool.fakes.pop()
    job = finished(panel, "stacks", reservation="id-dev")
    assert (job["state"], job["error"]) == ("failed", "'dev' is held, but 1 of its 2 nodes do not answer")


def test_what_needs_a_node_is_refused_until_one_answers_as_the_button_says(panel: Panel, pool: FakePool) -> None:
    larger = {"values": {"nodes": 2, "mesh": "main"}}
    hold([pool.fakes[0].reply], procs=2)
    ask(panel, "view")
    pool.fakes[0].refuses = True
    call(panel.live.refresh())
    shown = ask(panel, "view")["reservations"]["id-dev"]["refusals"]
    for name, body, button in (
        ("attach_lines", {}, "attach"),
        ("restart", {}, "restart"),
        ("resize", larger, "restart"),
        ("check", {"action": "resize", **larger}, "restart"),
        ("lost", {"action": "restart"}, "restart"),
        ("lost", {"action": "resize", **larger}, "restart"),
    ):
        error = refused(panel, name, reservation="id-dev", **body)
        assert (error["status"], error["message"]) == (409, shown[button]), name
    pool.fakes[0].refuses = False
    call(panel.live.refresh())
    assert ask(panel, "view")["reservations"]["id-dev"]["refusals"] == {}
    assert "code" in ask(panel, "attach_lines", reservation="id-dev")


# ---- what is told before ----


def test_what_a_release_would_lose(panel: Panel, pool: FakePool) -> None:
    (mesh,) = hold([pool.fakes[0].reply], procs=3)
    for rank in mesh.ranks:
        rank.memory_bytes = 400_000_000
    run([mesh], running_s=180.0, cell_number=12)
    mesh.ranks[2].state, mesh.ranks[2].run_id = pb.Rank.STATE_DEAD, ""
    mesh.runs.add(run_id="next", number=2, ranks=[0, 1, 2], all_ranks=[0, 1, 2], title="save()")
    assert ask(panel, "lost", reservation="id-dev")["text"].splitlines() == [
        "You lose:",
        "• the variables of 2 ranks, 800 MB in memory",
        "• run 1, cell [12] (train()), which has run for 3 min",
        "• run 2 (save()), which waits its turn",
        "• what was printed: the logs go with it",
        "Files that ranks wrote stay on their nodes; the panel says where.",
    ]


def test_what_a_restart_would_lose(panel: Panel, pool: FakePool) -> None:
    (mesh,) = hold([pool.fakes[0].reply], procs=3)
    run([mesh], running_s=180.0, finished=[0, 2], failed=[2])
    mesh.ranks[2].state, mesh.ranks[2].run_id = pb.Rank.STATE_DEAD, ""

    def lost(ranks: str | None) -> list[str]:
        text: str = ask(panel, "lost", action="restart", reservation="id-dev", ranks=ranks)["text"]
        return text.splitlines()

    assert lost(None) == [
        "You lose:",
        "• the variables of 2 ranks",
        "• run 1 (train()), which has run for 3 min",
        "Logs and files stay.",
    ]
    assert lost("0") == [
        "You lose:",
        "• the variables of 1 rank",
        "Logs and files stay. The other rank keeps its variables; process groups have to be made again.",
    ]
    assert lost("2") == ["Nothing is lost: none of these ranks lives. Logs and files stay."]


def test_what_a_node_takes_with_it_that_another_replaces(panel: Panel, pool: FakePool) -> None:
    (mesh,) = hold([pool.fakes[0].reply], procs=3)
    mesh.ranks[2].state = pb.Rank.STATE_DEAD
    held = ask(panel, "view")["reservations"]["id-dev"]
    *lost, kept = panel._actions.lost(held, held["meshes"][0], (1, 2), kept="It is on their nodes.").splitlines()
    assert lost == ["You lose:", "• the variables of 1 rank"]
    assert kept.startswith("It is on their nodes. The other rank keeps its variables;")


def test_the_lines_that_attach(panel: Panel, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], "it's", procs=1)
    code = ask(panel, "attach_lines", reservation="id-it's")["code"]
    assert code == "%load_ext monarch_nb\n%mesh attach 'it'\"'\"'s'"


# ---- logs ----


def test_a_log_is_of_all_nodes_although_the_view_has_heard_of_one(
    panel: Panel, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LogLines] = []

    async def note(_: Logs, lines: LogLines, request: LogRequest) -> Json:
        opened.append(lines)
        assert request.fold == "times", "as in cells on few ranks"
        return {}

    monkeypatch.setattr(Logs, "open", note)
    hold([fake.reply for fake in pool.fakes], procs=2)
    last = pool.fakes[1].reply.reservations.pop()
    assert ask(panel, "view")["reservations"]["id-dev"]["node_ids"] == ["node0"]
    pool.fakes[1].reply.reservations.append(last)
    ask(panel, "log_open", mesh="mesh-dev")
    assert [opened[0].node_of(rank) for rank in range(4)] == ["node0", "node0", "node1", "node1"]


# ---- anything ----


def test_an_error_of_the_clients_has_its_status(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fresh() -> None:
        raise NodeUnreachable("node0 does not answer")

    monkeypatch.setattr(panel.live, "fresh", fresh)
    assert refused(panel, "view") == {"status": 503, "message": "node0 does not answer", "errors": {}}


def test_a_fault_of_ours_is_told_and_logged(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fresh() -> None:
        raise KeyError("oops")

    monkeypatch.setattr(panel.live, "fresh", fresh)
    assert refused(panel, "view")["status"] == 500
    assert "the request view failed" in caplog.text


def test_a_reservation_that_is_new_can_be_used_at_once(panel: Panel, pool: FakePool) -> None:
    ask(panel, "view")
    hold([pool.fakes[0].reply], procs=2)
    assert "the variables of 2 ranks" in ask(panel, "lost", reservation="id-dev")["text"]
