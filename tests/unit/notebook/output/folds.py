"""Folds of events, and what they show in short."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monarch_nb.client.connections.events import Event, LinesOfMany, Stream, TextOfMany
from monarch_nb.lines import packing
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.render import render
from monarch_nb.notebook.output.rows import NoteRow, Row, TextRow, members


def fold_of(ranks: int, *events: Event) -> Fold:
    fold = Fold(range(ranks))
    for event in events:
        fold.add(event)
    return fold


def packed(lines: Mapping[int, Sequence[str]], stream: Stream = "stdout") -> LinesOfMany | TextOfMany:
    """Return as one event what ranks wrote: lines that differ in numbers."""
    first = next(iter(lines.values()))
    text = "".join(f"{line}\n" for line in first)
    if not first:
        return TextOfMany(tuple(lines), stream, text)
    columns = [packing.keys_and_columns(of_rank)[1] for of_rank in lines.values()]
    of_lines = (packing.joined(each, [1] * len(lines)) for each in zip(*columns, strict=True))
    return LinesOfMany(tuple(lines), stream, text, "\n".join(map(packing.text_of, of_lines)))


def rendered(fold: Fold, **options: Any) -> dict[str, str]:
    """Return the one bundle that a fold is drawn as; empty when there is none."""
    shown = render(fold, notices=fold.notices.values(), **options)
    assert len(shown) <= 1
    return shown[0].data if shown else {}


def shown_of(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return e.g. ("0,1", "loss 2.31")."""
    shown = []
    for row in rows:
        text = row.text if isinstance(row, TextRow | NoteRow) else type(row).__name__
        shown.append((",".join(map(str, members(row.ranks))), text))
    return shown


def of_rank(rows: Iterable[Row], rank: int) -> list[tuple[str, str]]:
    return [(row.stream, row.text) for row in rows if isinstance(row, TextRow) and row.ranks >> rank & 1]
