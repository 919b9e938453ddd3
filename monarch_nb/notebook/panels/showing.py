"""Panels and rich representations in one notebook: live where a widget can be shown, else as things were.

A notebook's output holds all forms at once, of which the front end takes the best that it knows: widget, HTML, text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.presenting import present_with
from monarch_nb.config import default_pool, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.notebook.output.tables import Shown, is_notebook
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.client.runs.needs import Holder
    from monarch_nb.notebook.panels.summaries import Part
    from monarch_nb.notebook.panels.widget import PanelWidget
    from monarch_nb.panel.panels import Panels as PoolPanels
    from monarch_nb.panel.requests import Panel
    from monarch_nb.panel.shown.view import Json

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

    def _make(self, pool: str | None, reservation: Holder | None) -> PanelWidget:
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

    def _summary(self, pool: str | None, held: Holder | Mesh | None) -> Shown:
        from monarch_nb.notebook.panels.summaries import pool_summary, reservation_summary

        view = call(_asked(_panel(pool), "view", {}), VIEW_TIMEOUT_S)
        if held is None:
            return pool_summary(view)
        reservation = _reservation_of(held)
        return reservation_summary(view, reservation.id, reservation.name, _part_of(held))

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
    from monarch_nb.panel.panels import Panels

    return Panels(default_pool())


def _panel(pool: str | None) -> Panel:
    return _panels().of(pool or default_pool())


async def _asked(panel: Panel, request: str, body: Json) -> Json:
    answer = await asyncio.wrap_future(panel.handle(request, body))
    if "error" in answer:
        raise MonarchNbError(answer["error"]["message"])
    result: Json = answer["result"]
    return result


def _reservation_of(held: Holder | Mesh) -> Holder:
    from monarch_nb.client.meshes.mesh import Mesh

    return held.reservation if isinstance(held, Mesh) else held


def _part_of(held: Holder | Mesh) -> Part | None:
    """Return which ranks are meant; None for all that a reservation has, which is what its widget shows."""
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.notebook.panels.summaries import Part

    if not isinstance(held, Mesh) or (held.id, held.ranks) == (held.reservation.mesh.id, held.reservation.mesh.ranks):
        return None
    return Part(held.id, held.ranks)
