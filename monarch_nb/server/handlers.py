"""Thin handlers: authenticate, then ask monarch_nb.panel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

if TYPE_CHECKING:
    from monarch_nb.panel.live import Subscription
    from monarch_nb.panel.panels import Panels

AUTH_RESOURCE = "monarch_nb"
NO_SUCH_POOL = 4404
"""How a WebSocket is closed that asks for a pool that there is not."""


class HasPanels(Protocol):
    """What the server's settings hold for the handlers, as "monarch_nb"."""

    @property
    def panels(self) -> Panels:
        """What is asked."""


class RequestHandler(APIHandler):
    """`POST monarch-nb/api/NAME` with a JSON object; GET, with a query, for what changes nothing.

    "pool" in it names the pool that is meant.
    """

    auth_resource = AUTH_RESOURCE

    @web.authenticated
    @authorized
    async def get(self, name: str) -> None:
        from monarch_nb.panel.requests import READING

        if name not in READING:
            self._answer({"error": {"status": 405, "message": f"{name} takes POST, not GET", "errors": {}}})
            return
        body = {key: _from_query(self.get_query_argument(key)) for key in self.request.query_arguments}
        body.pop("token", None)
        await self._handle(name, body)

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
        await self._handle(name, body)

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

    async def _handle(self, name: str, body: object) -> None:
        extension: HasPanels = self.settings["monarch_nb"]
        self._answer(await asyncio.wrap_future(extension.panels.handle(name, body)))

    def _answer(self, answer: dict[str, Any]) -> None:
        if error := answer.get("error"):
            self.set_status(error["status"])
            answer = {"message": error["message"], "errors": error["errors"]}
        self.finish(json.dumps(answer, separators=(",", ":")))


class EventsHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """`monarch-nb/events`: the view, and then what changes; `?pool=NAME` of another pool.

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

        extension: HasPanels = self.settings["monarch_nb"]
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


def _from_query(text: str) -> object:
    """A number is a number, everything else a text."""
    return int(text) if text.isascii() and text.isdigit() else text
