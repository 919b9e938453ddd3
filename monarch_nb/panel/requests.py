"""The one entry: requests by name, with JSON in and JSON out, over HTTP as in a widget's messages."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from monarch_nb.client.connections.bridge import background_loop
from monarch_nb.client.instruments.top import look_at
from monarch_nb.client.logs.lines import LogLines
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.config import DEFAULT_POOL
from monarch_nb.errors import MonarchNbError
from monarch_nb.lines.templates import FOLDS_BY, default_fold
from monarch_nb.panel.actions import Actions, Origin
from monarch_nb.panel.jobs import Jobs
from monarch_nb.panel.live import Deliver, Live, Subscription, pools_to_show
from monarch_nb.panel.logs.curves import Curves, CurvesRequest, MeshNumbers
from monarch_nb.panel.logs.log import MAX_ROWS, Log, LogRequest, Logs
from monarch_nb.panel.logs.reading import Reader, own_lines, parse_places
from monarch_nb.panel.refusal import Refused
from monarch_nb.panel.shown.ranks import top_shown
from monarch_nb.panel.shown.view import Json
from monarch_nb.provision.known import no_such_pool

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=str)


class Panel:
    """Everything that a panel shows and does, on one pool. Safe to use from any thread.

    Args:
        pool: its name; by default the local one.
        home: see Live.
        root: the directory below which notebooks are named as Jupyter's contents API names them; "" for nowhere.
        refresh_s, notice_s: see Live.

    Example:
        >>> Panel().handle("view", {}).result()["result"]["pool"]["state"]  # doctest: +SKIP
        'up'
    """

    def __init__(
        self,
        pool: str | None = None,
        *,
        home: str = "",
        root: str = "",
        refresh_s: float = 1.0,
        notice_s: float = 10.0,
    ) -> None:
        self._root = os.path.abspath(root) if root else ""
        self.live = Live(pool_object(pool), home=home, root=self._root, refresh_s=refresh_s, notice_s=notice_s)
        self._jobs = Jobs(self.live.publish)
        self._logs = Logs(self.live.publish, lambda: self.live.is_watched, self.live.is_silent, self._root)
        self._curves = Curves()
        self._actions = Actions(self.live, self._jobs)
        self._handlers: dict[str, Callable[[Json], Awaitable[Any]]] = {
            "view": self._view,
            "forms": self._forms,
            "check": self._check,
            "reserve": self._reserve,
            "up": self._up,
            "release": self._held_action(self._actions.release),
            "extend": self._extend,
            "resize": self._resize,
            "replace": self._held_action(self._actions.replace),
            "restart": self._ranks_action(self._actions.restart, action="restart"),
            "interrupt": self._ranks_action(self._actions.interrupt, right="run"),
            "stacks": self._ranks_action(self._actions.stacks, right="read"),
            "lost": self._lost,
            "cancel": self._cancel,
            "attach_lines": self._attach_lines,
            "log_open": self._log_open,
            "log_rows": self._log_rows,
            "log_find": self._log_find,
            "log_row": self._log_row,
            "log_close": self._log_close,
            "own_lines": self._own_lines,
            "curves_found": self._curves_found,
            "curves_read": self._curves_read,
            "top": self._top,
        }

    def handle(self, name: str, body: object) -> concurrent.futures.Future[Json]:
        """Do what is asked; the answer is {"result": …} or {"error": {"status", "message", "errors"}}."""
        return _in_own_context(self._answer(name, body))

    def subscribe(self, deliver: Deliver, *, looking: bool = True) -> concurrent.futures.Future[Subscription]:
        """Have events delivered, on the background loop, until the subscription is closed (there)."""

        async def subscribe() -> Subscription:
            return self.subscribe_here(deliver, looking=looking)

        return _in_own_context(subscribe())

    def subscribe_here(self, deliver: Deliver, *, looking: bool = True) -> Subscription:
        """As `subscribe`, on the background loop."""
        subscription = self.live.subscribe(deliver, looking=looking)
        for job in self._jobs.running():
            subscription.put({"type": "job", "job": job})
        return subscription

    async def _answer(self, name: str, body: object) -> Json:
        try:
            if name not in self._handlers:
                raise Refused(404, f"there is no request {name!r}")
            if not isinstance(body, dict):
                raise Refused(400, "the body is not a JSON object")
            return {"result": await self._handlers[name](body)}
        except MonarchNbError as error:
            refused = Refused.of(error)
        except Refused as error:
            refused = error
        except Exception as error:  # noqa: BLE001 (told, in the answer)
            _log.exception("the request %s failed", name)
            refused = Refused(500, f"{type(error).__name__}: {error}")
        return {"error": {"status": refused.status, "message": refused.message, "errors": refused.errors}}

    # ---- requests ----

    async def _view(self, _: Json) -> Json:
        return await self.live.fresh()

    async def _forms(self, _: Json) -> Json:
        forms = await self._actions.forms(await self.live.fresh())
        return {action: form.to_json() for action, form in forms.items()}

    async def _check(self, body: Json) -> Json:
        action = _text(body, "action")
        held = await self._held(body, action=action) if action == "resize" else None
        return await self._actions.check(await self.live.fresh(), action, body.get("values"), held)

    async def _reserve(self, body: Json) -> Json:
        notebook = _text(body, "notebook", "")
        if notebook and self._root:
            notebook = os.path.join(self._root, notebook)
        origin = Origin(notebook, _text(body, "python", "") or None)
        return {"job": await self._actions.reserve(await self.live.fresh(), body.get("values"), origin)}

    async def _up(self, body: Json) -> Json:
        return {"job": self._actions.up(await self.live.fresh(), body.get("values"))}

    async def _extend(self, body: Json) -> Json:
        return {"job": self._actions.extend(await self._held(body), body.get("values"))}

    async def _resize(self, body: Json) -> Json:
        held = await self._held(body, action="resize")
        return {"job": self._actions.resize(await self.live.fresh(), held, body.get("values"))}

    def _held_action(self, do: Callable[[Json], Json]) -> Callable[[Json], Awaitable[Json]]:
        async def handle(body: Json) -> Json:
            return {"job": do(await self._held(body))}

        return handle

    def _ranks_action(
        self, do: Callable[[Json, Json, tuple[int, ...]], Json], *, right: str = "own", action: str = ""
    ) -> Callable[[Json], Awaitable[Json]]:
        async def handle(body: Json) -> Json:
            held = await self._held(body, right=right, action=action)
            mesh = self._actions.mesh(held, body.get("mesh"))
            return {"job": do(held, mesh, self._actions.ranks(mesh, body.get("ranks")))}

        return handle

    async def _lost(self, body: Json) -> Json:
        action = _choice(body, "action", ("release", "restart", "replace", "resize"))
        held = await self._held(body, action=action)
        if action == "release":
            return {"text": self._actions.lost(held, None, ())}
        if action == "resize":
            return {"text": self._actions.lost_by_resize(await self.live.fresh(), held, body.get("values"))}
        mesh = self._actions.mesh(held, body.get("mesh"))
        if action == "replace":
            away = tuple(rank["rank"] for rank in mesh["ranks"] if rank["state"] == "unreachable")
            kept = "The output and the files of these ranks are on their nodes."
            return {"text": self._actions.lost(held, mesh, away, kept=kept)}
        return {"text": self._actions.lost(held, mesh, self._actions.ranks(mesh, body.get("ranks")))}

    async def _attach_lines(self, body: Json) -> Json:
        held = await self._held(body, right="read", action="attach")
        return {"code": self._actions.attach_lines(await self.live.fresh(), held)}

    async def _cancel(self, body: Json) -> Json:
        if not self._jobs.cancel(_text(body, "job")):
            raise Refused(404, "there is no such job (any more)")
        return {}

    # ---- logs ----

    async def _log_open(self, body: Json) -> Json:
        held, mesh_id = await self._held_mesh(body)
        ranks = self._actions.ranks(self._actions.mesh(held, mesh_id), body.get("ranks"))
        request = LogRequest(
            ranks=ranks,
            streams=_choice(body, "streams", ("both", "stdout", "stderr")),
            run=None if body.get("run") is None else _integer(body, "run", 1),
            search=_text(body, "search", ""),
            regex=_flag(body, "regex", False),
            fold=default_fold(len(ranks)) if body.get("fold") is None else _choice(body, "fold", FOLDS_BY),
        )
        return await self._logs.open(self._lines(held, mesh_id), request)

    async def _held_mesh(self, body: Json) -> tuple[Json, str]:
        """Return the reservation that has the mesh that is named, and the id of that mesh."""
        view, mesh_id = await self.live.fresh(), _text(body, "mesh")
        holder = _holder(view, mesh_id)
        if holder is None or holder["nodes_answering"] < holder["nodes"]:
            await self.live.refresh()  # it may be new, and not all of its nodes have told of it yet
            view = self.live.view or view
            holder = _holder(view, mesh_id)
        if holder is None and view["pool"]["state"] != "up":
            raise Refused(503, view["pool"]["message"])
        if holder is None:
            raise Refused(404, "its mesh was released or stopped, and its logs went with it")
        return self._actions.held(view, holder["id"], right="read"), mesh_id

    def _lines(self, held: Json, mesh_id: str) -> LogLines:
        return LogLines.of(self.live.held(held["id"]), mesh_id)

    async def _log_rows(self, body: Json) -> Json:
        first, count = _integer(body, "first", 0), _integer(body, "count", 0, MAX_ROWS)
        return await self._log(body).read(first, count)

    async def _log_find(self, body: Json) -> Json:
        log, text = self._log(body), _text(body, "text")
        if not text:
            return {"row": None}
        start, backwards = _integer(body, "from", 0), _flag(body, "backwards", False)
        return {"row": await log.find(text, regex=_flag(body, "regex", False), start=start, backwards=backwards)}

    async def _log_row(self, body: Json) -> Json:
        row = _integer(body, "row", 0)
        return await self._log(body).read_own(row)

    async def _own_lines(self, body: Json) -> Json:
        """Answer with each rank's own line of a row in the output of a cell."""
        run, shown = _integer(body, "run", 1), _text(body, "text")
        held, mesh_id = await self._held_mesh(body)
        size, lines = len(self._actions.ranks(self._actions.mesh(held, mesh_id), None)), self._lines(held, mesh_id)
        numbers = parse_places(_text(body, "lines"), size)
        if numbers is None:
            raise Refused(400, "lines are a text such as 120:0-6;1120:7", {"lines": "numbers, each with ranks"})
        reader = Reader(lines, is_away=lambda rank: self.live.is_silent(lines.node_of(rank)))
        return {"lines": await own_lines(reader, run, numbers, shown)}

    async def _curves_found(self, body: Json) -> Json:
        """Answer with the runs of a mesh, and with the numbers that can be drawn of one."""
        run = None if body.get("run") is None else _integer(body, "run", 1)
        numbers, ranks = await self._numbers(body)
        return await self._curves.found(numbers, run, ranks)

    async def _curves_read(self, body: Json) -> Json:
        """Answer with curves, unless they are those that the browser has."""
        runs, names = body.get("runs"), body.get("names")
        if not isinstance(runs, list) or not runs or not all(type(each) is int and each > 0 for each in runs):
            raise Refused(400, f"runs are numbers of runs, not {runs!r}", {"runs": "a list of whole numbers"})
        if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
            raise Refused(400, f"names are a list of texts, not {names!r}", {"names": "a list of texts"})
        numbers, ranks = await self._numbers(body)
        unique = tuple(dict.fromkeys(runs)), tuple(dict.fromkeys(names))
        request = CurvesRequest(_text(body, "mesh"), *unique, _text(body, "x", ""), ranks)
        return await self._curves.read(numbers, request, _text(body, "since", ""))

    async def _numbers(self, body: Json) -> tuple[MeshNumbers, tuple[int, ...]]:
        """Return what reads the numbers that were printed on the mesh that is named, and the ranks that are."""
        held, mesh_id = await self._held_mesh(body)
        ranks = self._actions.ranks(self._actions.mesh(held, mesh_id), body.get("ranks"))
        return MeshNumbers(self.live.held(held["id"]), mesh_id, self.live.owner), ranks

    async def _top(self, body: Json) -> Json:
        """Answer with where ranks are. They look on as long as this is asked again and again."""
        held, mesh_id = await self._held_mesh(body)
        ranks = self._actions.ranks(self._actions.mesh(held, mesh_id), body.get("ranks"))
        told = self.live.held(held["id"])
        parts = told.meshes[mesh_id]
        mesh = MeshCore(mesh_id, parts.connections(told), parts.extent)
        return top_shown(await look_at(mesh, ranks))

    async def _log_close(self, body: Json) -> Json:
        self._logs.close(_text(body, "log"))
        return {}

    def _log(self, body: Json) -> Log:
        log = self._logs.get(_text(body, "log"))
        if log is None:
            raise Refused(404, "this log is not open (any more): open it again")
        return log

    # ---- helpers ----

    async def _held(self, body: Json, *, right: str = "own", action: str = "") -> Json:
        reservation_id = _text(body, "reservation")
        view = await self.live.fresh()
        if reservation_id not in view["reservations"]:
            await self.live.refresh()  # it may be new
        return self._actions.held(self.live.view or view, reservation_id, right=right, action=action)


