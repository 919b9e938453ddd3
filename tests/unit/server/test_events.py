"""The WebSocket: who may open it, and what it tells."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError
from tornado.websocket import WebSocketClientConnection

from monarch_nb.server.extension import run_on
from unit.panel.fake_pool import FakePool, panel_on
from unit.panel.replies import node
from unit.server.conftest import TOKEN, Client

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def event(socket: WebSocketClientConnection) -> Any:
    message = await asyncio.wait_for(socket.read_message(), 10)
    assert message is not None, f"closed: {socket.close_code} {socket.close_reason}"
    return json.loads(message)


@pytest.mark.filterwarnings("error")
async def test_what_there_is_to_tell_while_the_server_ends_is_dropped_without_a_word() -> None:
    """Its loop is closed then, and the panel's goes on until the process is gone."""
    sent: list[str] = []

    async def send() -> None:
        sent.append("x")

    loop = asyncio.new_event_loop()
    loop.close()
    await run_on(loop, send())
    await run_on(asyncio.get_running_loop(), send())
    assert sent == ["x"]


async def test_who_may_not_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in (None, "wrong", TOKEN):
        if token == TOKEN:
            monkeypatch.setattr(client.app.authorizer, "is_authorized", lambda *_: False)
        with pytest.raises(HTTPClientError) as error:
            await client.connect(token=token)
        assert error.value.code == 403


async def test_another_site_is_refused(client: Client) -> None:
    cookie = await client.cookie()
    with pytest.raises(HTTPClientError) as error:
        await client.connect(token=None, Cookie=cookie, Origin="http://evil.example")
    assert error.value.code == 403
    (await client.connect(token=None, Cookie=cookie, Origin=f"http://127.0.0.1:{client.port}")).close()


async def test_another_pool_is_heard_by_its_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    other = panel_on(FakePool(node("far")), monkeypatch)
    monkeypatch.setitem(client.extension.panels._panels, "lab", other)
    socket = await client.connect(pool="lab")
    assert set((await event(socket))["view"]["nodes"]) == {"far"}
    socket.close()


async def test_the_connection_ends_where_there_is_no_such_pool(client: Client) -> None:
    socket = await client.connect(pool="nowhere")
    assert await asyncio.wait_for(socket.read_message(), 10) is None
    assert (socket.close_code, socket.close_reason) == (4404, "there is no such pool (any more)")


async def test_a_browser_that_looks_away_is_heard_and_what_a_newer_one_says_is_ignored(client: Client) -> None:
    socket = await client.connect()
    await event(socket)
    (subscription,) = client.panel.live._subscriptions
    assert subscription.looking
    await socket.write_message('{"type": "dance"}')
    await socket.write_message('{"type": "look", "looking": false}')
    while subscription.looking:
        await asyncio.sleep(0.001)
    socket.close()


async def test_nonsense_ends_the_connection(client: Client) -> None:
    for message in ("nonsense", "[]", "{}", '"x"', "3"):
        socket = await client.connect()
        await event(socket)
        await socket.write_message(message)
        while await asyncio.wait_for(socket.read_message(), 10) is not None:
            pass
        assert socket.close_code == 1003, message


async def test_a_browser_that_has_left_is_forgotten(client: Client) -> None:
    socket = await client.connect()
    await event(socket)
    socket.close()
    while client.panel.live._subscriptions:
        await asyncio.sleep(0.001)


async def test_pings_are_sent_as_the_server_is_configured(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client.app.web_app.settings, "ws_ping_interval", 20)
    pings: list[bytes] = []
    socket = await client.connect()
    assert socket.protocol is not None
    handle = socket.protocol._handle_message
    socket.protocol._handle_message = lambda opcode, data: (opcode == 9 and pings.append(data)) or handle(opcode, data)
    while not pings:
        await asyncio.sleep(0.001)
    socket.close()
