"""Lines of several ranks become rows: nothing is lost, nothing is out of order, and what is equal is one row."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.panel.logs.folding import BEHIND_LINES, OPEN_LINES, RunTable


def table_of(*texts: str, fold: bool = True, silent: Sequence[int] = ()) -> RunTable:
    """A run whose ranks print one character a line."""
    table = RunTable(range(len(texts)), fold=fold)
    for rank, text in enumerate(texts):
        if fold:
            table.put(rank, 0, digests(text))
        else:
            table.set_count(rank, len(text))
    table.layout(silent)
    return table


def digests(text: Sequence[str]) -> array[int]:
    return array("Q", map(ord, text))


def shown(table: RunTable, texts: Sequence[str]) -> list[str]:
    """Rows as people would read them: `01 x`."""
    return [f"{''.join(map(str, row.ranks))} {texts[row.ranks[0]][row.line]}" for row in table.rows(0, len(table))]


def test_what_is_equal_is_one_row_and_ranks_come_back_in_step() -> None:
    for texts, rows in (
        (["abc", "abc", "abc"], ["012 a", "012 b", "012 c"]),
        (["a1b", "a2b", "a1b"], ["012 a", "02 1", "1 2", "012 b"]),
        (["abXYcd", "abcd"], ["01 a", "01 b", "0 X", "0 Y", "01 c", "01 d"]),
        (["abXcd", "abXcd", "abcd"], ["012 a", "012 b", "01 X", "012 c", "012 d"]),
        (["-1-2-3-", "-4-5-6-"], ["01 -", "0 1", "1 4", "01 -"]),  # lines that come again and again
        (["ab", ""], ["0 a", "0 b"]),
    ):
        assert shown(table_of(*texts), texts)[: len(rows) + ("-" not in texts[0])] == rows


def test_without_folding_every_line_of_every_rank_is_a_row() -> None:
    rows = table_of("aab", "aa", fold=False).rows(0, 10)
    assert [(*row.ranks, row.line) for row in rows] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


TEXTS = st.lists(st.text("abcXYZ-", max_size=40), min_size=1, max_size=5)


@given(TEXTS, st.booleans())
def test_nothing_is_lost_every_rank_keeps_its_order_and_a_line_is_found_in_its_row(
    texts: list[str], fold: bool
) -> None:
    table = table_of(*texts, fold=fold)
    rows = list(table.rows(0, len(table)))
    assert len(rows) == len(table)
    for rank, text in enumerate(texts):
        assert "".join(texts[row.ranks[0]][row.line] for row in rows if rank in row.ranks) == text
        own = [row.line for row in rows if row.ranks[0] == rank]
        assert own == sorted(set(own))
        places = [table.row_of(rank, line) for line in range(len(text))]
        assert places == [number for number, row in enumerate(rows) if rank in row.ranks]
        assert table.row_of(rank, len(text)) == len(table)


@given(TEXTS, st.integers(0, 60), st.integers(0, 60))
def test_any_window_is_a_part_of_the_whole(texts: list[str], first: int, count: int) -> None:
    table = table_of(*texts)
    assert list(table.rows(first, count)) == list(table.rows(0, len(table)))[first : first + count]


@given(st.lists(st.text("abcXYZ-", max_size=400), min_size=2, max_size=4), st.lists(st.integers(1, 150), max_size=8))
def test_while_a_run_goes_on_settled_rows_stay_and_the_end_is_as_if_read_at_once(
    texts: list[str], steps: list[int]
) -> None:
    table, known, settled = RunTable(range(len(texts))), [0] * len(texts), []
    for step in steps:
        for rank, text in enumerate(texts):
            first = max(table.settled(rank), known[rank] - OPEN_LINES, 0)
            known[rank] = min(len(text), known[rank] + step)
            table.put(rank, first, digests(text[first : known[rank]]))
        table.layout()
        rows = list(table.rows(0, len(table)))
        assert rows[: len(settled)] == settled
        settled = [row for row in rows if row.line < table.settled(row.ranks[0])]
    for rank, text in enumerate(texts):
        first = table.settled(rank)
        table.put(rank, first, digests(text[first:]))
    table.layout()
    for rank, text in enumerate(texts):
        assert "".join(texts[row.ranks[0]][row.line] for row in table.rows(0, len(table)) if rank in row.ranks) == text


def test_the_newest_line_may_grow_until_it_is_settled() -> None:
    table = RunTable(range(2))
    table.put(0, 0, digests("ab"))
    table.put(1, 0, digests("aB"))
    table.layout()
    assert len(table) == 3
    table.put(1, 1, digests("b"))
    table.layout()
    assert len(table) == 2


def test_a_rank_that_is_silent_and_far_behind_is_not_waited_for() -> None:
    for lines, silent, settles in (
        (BEHIND_LINES // 2, [1], False),
        (BEHIND_LINES * 2, [1], True),
        (BEHIND_LINES * 2, [], False),
    ):
        table = RunTable(range(2))
        table.put(0, 0, array("Q", range(lines)))
        table.layout(silent)
        assert bool(table.settled(0)) == settles
        table.put(1, 0, array("Q", range(10)))
        table.layout()
        assert len(table) == lines + (10 if settles else 0)


def test_where_nothing_folds_it_is_given_up_and_tried_again() -> None:
    table, lines = RunTable(range(4)), 50_000
    for rank in range(4):
        chance, mixed = random.Random(rank), []
        for first in range(0, 20_000, 50):
            mixed += chance.sample(range(first, first + 50), 50)
        table.put(rank, 0, array("Q", [*mixed, *range(20_000, lines)]))
    assert sum(1 for _ in table.lay_out()) < 40  # slices of some milliseconds; they are 82 when nobody gives up
    rows = list(table.rows(0, len(table)))
    for rank in range(4):
        shown = [line for row in rows for each, line in zip(row.ranks, row.lines, strict=True) if each == rank]
        assert shown == list(range(lines))
    assert {row.ranks for row in rows[-1000:]} == {(0, 1, 2, 3)}
