"""Subscribers hear what changed, never a backlog, and nodes are asked only while somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.panel import live as live_module
from monarch_nb.panel import ways
from monarch_nb.panel.live import Live, Subscription
from monarch_nb.panel.requests import Panel, Panels
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import paths_of
from unit.panel.asking import ask
from unit.panel.fake_pool import FakePool, Inbox
from unit.panel.replies import hold


@pytest.fixture
def live(pool: FakePool, panel: Panel) -> Iterator[Live]:
    made = Live(pool, refresh_s=3600.0, notice_s=7200.0)  # type: ignore[arg-type]
    yield made
    for subscription in list(made._subscriptions):
        closed(subscription)


def subscribed(live: Live, inbox: Inbox, *, looking: bool = True) -> Subscription:
    async def subscribe() -> Subscription:
        return live.subscribe(inbox.deliver, looking=looking)

    return call(subscribe())


def closed(subscription: Subscription) -> None:
    async def close() -> None:
        subscription.close()

    call(close())


def test_the_view_comes_first_and_again_when_it_has_changed(live: Live, pool: FakePool) -> None:
    inboxes = Inbox(), Inbox()
    for inbox in inboxes:
        subscribed(live, inbox)
        assert list(inbox.next("view")["view"]["nodes"]) == ["node0", "node1"]
    (mesh,) = hold([pool.fakes[1].reply], procs=2)
    call(live.refresh())
    for inbox in inboxes:
        assert list(inbox.next("view")["view"]["reservations"]) == ["id-dev"]
    mesh.ranks[1].state = pb.Rank.STATE_DEAD
    call(live.refresh())
    for inbox in inboxes:
        inbox.next("view")
        assert inbox.next("notice")["text"].startswith("rank 1 of dev")


def test_a_node_is_called_as_it_calls_itself_and_two_of_one_name_are_two(live: Live, pool: FakePool) -> None:
    pool.fakes[0].found = "10.0.0.1"
    pool.fakes[1].reply.node.node_id, pool.fakes[1].reply.node.address = "node0", "10.0.0.2:7878"
    assert list(call(live.fresh())["nodes"]) == ["node0", "node0 at 10.0.0.2:7878"]


def test_a_pool_of_hosts_says_why_it_can_not_be_used() -> None:
    make_pool("lab", "alice")
    view = call(Live(pool_named("lab"), refresh_s=3600.0, notice_s=7200.0).fresh())
    assert "has no nodes yet: monarch-nb pool add lab HOST" in view["pool"]["message"]
    make_pool("far", "alice")
    paths_of("far").identity.write_text("no certificate")
    view = call(Live(pool_named("far"), refresh_s=3600.0, notice_s=7200.0).fresh())
    assert view["pool"]["state"] == "silent"
    assert "is not a certificate" in view["pool"]["message"]


def test_where_no_pool_is_up_those_of_hosts_are_named(live: Live, pool: FakePool) -> None:
    make_pool("lab", "alice")
    pool.fakes.clear()
    assert call(live.fresh())["pool"]["message"] == (
        "no pool 'local' is up; you have the pool lab: JupyterLab's panel shows it when it is chosen at its top"
    )


def test_nothing_can_be_had_under_a_name_that_means_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """As $MONARCH_NB_POOL may have one."""
    monkeypatch.setattr(ways, "launcher_names", list)
    make_pool("lab", "alice")
    refusal = "there is no pool 'labb'; did you mean lab? there are local, lab"
    panel = Panel("labb", refresh_s=3600.0)
    view = ask(panel, "view")
    assert (view["pool"]["state"], view["pool"]["message"]) == ("down", refusal)
    values = {"name": "dev", "nodes": 1, "kind": "procs", "per_node": 1, "time": "", "idle": "", "wait": False}
    told = ask(panel, "check", action="reserve", values=values)
    assert (told["ok"], told["message"]) == (False, refusal)
    error = Panels().handle("view", {"pool": "labb"}).result()["error"]
    assert (error["status"], error["message"]) == (404, refusal)


def test_a_view_in_which_only_what_counts_counted_on_is_not_told_again(live: Live, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2, time_s=7200.0, time_left_s=3600.0)
    inbox = Inbox()
    subscribed(live, inbox)
    inbox.next("view")
    pool.fakes[0].reply.reservations[0].time_left_s -= 1.0
    call(live.refresh())
    live_events(live, 1)
    inbox.next("job")


def test_a_slow_browser_gets_the_newest_and_no_backlog(live: Live, pool: FakePool) -> None:
    inbox = Inbox()
    inbox.open.clear()
    subscribed(live, inbox)
    assert inbox.waiting.wait(10)
    for reply in (pool.fakes[0].reply, pool.fakes[1].reply):
        for procs in (1, 2, 3):
            reply.node.procs_free = procs
            call(live.refresh())
            live_events(live, 50)
    inbox.open.set()
    inbox.next("view")
    nodes = inbox.next("view")["view"]["nodes"].values()
    assert [node["procs"]["free"] for node in nodes] == [3, 3]
    assert inbox.next("job")["job"]["message"] == "49"
    assert inbox.next("log")["total"] == 49
    for _ in range(live_module.MAX_NOTICES):
        inbox.next("notice")
    assert inbox.empty


def live_events(live: Live, count: int) -> None:
    async def publish() -> None:
        for number in range(count):
            live.publish({"type": "job", "job": {"id": "a", "message": str(number)}})
            live.publish({"type": "log", "log": "b", "total": number})
            live.publish({"type": "notice", "id": str(number)})

    call(publish())


def test_nobody_is_asked_before_somebody_looks_and_after_the_last_has_left(live: Live, pool: FakePool) -> None:
    assert pool.fakes[0].asked == 0
    inbox = Inbox()
    subscription = subscribed(live, inbox)
    inbox.next("view")
    closed(subscription)

    async def ended() -> None:
        assert live._keeping is not None
        await live._keeping

    call(ended())
    asked = pool.fakes[0].asked
    call(live.fresh())
    call(live.fresh())
    assert pool.fakes[0].asked - asked <= 1  # a request, not a loop


@pytest.mark.parametrize("looking", [True, False])
def test_nodes_are_asked_often_only_while_a_browser_shows_them(pool: FakePool, panel: Panel, looking: bool) -> None:
    live = Live(pool, refresh_s=0.01, notice_s=3600.0)  # type: ignore[arg-type]
    inbox = Inbox()
    subscription = subscribed(live, inbox, looking=looking)
    inbox.next("view")
    pool.fakes[0].reply.node.procs_free = 1
    if looking:
        inbox.next("view")
    else:
        call(waiting(live))
        assert pool.fakes[0].asked == 1
        subscription.look_soon(True)
        inbox.next("view")
    closed(subscription)


async def waiting(live: Live) -> None:
    """Return when it has looked and waits."""
    async with live._refreshing:
        pass


def test_looks_at_a_large_pool_are_further_apart(pool: FakePool, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 nodes, one look in an hour is enough here, though none in a second was asked for."""
    monkeypatch.setattr(live_module, "NODES_A_SECOND", 2 / 3600)
    live = Live(pool, refresh_s=0.0, notice_s=7200.0)  # type: ignore[arg-type]
    inbox = Inbox()
    subscription = subscribed(live, inbox)
    inbox.next("view")
    for _ in range(3):
        call(waiting(live))
        call(live.fresh())
    assert pool.fakes[0].asked == 1
    closed(subscription)


