"""Which cells show displays that ranks may still update: a handle is used in later cells, too."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from IPython.core.getipython import get_ipython

from monarch_nb.client.connections.events import Display, Event

_KEPT_VIEWS = 32


class ShowsDisplays(Protocol):
    """The output of a run in its cell.

    Attributes:
        cell: what the front end calls the cell; empty where it does not say.
    """

    cell: str

    def shows_display(self, mesh_id: str, display: Display) -> bool:
        """Return whether it shows what `display`, of a run on that mesh, updates."""

    def on_event(self, event: Event) -> None:
        """Take in an event."""


_views: deque[ShowsDisplays] = deque(maxlen=_KEPT_VIEWS)
"""Those of this kernel that have shown such displays, the newest last."""


def executing_cell() -> str:
    """Return what the front end calls the cell that executes now; empty where it does not say."""
    get_parent: Any = getattr(get_ipython(), "get_parent", dict)
    return str(((get_parent() or {}).get("metadata") or {}).get("cellId", ""))


def keep(view: ShowsDisplays) -> None:
    """Remember that a view shows a display with an id."""
    if view not in _views:
        _views.append(view)


def forget(cell: str) -> None:
    """A cell is executed again: what it showed is gone."""
    for view in [view for view in _views if cell and view.cell == cell]:
        _views.remove(view)


def view_of(mesh_id: str, update: Display) -> ShowsDisplays | None:
    """Return the view that shows what `update` updates, None when there is none any more."""
    return next((view for view in reversed(_views) if view.shows_display(mesh_id, update)), None)
