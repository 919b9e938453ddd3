"""`%mesh logs`: what ranks wrote, run after run, equal lines of several ranks once. Nothing is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from monarch_nb.client.events import Finished, Text
from monarch_nb.notebook.fold import HEAD_ROWS, TAIL_ROWS, Fold
from monarch_nb.notebook.rows import TextRow, members
from monarch_nb.shape import format_ranks

if TYPE_CHECKING:
    from monarch_nb.client.logs import LogRecord


def folded_lines(batches: Iterable[Iterable[LogRecord]]) -> Iterator[str]:
    """Yield the lines to show: `[0-7] text`, under a heading for each run.

    Args:
        batches: each is folded by itself; all of one run, then all of the next.
    """
    shown = 0
    for run, of_run in (group for batch in batches for group in itertools.groupby(batch, lambda record: record.run)):
        if run != shown:
            yield f"── run {run} ──"
        shown = run
        texts: dict[int, list[Text]] = {}
        for record in of_run:
            texts.setdefault(record.rank, []).append(Text(record.rank, record.stream, record.text))
        # A fold keeps so many rows and no more: fold in blocks that can not have more, even if no two lines are equal.
        block = max(1, (HEAD_ROWS + TAIL_ROWS) // len(texts))
        for start in range(0, max(map(len, texts.values())), block):
            yield from _fold(each[start : start + block] for each in texts.values())


def _fold(texts: Iterable[list[Text]]) -> Iterator[str]:
    fold = Fold([])
    for text in itertools.chain.from_iterable(texts):
        fold.add(text)
    fold.add(Finished())
    for row in fold.rows():
        if isinstance(row, TextRow):
            yield f"[{format_ranks(members(row.ranks))}] {row.text}"
