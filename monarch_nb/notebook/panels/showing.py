"""Panels and rich representations in one notebook: live where a widget can be shown, else as things were.

A notebook's output holds all forms at once, of which the front end takes the best that it knows: widget, HTML, text.
Without a widget a reservation or a pool is text, made of the same View as the panel (see monarch_nb.panel.shown.view).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.client.presenting import present_with
from monarch_nb.config import default_pool, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.notebook.output.tables import Shown, is_notebook, preformatted
from monarch_nb.notebook.session import Session
from monarch_nb.panel.shown.view import Json
from monarch_nb.sizes import size
from monarch_nb.times import duration, time_of_day

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.notebook.panels.widget import PanelWidget
    from monarch_nb.panel.requests import Panel
    from monarch_nb.panel.requests import Panels as PoolPanels

VIEW_TIMEOUT_S = patience(5.0)
_REPRESENTED = (
    ("monarch_nb.client.reservations.reservation", "Reservation"),
    ("monarch_nb.client.meshes.mesh", "Mesh"),
)


class Panels:
    """Makes them for one kernel: one widget for each thing, however often it is shown."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session
        self._widgets: dict[tuple[str | None, str], PanelWidget] = {}
        self._busy = False

    def register(self) -> Callable[[], None]:
        """Show reservations and meshes richly from now on, in notebooks; returns what ends that."""
        if not is_notebook(self._shell):
            return lambda: None
        display_formatter: Any = self._shell.display_formatter
        formatter = display_formatter.mimebundle_formatter
        for home, name in _REPRESENTED:
            formatter.for_type_by_name(home, name, self._bundle)
        events = {"pre_execute": self._cell_begins, "post_execute": self._cell_ends}
        for event, callback in events.items():
            self._shell.events.register(event, callback)
        end = present_with(self.panel)

        def unregister() -> None:
            end()
            for event, callback in events.items():
                self._shell.events.unregister(event, callback)
            for home, name in _REPRESENTED:
                formatter.pop(f"{home}.{name}", None)
            for widget in self._widgets.values():
                widget.close()

        return unregister

    def panel(self, held: Reservation | Mesh | None = None) -> PanelWidget | Shown:
        """Return what shows a reservation, the whole pool by default: live where somebody can see it live.

        Raises:
            UsageError: a widget is needed, and its JavaScript is not built.
        """
        if held is None:
            pool, reservation = self._session.pool, None
        else:
            reservation = _reservation_of(held)
            pool = reservation.pool
        if not self.is_attended:
            return self._summary(pool, held)
        key = pool, reservation.id if reservation else ""
        if (widget := self._widgets.get(key)) is None or not widget.is_open:
            widget = self._widgets[key] = self._make(pool, reservation)
        return widget

    def _make(self, pool: str | None, reservation: Reservation | None) -> PanelWidget:
        from monarch_nb.notebook.panels.widget import PanelWidget

        return PanelWidget(
            _panel(pool),
            reservation.id if reservation else "",
            others=_panels().find,
            describe=lambda: self._summary(pool, reservation)._repr_mimebundle_(),
            defaults={"reserve": {"notebook": self._session.notebook or ""}},
            own={"attach": self._attach},
            is_busy=lambda: self._busy,
        )

    def _bundle(self, held: Reservation | Mesh) -> dict[str, Any] | tuple[dict[str, Any], dict[str, Any]] | None:
        summary: dict[str, Any] = self._summary(_reservation_of(held).pool, held)._repr_mimebundle_()
        if not self.is_attended or _part_of(held) is not None:
            return summary
        try:
            return self.panel(held)._repr_mimebundle_()
        except (UsageError, ImportError):  # no JavaScript, no anywidget: the next best form is there
            return summary

    def _summary(self, pool: str | None, held: Reservation | Mesh | None) -> Shown:
        view = call(_asked(_panel(pool), "view", {}), VIEW_TIMEOUT_S)
        if held is None:
            return preformatted(pool_summary(view))
        reservation = _reservation_of(held)
        return preformatted(reservation_summary(view, reservation.id, reservation.name, _part_of(held)))

    def _attach(self, body: Json) -> Json:
        name = body.get("name")
        if not isinstance(name, str) or not name:
            raise UsageError("attach what?")
        meant = {"reservation": body.get("reservation")}
        call(_asked(_panel(body.get("pool")), "attach_lines", meant), VIEW_TIMEOUT_S)  # raises where it is refused
        ranks = len(self._session.attach(name, body.get("pool")).mesh.ranks)
        on = "its rank" if ranks == 1 else f"its {ranks} ranks"
        return {"text": f"This notebook uses {name} now: a cell with %%mesh at its top runs on {on}."}

    @property
    def is_attended(self) -> bool:
        """Whether a person sees the output of this cell now: programs that run notebooks never allow questions."""
        kernel = getattr(self._shell, "kernel", None)
        if kernel is None:
            return False
        content = kernel.get_parent().get("content") or {}
        return bool(content.get("allow_stdin"))

    def _cell_begins(self) -> None:
        self._busy = True

    def _cell_ends(self) -> None:
        self._busy = False


@cache
def _panels() -> PoolPanels:
    from monarch_nb.panel.requests import Panels

    return Panels(default_pool())


def _panel(pool: str | None) -> Panel:
    return _panels().of(pool or default_pool())