def _holder(view: Json, mesh_id: str) -> Json | None:
    """Return the reservation that has a mesh."""
    held: list[Json] = list(view["reservations"].values())
    return next((each for each in held if mesh_id in [mesh["id"] for mesh in each["meshes"]]), None)


def _text(body: Json, key: str, default: str | None = None) -> str:
    value = body.get(key, default)
    if value is None:
        value = default
    if not isinstance(value, str):
        raise Refused(400, f"{key} is missing" if value is None else f"{key} is a text, not {value!r}", {key: "a text"})
    return value


def _integer(body: Json, key: str, minimum: int, maximum: int | None = None) -> int:
    value = body.get(key)
    if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
        limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise Refused(400, f"{key} is a whole number {limits}, not {value!r}", {key: "a whole number"})
    return value


def _flag(body: Json, key: str, default: bool) -> bool:
    value = body.get(key, default)
    if not isinstance(value, bool):
        raise Refused(400, f"{key} is true or false, not {value!r}", {key: "true or false"})
    return value


def _choice(body: Json, key: str, choices: tuple[T, ...]) -> T:
    """Return what was chosen, the first of the choices by default."""
    value = body.get(key, choices[0])
    if value not in choices:
        raise Refused(400, f"{key} is one of {', '.join(map(str, choices))}, not {value!r}", {key: "unknown"})
    return cast(T, value)


