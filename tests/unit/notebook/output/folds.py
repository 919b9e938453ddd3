"""Folds of events, and what they show in short."""

from collections.abc import Iterable

from monarch_nb.client.connections.events import (
    Event,
)
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.rows import NoteRow, Row, TextRow, members


def fold_of(ranks: int, *events: Event) -> Fold:
    fold = Fold(range(ranks))
    for event in events:
        fold.add(event)
    return fold


def shown_of(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return e.g. ("0,1", "loss 2.31")."""
    shown = []
    for row in rows:
        text = row.text if isinstance(row, TextRow | NoteRow) else type(row).__name__
        shown.append((",".join(map(str, members(row.ranks))), text))
    return shown


def of_rank(rows: Iterable[Row], rank: int) -> list[tuple[str, str]]:
    return [(row.stream, row.text) for row in rows if isinstance(row, TextRow) and row.ranks >> rank & 1]
