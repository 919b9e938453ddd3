"""A Jupyter server in this process with the extension, below a base URL as JupyterHub has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.websocket import WebSocketClientConnection, websocket_connect
from traitlets.config import Config

from monarch_nb.panel.requests import Panel
from monarch_nb.server.extension import MonarchNB
from unit.panel import conftest as of_panel
from unit.panel.fake_pool import FakePool, panel_on

TOKEN = "a-token"
private_home, pool = of_panel.private_home, of_panel.pool


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


@pytest.fixture(scope="module")
def configuration() -> dict[str, object]:
    """What `c.MonarchNB` is."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory, configuration: dict[str, object]) -> AsyncIterator[Client]:
    """One server for all tests of a file."""
    directory = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("CONFIG", "DATA", "RUNTIME"):
            patch.setenv(f"JUPYTER_{kind}_DIR", str(directory / kind.lower()))
        config = Config({"MonarchNB": configuration})
        config.ServerApp.jpserver_extensions = {"monarch_nb.server": True}
        config.IdentityProvider.token = TOKEN
        app = ServerApp(
            config=config, base_url="/user/me/", root_dir=str(directory), open_browser=False, allow_root=True, port=0
        )
        app.init_signal = lambda: None
        app.initialize(argv=[], new_httpserver=False)
        sock, port = bind_unused_port()
        server = HTTPServer(app.web_app)
        server.add_sockets([sock])
        yield Client(app, port)
        server.stop()
        await server.close_all_connections()
        await app._cleanup()


@pytest.fixture
def client(served: Client, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The server with a panel that has seen nothing yet."""
    panel = panel_on(pool, monkeypatch, root=served.app.root_dir)
    monkeypatch.setitem(served.extension.panels._panels, "local", panel)
    return served
