"""A Jupyter server in this process with the extension, below a base URL as JupyterHub has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.websocket import WebSocketClientConnection, websocket_connect
from traitlets.config import Config

from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE
from monarch_nb.panel.requests import Panel
from monarch_nb.server.extension import MonarchNB
from unit.panel.fake_pool import FakePool, panel_on
from unit.panel.replies import node

TOKEN = "a-token"


@dataclass
class Client:
    """What a browser does."""

    app: ServerApp
    port: int

    @property
    def extension(self) -> MonarchNB:
        made: MonarchNB = self.app.web_app.settings["monarch_nb"]
        return made

    @property
    def panel(self) -> Panel:
        found = self.extension.panels.find()
        assert found is not None
        return found

    async def fetch(
        self, path: str, body: object = None, *, method: str = "POST", token: str | None = TOKEN, **headers: str
    ) -> tuple[int, Any]:
        """Ask; return the status and what was answered."""
        request = HTTPRequest(
            f"http://127.0.0.1:{self.port}/user/me/monarch-nb/{path}",
            method=method,
            headers=headers | ({"Authorization": f"token {token}"} if token else {}),
            body=None if method == "GET" else body if isinstance(body, str) else json.dumps(body or {}),
        )
        answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        return answer.code, json.loads(answer.body or b"null")

    async def cookie(self) -> str:
        """Return the cookie of a browser that has logged in."""
        url = f"http://127.0.0.1:{self.port}/user/me/api/status?token={TOKEN}"
        answer = await AsyncHTTPClient().fetch(url)
        return "; ".join(each.partition(";")[0] for each in answer.headers.get_list("Set-Cookie"))

    async def connect(self, *, token: str | None = TOKEN, pool: str = "", **headers: str) -> WebSocketClientConnection:
        """Open the WebSocket."""
        request = HTTPRequest(
            f"ws://127.0.0.1:{self.port}/user/me/monarch-nb/events?pool={pool}",
            headers=headers | ({"Authorization": f"token {token}"} if token else {}),
        )
        return await websocket_connect(request)


@pytest.fixture(autouse=True)
def private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pool of the user's is looked at."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings"))


@pytest.fixture
def pool() -> FakePool:
    """Two nodes of 4 CPU slots each, nothing reserved."""
    return FakePool(node("node0"), node("node1"))


@pytest.fixture
def configuration() -> dict[str, object]:
    """What `c.MonarchNB` is."""
    return {}


@pytest.fixture
async def client(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configuration: dict[str, object]
) -> AsyncIterator[Client]:
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{kind}_DIR", str(tmp_path / kind.lower()))
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    config = Config({"MonarchNB": configuration})
    config.ServerApp.jpserver_extensions = {"monarch_nb.server": True}
    config.IdentityProvider.token = TOKEN
    app = ServerApp(
        config=config, base_url="/user/me/", root_dir=str(notebooks), open_browser=False, allow_root=True, port=0
    )
    app.init_signal = lambda: None
    app.initialize(argv=[], new_httpserver=False)
    sock, port = bind_unused_port()
    server = HTTPServer(app.web_app)
    server.add_sockets([sock])
    made = Client(app, port)
    monkeypatch.setitem(made.extension.panels._panels, "local", panel_on(pool, monkeypatch, root=str(notebooks)))
    yield made
    server.stop()
    await server.close_all_connections()
    await app._cleanup()