async def _asked(panel: Panel, request: str, body: Json) -> Json:
    answer = await asyncio.wrap_future(panel.handle(request, body))
    if "error" in answer:
        raise MonarchNbError(answer["error"]["message"])
    result: Json = answer["result"]
    return result


def _reservation_of(held: Reservation | Mesh) -> Reservation:
    from monarch_nb.client.meshes.mesh import Mesh

    return held.reservation if isinstance(held, Mesh) else held


def _part_of(held: Reservation | Mesh) -> Part | None:
    """Return which ranks are meant; None for all that a reservation has, which is what its widget shows."""
    from monarch_nb.client.meshes.mesh import Mesh

    if not isinstance(held, Mesh) or (held.id, held.ranks) == (held.reservation.mesh.id, held.reservation.mesh.ranks):
        return None
    return Part(held.id, held.ranks)


_ORDER = ("dead", "failed", "unreachable", "waiting", "running", "starting", "idle")


@dataclass(frozen=True, slots=True)
class Part:
    """Which ranks are meant: some of a mesh's."""

    mesh_id: str
    ranks: Sequence[int]


def reservation_summary(view: Json, reservation_id: str, heading: str, part: Part | None = None) -> str:
    """Return a reservation as the view has it, or what became of it.

    Args:
        heading: what to call it when it is not there any more.
        part: the ranks to show; by default all of its main mesh.
    """
    held = view["reservations"].get(reservation_id)
    if held is None:
        ended = next((one["text"] for one in view["ended"] if one["id"] == reservation_id), "")
        return ended or _block(heading, view["pool"]["message"] or "it has been released", [], [])
    mesh = next(
        (each for each in held["meshes"] if (each["id"] == part.mesh_id if part else each["name"] == "main")), None
    )
    ranks = [rank for rank in mesh["ranks"] if part is None or rank["rank"] in part.ranks] if mesh else []
    name = held["name"] if mesh is None or mesh["name"] == "main" else f"{held['name']}/{mesh['name']}"
    chosen = f", {name_ranks(part.ranks)}" if part and mesh and len(ranks) < len(mesh["ranks"]) else ""
    aside = " · ".join([f"{_shape(held)}{chosen}", *_time(held)])
    return _block(name, aside, ranks, _notes(ranks, mesh["runs"] if mesh else [], view["now"]))


def pool_summary(view: Json) -> str:
    """Return what a pool has and who holds what."""
    pool = view["pool"]
    nodes = " · ".join(_node(node) for node in view["nodes"].values())
    parts = [_block(f"pool {pool['name']}", nodes or pool["message"] or "", [], [])]
    parts += [reservation_summary(view, held, "") for held, facts in view["reservations"].items() if facts["mine"]]
    others = [
        f"{held['name']}: {_shape(held)}, held by {held['owner']}"
        for held in view["reservations"].values()
        if not held["mine"]
    ]
    return "\n\n".join([*parts, *(["\n".join(others)] if others else [])])


def _shape(held: Json) -> str:
    return str(Shape(held["nodes"], held["procs"], held["gpus"]))


def _time(held: Json) -> list[str]:
    parts = [f"{duration(held['time_left_s'])} left"] if held["time_left_s"] is not None else []
    if held["idle_s"] is not None:
        parts.append(f"released after {duration(held['idle_s'])} without use")
    return parts


def _node(node: Json) -> str:
    kinds = [
        f"{node[kind]['free']} of {node[kind]['total']} {kind} free"
        for kind in ("gpus", "procs")
        if node[kind]["total"]
    ]
    state = "" if node["state"] == "ok" else f" ({node['state']})"
    return f"{node['id']}{state}: {', '.join(kinds) or 'nothing'}"


def _notes(ranks: Sequence[Json], runs: Sequence[Json], now: float) -> list[str]:
    details: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        if rank["detail"]:
            details.setdefault((rank["state"], rank["detail"]), []).append(rank["rank"])
    notes = [f"{name_ranks(chosen)} {_saying(state, detail)}" for (state, detail), chosen in details.items()]
    begun = {rank["run"] for rank in ranks}
    for run in runs:
        if run["id"] in begun:
            name = f"cell {run['cell_number']}" if run["cell_number"] else f"run {run['number']}"
            notes.append(f"{name} runs for {duration(run['running_s'] or 0.0)}: {run['title']}")
    memory = sum(rank["memory"] or 0 for rank in ranks)
    if ranks:
        notes.append(f"{f'{size(memory)} in memory · ' if memory else ''}as of {time_of_day(now)}")
    return notes


def _saying(state: str, detail: str) -> str:
    return detail if state in ("waiting", "dead") else f"{state}: {detail}"


def _block(name: str, aside: str, ranks: Sequence[Json], notes: Sequence[str]) -> str:
    by_node: dict[str, list[Json]] = {}
    for rank in ranks:
        by_node.setdefault(rank["node"] or "?", []).append(rank)
    lines = [" · ".join(filter(None, (name, aside, _tally(ranks))))]
    width = max(map(len, by_node), default=0)
    lines += [f"  {node.ljust(width)}  {_states(on_node)}" for node, on_node in by_node.items()]
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _tally(ranks: Iterable[Json]) -> str:
    states = [rank["state"] for rank in ranks]
    return ", ".join(f"{states.count(state)} {state}" for state in _ORDER if state in states)


def _states(ranks: Iterable[Json]) -> str:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(rank["state"], []).append(rank["rank"])
    return ", ".join(f"{format_ranks(chosen)} {state}" for state, chosen in groups.items())
