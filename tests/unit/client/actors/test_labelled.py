"""Lines of Monarch's actors come as lines of the nodes, and are shown as those of the actors."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.client.actors.calls import Labelled
from monarch_nb.client.connections.events import Event, Finished, Text
from monarch_nb.client.runs.run import Listener


class Views:
    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], list[Event]] = {}

    def __call__(self, ranks: Iterable[int], name: str) -> Listener:
        return self.seen.setdefault((name, len(tuple(ranks))), []).append


def test_each_name_has_a_view_of_its_ranks() -> None:
    views = Views()
    labelled = Labelled(views)
    labelled.on_event(Text(0, "stdout", "[trainers 0/4] step\n[trainers 1/4] st"))
    labelled.on_event(Text(1, "stdout", "[trainers 3/4] step\n[judges 0/1] ok\n"))
    labelled.on_event(Text(0, "stdout", "ep\nof C code\n"))
    labelled.on_event(Finished())
    assert {name: events[:-1] for name, events in views.seen.items()} == {
        ("trainers", 4): [Text(0, "stdout", "step\n"), Text(3, "stdout", "step\n"), Text(1, "stdout", "step\n")],
        ("judges", 1): [Text(0, "stdout", "ok\n")],
        ("main", 1): [Text(0, "stdout", "of C code\n")],
    }
    assert all(events[-1] == Finished() for events in views.seen.values()), "all hear of the end"
