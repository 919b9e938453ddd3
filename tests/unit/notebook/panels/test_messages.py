"""The kernel's end of a panel in a notebook: which messages it sends, and when it asks nodes at all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.connections.bridge import call
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.notebook.panels.showing import _asked
from monarch_nb.notebook.panels.widget import Panel, PanelMessages, PoolsMessages, Send
from monarch_nb.panel.shown.view import Json

WAIT_S = 10.0


class Heard:
    """Messages as the views hear them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._more = threading.Condition()

    def __call__(self, message: dict[str, Any]) -> None:
        with self._more:
            self.messages.append(message)
            self._more.notify_all()

    def wait_for(self, wanted: Callable[[list[dict[str, Any]]], bool]) -> None:
        with self._more:
            assert self._more.wait_for(lambda: wanted(self.messages), WAIT_S), self.messages


class FakeSubscription:
    def __init__(self, deliver: Any, changed: threading.Condition) -> None:
        self.deliver, self.looking, self.open = deliver, True, True
        self.whole_views = 1
        self._changed = changed

    def _is_now(self, **facts: object) -> None:
        with self._changed:
            vars(self).update(facts)
            self._changed.notify_all()

    def look(self, looking: bool) -> None:
        self._is_now(looking=looking)

    def begin_again(self) -> None:
        self._is_now(whole_views=self.whole_views + 1)

    def close(self) -> None:
        self._is_now(open=False)