def test_a_node_that_hangs_holds_nobody_up(live: Live, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "ANSWER_S", 0.05)
    monkeypatch.setattr(live_module, "SILENT_AFTER_S", 0.0)
    pool.fakes[1].hangs = True
    view = call(live.fresh())
    assert [each["state"] for each in view["nodes"].values()] == ["ok", "silent"]
    call(live.refresh())
    assert (pool.fakes[0].asked, pool.fakes[1].asked) == (2, 1)


def test_a_node_that_has_never_answered_is_waited_for(
    live: Live, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first view would say that what it holds has been released."""
    monkeypatch.setattr(live_module, "ANSWER_S", 0.0)
    pool.fakes[1].late_s = 0.05
    assert [each["state"] for each in call(live.fresh())["nodes"].values()] == ["ok", "ok"]
    pool.fakes[1].hangs = True
    call(live.refresh())
    assert pool.fakes[1].asked == 2, "and not for one that has"


def test_a_node_that_died_is_told_and_comes_back(live: Live, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "NodePaths", lambda _: Served())
    hold([fake.reply for fake in pool.fakes], procs=2)
    inbox = Inbox()
    subscribed(live, inbox)
    inbox.next("view")
    pool.fakes[1].alive = False
    call(live.refresh())
    view = inbox.next("view")["view"]
    assert view["nodes"]["node1"]["state"] == "dead"
    ranks = view["reservations"]["id-dev"]["meshes"][0]["ranks"]
    assert [rank["state"] for rank in ranks] == ["idle", "idle", "unreachable", "unreachable"]
    pool.fakes[1].alive = True
    call(live.refresh())
    view = inbox.next("view")["view"]
    assert view["nodes"]["node1"]["state"] == "ok"


class Served:
    """Paths of a node that has served."""

    class facts:
        exists = staticmethod(lambda: True)


def test_a_refused_connection_is_told_with_its_reason(live: Live, pool: FakePool) -> None:
    pool.fakes[0].refuses = True
    pool.fakes[0].reason = "node0 shows no certificate that you believe"
    told = call(live.fresh())["nodes"]["node0"]
    assert (told["state"], told["message"]) == ("silent", "node0 shows no certificate that you believe")


def test_since_when_a_node_does_not_answer_is_told(live: Live, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2020, 1, 2, 14, 2).timestamp()
    monkeypatch.setattr(live_module.time, "time", lambda: now)
    hold([fake.reply for fake in pool.fakes], procs=2)
    call(live.fresh())
    pool.fakes[1].refuses = True
    call(live.refresh())
    now += 3600.0
    call(live.refresh())
    view = live.view
    assert view is not None
    assert (view["nodes"]["node1"]["since"], view["nodes"]["node1"]["message"]) == ("2020-01-02 14:02", None)
    ranks = view["reservations"]["id-dev"]["meshes"][0]["ranks"]
    assert ranks[3]["detail"] == "node1 unreachable since 2020-01-02 14:02"
    pool.fakes[1].refuses = False
    call(live.refresh())
    now += 3600.0
    pool.fakes[1].refuses = True
    call(live.refresh())
    assert live.view is not None
    assert live.view["nodes"]["node1"]["since"] == "2020-01-02 16:02"


def test_who_comes_later_is_told_what_still_matters(live: Live, pool: FakePool) -> None:
    hold([pool.fakes[0].reply], procs=2, time_s=7200.0, time_left_s=60.0)
    call(live.fresh())
    inbox = Inbox()
    subscribed(live, inbox)
    inbox.next("view")
    assert inbox.next("notice")["id"].startswith("nearly-up")