def _in_own_context(work: Any) -> concurrent.futures.Future[Any]:
    """Start a coroutine on the background loop, in a context of its own (see client.connections.bridge.post)."""
    return contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, background_loop())


class Panels:
    """Makes them when they are asked for. Safe to use from any thread.

    Args:
        pool: that is meant when none is named. The others: see Panel.
    """

    def __init__(
        self, pool: str = DEFAULT_POOL, *, root: str = "", refresh_s: float = 1.0, notice_s: float = 10.0
    ) -> None:
        self._own, self._root, self._refresh_s, self._notice_s = pool, root, refresh_s, notice_s
        self._panels: dict[str, Panel] = {}
        self._lock = threading.Lock()

    def find(self, pool: str = "") -> Panel | None:
        """Return the panel of a pool, also of one that has ended if somebody looked at it; None when there is none."""
        name = pool or self._own
        if name in self._panels or name in [each["name"] for each in pools_to_show(self._own)]:
            return self.of(name)
        return None

    def of(self, pool: str) -> Panel:
        """Return the panel of a pool, whether or not there is such a pool now."""
        with self._lock:
            if pool not in self._panels:
                often = {"refresh_s": self._refresh_s, "notice_s": self._notice_s}
                self._panels[pool] = Panel(pool, home=self._own, root=self._root, **often)
            return self._panels[pool]

    def handle(self, name: str, body: object) -> concurrent.futures.Future[Json]:
        """Do what is asked, of the pool that the body names; the answer is as Panel.handle has it."""
        pool = body.get("pool") if isinstance(body, Mapping) else None
        if panel := self.find(str(pool or "")):
            return panel.handle(name, body)
        answer: concurrent.futures.Future[Json] = concurrent.futures.Future()
        message = Refused(404, no_such_pool(str(pool))).message
        answer.set_result({"error": {"status": 404, "message": message, "errors": {}}})
        return answer
