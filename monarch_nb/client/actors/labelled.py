"""What Monarch's own actors print, which comes as lines of the nodes, is shown as lines of the actors.

Each line says who has printed it (`monarch_nb.worker.monarch.output`): `[trainers 3/4] step 10`. Actors of each name
have a view of their own, in which ranks fold as those of a mesh do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from monarch_nb.client.connections.events import Event, Stream, Text
from monarch_nb.client.runs.run import Listener

_LABEL = re.compile(r"\[(?P<name>[^\[\]\n]+) (?P<rank>\d+)/(?P<count>\d+)\] ")
OTHERS = "monarch"
"""Names the view of what no actor has printed."""


class Labelled:
    """Shows the lines of actors.

    Args:
        view: returns what is told the events of some ranks of a name.
    """

    def __init__(self, view: Callable[[Iterable[int], str], Listener]) -> None:
        self._view = view
        self._views: dict[tuple[str, int], Listener] = {}
        self._begun: dict[tuple[int, Stream], str] = {}

    def on_event(self, event: Event) -> None:
        """Take in an event of the run on the nodes."""
        if isinstance(event, Text):
            key = event.rank, event.stream
            whole, newline, self._begun[key] = (self._begun.get(key, "") + event.text).rpartition("\n")
            if newline:
                for line in whole.split("\n"):
                    self._show(event.rank, event.stream, line)
            return
        for view in self._views.values() or [self._view_of(OTHERS, 1)]:
            view(event)

    def _show(self, node: int, stream: Stream, line: str) -> None:
        label = _LABEL.match(line)
        if label is None:
            self._view_of(OTHERS, node + 1)(Text(node, stream, f"{line}\n"))
            return
        rank, count = int(label["rank"]), int(label["count"])
        self._view_of(label["name"], count)(Text(rank, stream, f"{line[label.end() :]}\n"))

    def _view_of(self, name: str, count: int) -> Listener:
        key = (name, 0 if name == OTHERS else count)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = self._view(range(count), "main" if name == OTHERS else name)
        return view
