"""The panel, and curves, as widgets in the output of a cell (anywidget): in JupyterLab, Notebook 7, VS Code and Colab.

A panel talks with its kernel by messages: requests and their answers, and events while it is seen. A message is about
the pool that it names, else about the one that the panel shows at first. Several views (cells, browsers) may show one
panel. A view says when a person begins and ends to see it, and again every now and then: one whose browser has gone
without a word is forgotten.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from monarch_nb.client.connections.bridge import background_loop, post
from monarch_nb.client.curves.plot import curves_json
from monarch_nb.client.curves.words import RunPictures
from monarch_nb.config import cadence, gap
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.panel.live import Subscription
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.requests import Panel
from monarch_nb.panel.shown.view import Json
from monarch_nb.provision.known import no_such_pool

LEASE_S = gap(100.0)
"""A view that was not heard of for so long has gone; it says a word every 30 s."""

ALIVE_S = cadence(5.0)
"""How often a view is told, while it is seen, that the kernel lives: nothing may change for long."""

_EXPECTED = "expected"
"""Stands for the view of a panel that is being displayed."""
_AGAIN_S = cadence(0.5)

Send = Callable[[Json], None]


@dataclass
class _View:
    looking: bool
    heard_at_s: float


class PanelMessages:
    """The kernel's end. Safe to use from any thread; everything happens on the client's background loop.

    Args:
        panel: answers requests and has events.
        send: sends a message to all views.
        defaults: what to add to the bodies of requests, by name.
        own: requests that the kernel does itself, by name, on the thread that brings them; they return the result.
        is_busy: whether a cell runs, so that views can not be heard.
    """

    def __init__(
        self,
        panel: Panel,
        send: Send,
        *,
        defaults: Mapping[str, Json] | None = None,
        own: Mapping[str, Callable[[Json], object]] | None = None,
        is_busy: Callable[[], bool] = lambda: False,
        lease_s: float = LEASE_S,
    ) -> None:
        self._panel, self._send, self._defaults, self._own = panel, send, defaults or {}, own or {}
        self._is_busy, self._lease_s = is_busy, lease_s
        self._views: dict[str, _View] = {}
        self._subscription: Subscription | None = None
        self._check: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._going_jobs: set[str] = set()

    def receive(self, content: object) -> None:
        """Take a message of a view."""
        if not isinstance(content, dict):
            return
        if (do := self._own.get(str(content.get("request", "")))) and isinstance(body := content.get("body"), dict):
            post(self._send, {"id": content.get("id"), **_outcome(do, body)})
        else:
            post(self._receive, content)

    def expect_view(self) -> None:
        """The panel is being displayed: its view is told how things are, again and again until it has said a word.
        Without a subshell its word waits for the end of the cells that were started with this one."""
        post(self._expect)

    def close(self) -> None:
        """Send nothing more."""
        post(self._close)

    # ---- on the background loop ----

    def _receive(self, content: Json) -> None:
        view = str(content.get("view", ""))
        self._views.pop(_EXPECTED, None)
        if isinstance(name := content.get("request"), str):
            self._answer(content.get("id"), name, content.get("body", {}))
        elif content.get("type") == "look":
            self._look(view, content.get("looking") is not False)
        elif content.get("type") == "leave":
            self._views.pop(view, None)
            self._changed()

    def _answer(self, request_id: object, name: str, body: object) -> None:
        if isinstance(body, dict):
            body = {**body, **self._defaults.get(name, {})}
        asked = self._panel.handle(name, body)
        asked.add_done_callback(lambda answer: self._send({"id": request_id, **answer.result()}))

    def _look(self, view: str, looking: bool) -> None:
        before = self._views.get(view)
        self._views[view] = _View(looking, time.monotonic())
        begins = looking and not (before and before.looking)
        if begins and self._subscription is not None:
            self._subscription.begin_again()
        self._changed()

    def _expect(self) -> None:
        self._look(_EXPECTED, True)
        self._tell_again(_AGAIN_S)

    def _tell_again(self, after_s: float) -> None:
        def tell() -> None:
            if _EXPECTED in self._views and self._subscription is not None:
                self._subscription.begin_again()
                self._tell_again(min(2 * after_s, self._lease_s / 4))

        if self._again is not None:
            self._again.cancel()
        self._again = background_loop().call_later(after_s, tell)

    def _changed(self) -> None:
        """Hear events while there are views, and often while one is seen."""
        looking = any(view.looking for view in self._views.values())
        if self._subscription is None and looking:
            self._subscription = self._panel.subscribe_here(self._deliver)
            self._check_later()
            self._alive_later()
        elif self._subscription is not None and not self._views:
            self._close()
        elif self._subscription is not None and self._subscription.looking != looking:
            self._subscription.look(looking)

    def _alive_later(self) -> None:
        self._alive = background_loop().call_later(ALIVE_S, self._say_alive)

    def _say_alive(self) -> None:
        if self._subscription is not None and self._subscription.looking:
            self._send({"alive": True})
        self._alive_later()

    def _check_later(self) -> None:
        self._check = background_loop().call_later(self._lease_s / 4, self._forget_silent)

    def _forget_silent(self) -> None:
        now_s = time.monotonic()
        if self._is_busy() or self._going_jobs:  # a cell keeps the words of views waiting; a view is told how jobs end
            for view in self._views.values():
                view.heard_at_s = now_s
        self._views = {name: view for name, view in self._views.items() if now_s - view.heard_at_s < self._lease_s}
        self._check_later()
        self._changed()

    def _close(self) -> None:
        self._views.clear()
        for timer in filter(None, (self._check, self._again, self._alive)):
            timer.cancel()
        if self._subscription is not None:
            self._subscription.close()
        self._check = self._again = self._alive = self._subscription = None

    async def _deliver(self, events: list[Json]) -> None:
        for event in events:
            if event["type"] == "job":
                job = event["job"]
                (self._going_jobs.add if job["state"] == "running" else self._going_jobs.discard)(job["id"])
            self._send({"event": event})


class PoolsMessages:
    """The kernel's end of a panel that shows any of the pools that there are. Safe to use from any thread.

    Args:
        panel: of the pool that is shown at first.
        others: returns the panel of another pool; None when there is no such pool.
        send: sends a message to all views.
        make: returns the kernel's end for one pool, which sends with what it is given.
    """

    def __init__(
        self,
        panel: Panel,
        others: Callable[[str], Panel | None],
        send: Send,
        make: Callable[[Panel, Send], PanelMessages],
    ) -> None:
        self._others, self._send, self._make = others, send, make
        self._first = make(panel, send)
        self._more: dict[str, PanelMessages] = {}
        self._lock = threading.Lock()

    def receive(self, content: object) -> None:
        """Take a message of a view."""
        pool = content.get("pool") if isinstance(content, dict) else None
        if messages := self._of(pool) if isinstance(pool, str) else self._first:
            messages.receive(content)
        elif isinstance(content, dict) and "request" in content:
            message = Refused(404, no_such_pool(str(pool))).message
            error = {"status": 404, "message": message, "errors": {}}
            self._send({"id": content.get("id"), "error": error, "pool": pool})

    def expect_view(self) -> None:
        """See PanelMessages."""
        self._first.expect_view()

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            for messages in (self._first, *self._more.values()):
                messages.close()

    def _of(self, pool: str) -> PanelMessages | None:
        with self._lock:
            if pool not in self._more and (panel := self._others(pool)):
                self._more[pool] = self._make(panel, lambda content: self._send({**content, "pool": pool}))
            return self._more.get(pool)


def _outcome(do: Callable[[Json], object], body: Json) -> Json:
    try:
        return {"result": do(body)}
    except MonarchNbError as error:
        refused = Refused.of(error)
        return {"error": {"status": refused.status, "message": refused.message, "errors": refused.errors}}


MARK = {"monarch_nb": {"panel": True}}
"""By this metadata JupyterLab's extension knows what it may show as it was, when the kernel has ended."""
SCRIPT = Path(__file__).parents[1] / "static" / "panel.js"


class PanelWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # untyped
    """A panel of the pools that there are, or of one reservation.

    Attributes:
        reservation: id of the only reservation to show; "" shows a pool, at first that of the panel.
    """

    reservation = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        panel: Panel,
        reservation: str = "",
        *,
        others: Callable[[str], Panel | None],
        describe: Callable[[], dict[str, str]],
        defaults: Mapping[str, Json] | None = None,
        own: Mapping[str, Callable[[Json], object]] | None = None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a widget; it is shown by being displayed.

        Args:
            others: see PoolsMessages.
            describe: returns what stands in its place where widgets can not be shown, by MIME type.
            defaults, own, is_busy: see PanelMessages.
        """
        self._esm = script()
        self._describe = describe
        self._heard_in = contextvars.Context()

        def make(panel: Panel, send: Send) -> PanelMessages:
            return PanelMessages(panel, send, defaults=defaults, own=own, is_busy=is_busy)

        self._messages = PoolsMessages(panel, others, self._say, make)
        super().__init__(reservation=reservation)
        self.on_msg(self._hear)
        self.comm.on_close(lambda _: self._messages.close())

    @property
    def is_open(self) -> bool:
        """Whether it can be displayed (again)."""
        return self.comm is not None

    def close(self) -> None:
        """Take it away from all cells that show it."""
        self._messages.close()
        super().close()

    def _hear(self, _: object, content: object, __: object) -> None:
        # ipykernel sends the replies of a frontend to the subshell in whose context the kernel spoke last. Spoken
        # outside of one they would wait behind the cell that runs, although the frontend has a subshell for us.
        self._heard_in = contextvars.copy_context()
        self._messages.receive(content)

    def _say(self, content: Json) -> None:
        self._heard_in.run(self.send, content)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**options)
        self._messages.expect_view()
        return bundle and ({**bundle[0], **self._describe()}, {**bundle[1], **MARK})


@cache
def script() -> str:
    """Return the widget's JavaScript.

    Raises:
        UsageError: it has not been built.
    """
    try:
        return SCRIPT.read_text()
    except FileNotFoundError:
        raise UsageError(
            "the panel's JavaScript is not built in this checkout: cd labextension && jlpm install && jlpm build:prod"
        ) from None


class CurvesWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]  # untyped
    """Shows curves as they are now.

    Attributes:
        curves: what it shows; the browser hears of every change.
    """

    curves = traitlets.Dict({}).tag(sync=True)

    def __init__(self) -> None:
        """Make one; it shows nothing yet.

        Raises:
            UsageError: its JavaScript is not built.
        """
        self._esm = script()
        super().__init__()

    def draw(self, runs: Sequence[RunPictures]) -> None:
        """Show these from now on."""
        self.curves = curves_json(runs)

    def bundle(self, others: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all forms of it, and what JupyterLab's extension knows it by."""
        own: Any = self._repr_mimebundle_()
        data, metadata = own if isinstance(own, tuple) else (own or {}, {})
        return {**data, **others}, {**metadata, **MARK}
