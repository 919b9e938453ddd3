"""The server extension: its configuration, and thin handlers that authenticate, then ask monarch_nb.panel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler
from traitlets import Float, Unicode, default
from traitlets.config import Configurable

from monarch_nb.config import default_pool

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

    from monarch_nb.panel.live import Subscription
    from monarch_nb.panel.requests import Panels

AUTH_RESOURCE = "monarch_nb"
NO_SUCH_POOL = 4404
"""How a WebSocket is closed that asks for a pool that there is not."""


class RequestHandler(APIHandler):
    """`POST monarch-nb/api/NAME` with a JSON object. "pool" in it names the pool that is meant."""

    auth_resource = AUTH_RESOURCE

    @web.authenticated
    @authorized
    async def post(self, name: str) -> None:
        try:
            body = json.loads(self.request.body or b"{}")
        except ValueError as error:
            self._answer({"error": {"status": 400, "message": f"the body is not JSON: {error}", "errors": {}}})
            return
        if name == "reserve" and isinstance(body, dict) and body.get("notebook"):
            body.setdefault("python", await self._python_of(str(body["notebook"])))
        extension: MonarchNB = self.settings["monarch_nb"]
        self._answer(await asyncio.wrap_future(extension.panels.handle(name, body)))

    async def _python_of(self, notebook: str) -> str | None:
        """Return the python of a notebook's kernel, which its ranks are to run as well; None for the server's own."""
        for session in await self.session_manager.list_sessions():  # type: ignore[no-untyped-call]
            if session["path"] != notebook:
                continue
            try:
                spec = self.kernel_spec_manager.get_kernel_spec(session["kernel"]["name"])
            except NoSuchKernel:
                return None
            python = spec.argv[0] if spec.argv and spec.language == "python" else ""
            return python if os.path.isabs(python) and os.access(python, os.X_OK) else None
        return None

    def _answer(self, answer: dict[str, Any]) -> None:
        if error := answer.get("error"):
            self.set_status(error["status"])
            answer = {"message": error["message"], "errors": error["errors"]}
        self.finish(json.dumps(answer, separators=(",", ":")))


class EventsHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """`monarch-nb/events`: the view, again whenever it changes; `?pool=NAME` of another pool.

    A browser may say {"type": "look", "looking": false} when it shows no view: then it is told of deaths and of what
    ends, later.
    """

    auth_resource = AUTH_RESOURCE
    _subscription: Subscription | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, "read", AUTH_RESOURCE)):
            raise web.HTTPError(403)
        await super().get(*args, **kwargs)

    def get_compression_options(self) -> dict[str, Any] | None:
        """Views repeat themselves: they shrink to a tenth."""
        return {"compression_level": 1, "mem_level": 5}

    async def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        loop = asyncio.get_running_loop()

        async def deliver(events: list[dict[str, Any]]) -> None:
            await run_on(loop, self._send(events))

        extension: MonarchNB = self.settings["monarch_nb"]
        panel = extension.panels.find(self.get_query_argument("pool", ""))
        if panel is None:
            self.close(NO_SUCH_POOL, "there is no such pool (any more)")
            return
        subscription = await asyncio.wrap_future(panel.subscribe(deliver))
        if self.ws_connection is None:  # closed meanwhile
            subscription.close_soon()
        self._subscription = subscription

    async def _send(self, events: list[dict[str, Any]]) -> None:
        """Returns when the browser has taken them, as far as its connection tells."""
        try:
            for event in events:
                await self.write_message(json.dumps(event, separators=(",", ":")))
        except WebSocketClosedError:
            pass  # on_close follows

    def on_message(self, message: str | bytes) -> None:
        try:
            said = json.loads(message)
            looking = bool(said["looking"]) if said["type"] == "look" else None
        except (ValueError, KeyError, TypeError):
            self.close(1003, "messages are JSON objects with a type")
            return
        if looking is not None and self._subscription is not None:
            self._subscription.look_soon(looking)

    def on_close(self) -> None:
        if self._subscription is not None:
            self._subscription.close_soon()


async def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Wait until work has been done on another loop; where that is closed, because the server ends, it is not done."""
    try:
        done = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
    else:
        await asyncio.wrap_future(done)


class MonarchNB(Configurable):
    """The panel in JupyterLab."""

    pool = Unicode(help="Name of the pool that the panel shows at first: $MONARCH_NB_POOL, or else the local one.").tag(
        config=True
    )

    @default("pool")
    def _default_pool(self) -> str:
        return default_pool()

    refresh_s = Float(
        1.0,
        min=0.2,
        help="How often nodes are asked while somebody looks, in seconds; of more than 64 nodes less often.",
    ).tag(config=True)
    notice_s = Float(
        10.0,
        min=1.0,
        help="How often nodes are asked while JupyterLab is open and nobody looks, in seconds: deaths of ranks and "
        "reservations that end are noticed so often.",
    ).tag(config=True)

    @cached_property
    def panels(self) -> Panels:
        """Made at the first request: gRPC need not be imported before somebody looks."""
        from monarch_nb.panel.requests import Panels

        return Panels(self.pool, root=self._root, refresh_s=self.refresh_s, notice_s=self.notice_s)

    _root = ""

    def add_handlers(self, server_app: ServerApp) -> None:
        """Serve `monarch-nb/…` below the server's base URL."""
        app = server_app.web_app
        base = url_path_join(app.settings["base_url"], "monarch-nb")
        app.settings["monarch_nb"] = self
        self._root = getattr(
            server_app.contents_manager, "root_dir", ""
        )  # it may keep notebooks elsewhere than in files
        app.add_handlers(  # type: ignore[no-untyped-call]
            ".*$",
            [
                (url_path_join(base, r"api/([a-z_]+)"), RequestHandler),
                (url_path_join(base, "events"), EventsHandler),
            ],
        )