class FakePanel:
    """Answers what it was asked; remembers its subscriptions."""

    def __init__(self) -> None:
        self.subscriptions: list[FakeSubscription] = []
        self.changed = threading.Condition()

    def handle(self, name: str, body: object) -> concurrent.futures.Future[dict[str, Any]]:
        answer: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()
        answer.set_result({"result": [name, body]})
        return answer

    def subscribe_here(self, deliver: Any, *, looking: bool = True) -> Any:
        with self.changed:
            self.subscriptions.append(FakeSubscription(deliver, self.changed))
            self.changed.notify_all()
        return self.subscriptions[-1]

    def wait_until(self, wanted: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(wanted, WAIT_S)


@pytest.fixture
def panel() -> FakePanel:
    return FakePanel()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def messages(panel: FakePanel, heard: Heard) -> Iterator[PanelMessages]:
    with closing(PanelMessages(panel, heard, defaults={"reserve": {"notebook": "/a.ipynb"}})) as messages:
        yield messages


def look(messages: PanelMessages, view: str, looking: bool = True) -> None:
    messages.receive({"type": "look", "view": view, "looking": looking})


def settle() -> None:
    """Let the background loop do what it was given."""
    call(asyncio.sleep(0))


def test_a_view_is_told_that_the_kernel_lives_while_it_is_seen(
    messages: PanelMessages, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_nb.notebook.panels.widget.ALIVE_S", 0.01)
    look(messages, "v")
    heard.wait_for(lambda said: said.count({"alive": True}) > 1)


def test_an_answer_carries_the_number_of_its_request_and_the_notebook_is_its_own(
    messages: PanelMessages, heard: Heard
) -> None:
    messages.receive({"id": 7, "request": "lost", "body": {"reservation": "r"}})
    messages.receive({"id": 8, "request": "reserve", "body": {"values": {}, "notebook": None}})
    heard.wait_for(lambda all_of_them: len(all_of_them) == 2)
    assert heard.messages == [
        {"id": 7, "result": ["lost", {"reservation": "r"}]},
        {"id": 8, "result": ["reserve", {"values": {}, "notebook": "/a.ipynb"}]},
    ]


@pytest.mark.parametrize("content", [None, 3, "look", [], {}, {"type": "jump"}, {"request": 4}])
def test_what_makes_no_sense_is_not_answered(messages: PanelMessages, heard: Heard, content: object) -> None:
    messages.receive(content)
    messages.receive({"id": 1, "request": "view", "body": {}})
    heard.wait_for(lambda all_of_them: [one.get("id") for one in all_of_them] == [1])


def test_the_kernel_does_its_own_requests_where_they_come_in(panel: FakePanel, heard: Heard) -> None:
    def attach(body: dict[str, Any]) -> dict[str, Any]:
        if body["name"] == "nothing":
            raise UsageError("there is no reservation 'nothing'")
        return {"on": threading.current_thread().name}

    with closing(PanelMessages(panel, heard, own={"attach": attach})) as messages:
        messages.receive({"id": 1, "request": "attach", "body": {"name": "dev"}})
        messages.receive({"id": 2, "request": "attach", "body": {"name": "nothing"}})
        heard.wait_for(lambda all_of_them: len(all_of_them) == 2)
    assert heard.messages[0] == {"id": 1, "result": {"on": threading.current_thread().name}}
    assert heard.messages[1]["error"]["status"] == 400
    assert "no reservation 'nothing'" in heard.messages[1]["error"]["message"]


def test_nodes_are_asked_only_while_a_view_is_seen(messages: PanelMessages, panel: FakePanel) -> None:
    messages.receive({"id": 1, "request": "view", "body": {}})
    look(messages, "a", looking=False)
    settle()
    assert not panel.subscriptions
    look(messages, "a")
    panel.wait_until(lambda: len(panel.subscriptions) == 1)
    (subscription,) = panel.subscriptions
    look(messages, "a", looking=False)
    panel.wait_until(lambda: not subscription.looking)
    assert subscription.open
    messages.receive({"type": "leave", "view": "a"})
    panel.wait_until(lambda: not subscription.open)


def test_every_view_that_begins_to_look_gets_the_whole(messages: PanelMessages, panel: FakePanel) -> None:
    look(messages, "a")
    look(messages, "b")
    panel.wait_until(lambda: bool(panel.subscriptions) and panel.subscriptions[0].whole_views == 2)
    look(messages, "b")  # a word that it is still there
    settle()
    assert panel.subscriptions[0].whole_views == 2
    messages.receive({"type": "leave", "view": "a"})
    settle()
    assert panel.subscriptions[0].open
    assert panel.subscriptions[0].looking


def test_a_panel_that_is_displayed_is_live_before_its_view_can_say_a_word(
    messages: PanelMessages, panel: FakePanel
) -> None:
    messages.expect_view()
    panel.wait_until(lambda: bool(panel.subscriptions) and panel.subscriptions[0].whole_views >= 2)
    look(messages, "a")
    messages.receive({"type": "leave", "view": "a"})
    panel.wait_until(lambda: not panel.subscriptions[0].open)


def test_a_view_without_a_word_is_forgotten_but_not_while_a_cell_runs(panel: FakePanel, heard: Heard) -> None:
    busy, asked = True, threading.Semaphore(0)

    def is_busy() -> bool:
        asked.release()
        return busy

    with closing(PanelMessages(panel, heard, is_busy=is_busy, lease_s=0.04)) as messages:
        look(messages, "a")
        for _ in range(8):  # twice the lease
            assert asked.acquire(timeout=WAIT_S)
        assert panel.subscriptions[0].open
        busy = False
        panel.wait_until(lambda: not panel.subscriptions[0].open)


def test_a_view_hears_how_its_job_ended_even_when_it_is_silent(panel: FakePanel, heard: Heard) -> None:
    def event(state: str) -> dict[str, Any]:
        return {"type": "job", "job": {"id": "j", "state": state}}

    busy = True  # until the view has a job to hear of: its lease may be over before
    with closing(PanelMessages(panel, heard, is_busy=lambda: busy, lease_s=0.04)) as messages:
        look(messages, "a")
        panel.wait_until(lambda: bool(panel.subscriptions))
        (subscription,) = panel.subscriptions
        call(subscription.deliver([event("running")]))
        busy = False
        call(asyncio.sleep(0.1))
        assert subscription.open
        call(subscription.deliver([event("done")]))
        panel.wait_until(lambda: not subscription.open)
    assert heard.messages == [{"event": event("running")}, {"event": event("done")}]


def test_each_pool_has_its_own_messages_and_is_there_when_somebody_looks(
    panel: FakePanel, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, variable in enumerate((HOME_VARIABLE, CONFIG_VARIABLE)):
        monkeypatch.setenv(variable, str(tmp_path / str(number)))
    lab, asked = FakePanel(), []

    def others(pool: str) -> FakePanel | None:
        asked.append(pool)
        return lab if pool == "lab" else None

    def make(panel: Panel, send: Send) -> PanelMessages:
        return PanelMessages(panel, send)

    with closing(PoolsMessages(panel, others, heard, make)) as messages:
        messages.receive({"type": "look", "view": "a", "looking": True})
        panel.wait_until(lambda: len(panel.subscriptions) == 1)
        assert asked == []
        messages.receive({"type": "look", "view": "b", "looking": True, "pool": "lab"})
        lab.wait_until(lambda: len(lab.subscriptions) == 1)
        call(lab.subscriptions[0].deliver([{"type": "notice"}]))
        call(panel.subscriptions[0].deliver([{"type": "notice"}]))
        messages.receive({"id": 1, "request": "view", "body": {}, "pool": "lab"})
        heard.wait_for(lambda all_of_them: len(all_of_them) == 3)
        messages.receive({"id": 2, "request": "view", "body": {}, "pool": "gone"})
        messages.receive({"type": "look", "view": "c", "looking": True, "pool": "gone"})
        messages.receive({"type": "leave", "view": "b", "pool": "lab"})
        lab.wait_until(lambda: not lab.subscriptions[0].open)
        assert panel.subscriptions[0].open
    panel.wait_until(lambda: not panel.subscriptions[0].open)
    error = {"status": 404, "message": "there is no pool 'gone'; there is only local", "errors": {}}
    assert heard.messages == [
        {"event": {"type": "notice"}, "pool": "lab"},
        {"event": {"type": "notice"}},
        {"id": 1, "result": ["view", {}], "pool": "lab"},
        {"id": 2, "error": error, "pool": "gone"},
    ]


def test_a_view_that_can_not_be_had_says_why() -> None:
    """The representation of a reservation is made of it: a KeyError would say nothing."""

    class Refusing:
        def handle(self, name: str, body: object) -> concurrent.futures.Future[Json]:
            answer: concurrent.futures.Future[Json] = concurrent.futures.Future()
            answer.set_result({"error": {"status": 500, "message": "the pool is not what it seems"}})
            return answer

    panel: Any = Refusing()
    with pytest.raises(MonarchNbError, match="not what it seems"):
        call(_asked(panel, "view", {}))
