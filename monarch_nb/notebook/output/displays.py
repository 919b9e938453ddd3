"""Which cells show displays that ranks may still update: a handle is used in later cells, too."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

from IPython.core.getipython import get_ipython

from monarch_nb.client.connections.events import Display, Event

_MAX_VIEWS, _MAX_BYTES = 32, 64_000_000


class ShowsDisplays(Protocol):
    """The output of a run in its cell.

    Attributes:
        cell: what the front end calls the cell; empty where it does not say.
    """

    cell: str

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""

    def shows_display(self, mesh_id: str, display: Display) -> bool:
        """Return whether it shows what `display`, of a run on that mesh, updates."""

    def on_event(self, event: Event) -> None:
        """Take in an event."""


_views: deque[ShowsDisplays] = deque(maxlen=_MAX_VIEWS)
"""Those of this kernel that have shown such displays, the newest last: what ranks print comes on one thread, cells
begin on another."""
_lock = threading.Lock()


def executing_cell() -> str:
    """Return what the front end calls the cell that executes now; empty where it does not say."""
    get_parent: Any = getattr(get_ipython(), "get_parent", dict)
    return str(((get_parent() or {}).get("metadata") or {}).get("cellId", ""))


def keep(view: ShowsDisplays) -> None:
    """Remember that a view shows a display with an id, and forget the oldest views when all take too much memory."""
    with _lock:
        if view in _views:
            return
        _views.append(view)
        excess_bytes = sum(each.size_bytes for each in _views) - _MAX_BYTES
        while excess_bytes > 0 and len(_views) > 1:
            excess_bytes -= _views.popleft().size_bytes


def forget(cell: str) -> None:
    """A cell is executed again: what it showed is gone."""
    with _lock:
        for view in [view for view in _views if cell and view.cell == cell]:
            _views.remove(view)


def view_of(mesh_id: str, update: Display) -> ShowsDisplays | None:
    """Return the view that shows what `update` updates, None when there is none any more."""
    with _lock:
        newest_first = list(reversed(_views))
    return next((view for view in newest_first if view.shows_display(mesh_id, update)), None)
