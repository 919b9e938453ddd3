"""Of a flood some lines are left out, and counted; what stays is in order."""

import math
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.client.connections.events import (
    Display,
    Elided,
    ElidedOfMany,
    Event,
    Finished,
    Result,
    Text,
)
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.placing import Places
from monarch_nb.notebook.output.rows import ElidedRow, Row, TextRow, members
from unit.notebook.output.folds import of_rank, packed, shown_of


def _counted(rows: Iterable[Row]) -> Counter[int]:
    """Return how many lines of each rank are shown or counted as not shown."""
    counts: Counter[int] = Counter()
    for row in rows:
        if isinstance(row, ElidedRow):
            counts.update(row.lines)
        else:
            counts.update(members(row.ranks))
    return counts


@pytest.mark.parametrize("equal", [True, False])
def test_a_flood_is_bounded_and_counted(equal: bool) -> None:
    ranks, lines = 4, 5_000
    for chunk in (7, 500, 5_000):
        fold = Fold(range(ranks))
        for start in range(0, lines, chunk):
            for rank in range(ranks):
                numbers = range(start, min(lines, start + chunk))
                fold.add(Text(rank, "stdout", "".join(f"line {n} {'' if equal else rank}\n" for n in numbers)))
        rows = fold.rows()
        assert len(rows) < 1400
        assert _counted(rows) == dict.fromkeys(range(ranks), lines)
        if equal:
            everyone = ",".join(map(str, range(ranks)))
            assert [*shown_of(rows[:1]), *shown_of(rows[-1:])] == [(everyone, "line 0 "), (everyone, "line 4999 ")]
        for rank in range(ranks):
            assert of_rank(rows, rank)[-1] == ("stdout", f"line 4999 {'' if equal else rank}")


def test_a_flood_of_one_rank_does_not_hide_the_others() -> None:
    fold = Fold(range(3))
    fold.add(Text(2, "stdout", "early words\n"))
    for start in range(0, 10_000, 1000):
        fold.add(
            Text(0, "stdout", "".join(f"line {count}\n" for count in range(start, start + 1000))), now_s=start / 1e3
        )
        if start == 4_000:
            fold.add(Text(1, "stdout", "a warning\nand more of it\n"), now_s=start / 1e3)
    assert {"early words", "a warning", "and more of it"} <= {text for _, text in shown_of(fold.rows())}


def test_a_rank_with_nan_stays_although_it_is_in_the_middle() -> None:
    for is_packed in (True, False):
        ranks, lines, odd, at = 16, 6_000, 11, 3_000
        fold = Fold(range(ranks))
        for start in range(0, lines, 100):
            of_each = {
                rank: [
                    f"step {n} loss {math.nan if (rank, n) == (odd, at) else n + rank / 100:.2f}"
                    for n in range(start, start + 100)
                ]
                for rank in range(ranks)
            }
            if is_packed:
                fold.add(packed(of_each))
            else:
                for rank, of_rank_ in of_each.items():
                    fold.add(Text(rank, "stdout", "".join(f"{line}\n" for line in of_rank_)))
        fold.add(Finished())
        rows = fold.rows()
        assert [row.text for row in rows if isinstance(row, TextRow) and row.is_marked] == [
            f"step {at} loss {at:.2f}–{at + 0.15:.2f}  \x1b[1;31m[{odd}]! loss: nan\x1b[0m"
        ]
        assert len(rows) < 1_100
        assert set(_counted(rows).values()) == {lines}


def test_elisions_align_ranks_by_line_number() -> None:
    fold = Fold(range(2))
    for rank, shown in enumerate([100, 60]):
        fold.add(Text(rank, "stdout", "".join(f"line {n}\n" for n in range(shown))))
        fold.add(Elided(rank, "stdout", 1000 - shown, 10_000))
        fold.add(Text(rank, "stdout", "".join(f"line {n}\n" for n in range(1000, 1100))))
    rows = fold.rows()
    assert _counted(rows) == {0: 1100, 1: 1100}
    assert shown_of(rows[-100:]) == [("0,1", f"line {n}") for n in range(1000, 1100)]
    assert sum(isinstance(row, ElidedRow) for row in rows) == 1


def test_of_a_flood_on_many_ranks_most_are_only_counted() -> None:
    fold = Fold(range(64), "equal")
    for burst in range(5):
        now_s = burst / 2
        fold.add(ElidedOfMany(tuple(range(8, 64)), "stdout", (1_000,) * 56, (9_000,) * 56), now_s)
        for rank in range(8):
            fold.add(Elided(rank, "stdout", 900, 8_000), now_s)
            text = "".join(f"{rank} at {n}\n" for n in range(1_000 * burst + 900, 1_000 * burst + 1_000))
            fold.add(Text(rank, "stdout", text), now_s)
    fold.add(Text(40, "stdout", "the end of 40\n"), 2.5)
    rows = fold.rows()
    assert _counted(rows) == dict.fromkeys(range(64), 5_000) | {40: 5_001}
    assert shown_of(rows)[-1] == ("40", "the end of 40")
    assert {text for _, text in shown_of(rows)} >= {f"{rank} at 4999" for rank in range(8)}


def test_the_end_of_a_flood_folds_though_ranks_come_there_seconds_apart() -> None:
    for last in ("the end", "the end of {rank}"):
        fold = Fold(range(4))
        for rank in range(4):
            for start in range(0, 4_000, 1000):
                text = "".join(f"line {n}\n" for n in range(start, start + 1000))
                fold.add(Text(rank, "stdout", text), 10.0 * rank + start / 1000)
        for rank in range(4):
            fold.add(Text(rank, "stdout", f"{last.format(rank=rank)}\n"), 50.0)
        before = _counted(fold.rows())
        fold.add(Finished())
        rows = fold.rows()
        assert _counted(rows) == before == dict.fromkeys(range(4), 4_001)
        ending = [("0,1,2,3", f"line {n}") for n in range(3_940, 4_000)]
        ending += (
            [("0,1,2,3", last)] if last == "the end" else [(str(rank), last.format(rank=rank)) for rank in range(4)]
        )
        assert shown_of(rows)[-len(ending) :] == ending


KINDS = st.sampled_from(["counts", "repeats", "is elided"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 9), KINDS), max_size=40))
def test_the_end_of_a_flood_keeps_every_line_and_each_ranks_order(parts: list[tuple[int, int, int, str]]) -> None:
    fold, printed = Fold(range(4)), {rank: list[str]() for rank in range(4)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HEAD_ROWS": 3, "TAIL_ROWS": 8, "_SLACK_ROWS": 4, "LAST_ROWS_OF_ALL": 12}.items():
            patch.setattr(f"monarch_nb.notebook.output.fold.{name}", value)
        for now_s, (rank, count, digit, kind) in enumerate(parts):
            lines = [f"line {len(printed[rank]) + n if kind == 'counts' else digit}" for n in range(count)]
            printed[rank] += lines
            text = "".join(f"{line}\n" for line in lines)
            fold.add(Elided(rank, "stdout", count, 1) if kind == "is elided" else Text(rank, "stdout", text), now_s / 3)
        fold.add(Finished())
        rows = fold.rows()
    assert {rank: count for rank, count in _counted(rows).items() if count} == {
        rank: len(lines) for rank, lines in printed.items() if lines
    }
    for rank, lines in printed.items():
        left = iter(lines)
        assert all(text in left for _, text in of_rank(rows, rank)), "in the order in which it printed them"


def test_the_newest_lines_of_every_rank_are_shown_at_the_end() -> None:
    """Ranks whose lines differ, each at its own speed: now a few lines come, now the ends of a flood."""
    for seed in range(5):
        fold, total, order = Fold(range(4)), 12_000, random.Random(seed)
        done = dict.fromkeys(range(4), 0)
        now_s = 0.0
        while going_on := [rank for rank, count in done.items() if count < total]:
            now_s += order.choice([0.01, 0.1, 0.3])
            rank = order.choice(going_on)
            start, burst = done[rank], min(total - done[rank], order.choice([50, 3_000, 9_000]))
            lines = [f"line {number} of rank {rank}\n" for number in range(start, start + burst)]
            fold.add(Text(rank, "stdout", "".join(lines[:500])), now_s)
            if burst > 1_000:
                fold.add(Elided(rank, "stdout", burst - 1_000, burst * 20), now_s)
            if burst > 500:
                fold.add(Text(rank, "stdout", "".join(lines[-500:])), now_s)
            done[rank] += burst
            if order.random() < 0.5:
                fold.rows()
        fold.add(Finished(), now_s)
        rows = fold.rows()
        assert _counted(rows) == dict.fromkeys(range(4), total), seed
        for rank in range(4):
            shown = [text for _, text in of_rank(rows, rank)]
            assert shown[-60:] == [f"line {number} of rank {rank}" for number in range(total - 60, total)], seed


def test_where_nothing_is_left_out_the_places_of_lines_are_gone_through_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone_through = []
    forget_places = Places._forget_places

    def counting(places: Places) -> None:
        gone_through.append(places._count)
        forget_places(places)

    monkeypatch.setattr(Places, "_forget_places", counting)
    fold = Fold(range(2), drops=False)
    fold.add(Result(1, "ok", 0.1))
    fold.add(Text(0, "stdout", "".join(f"line {count}\n" for count in range(9_000))))
    assert gone_through == [4_000, 8_000]
    assert len(fold.take()) == 9_000
    fold.add(Text(0, "stdout", "".join(f"line {count}\n" for count in range(9_000, 19_000))))
    assert gone_through == [4_000, 8_000, 16_000]
    assert fold._places._count == 10_000, "what was taken needs none"


@pytest.mark.parametrize("takes", [False, True])
def test_what_one_rank_writes_whole_is_what_it_is_among_others(takes: bool) -> None:
    """Nothing is aligned then; bars that move up, clearing and displays are as ever."""
    pieces: list[Event] = [
        Text(0, "stdout", "one\none\n 10%\r 20%\n"),
        Text(0, "stderr", "bar 1\nbar 2\n\x1b[A\x1b[Abar 3\n"),
        Display(0, "show", {"text/plain": "a"}, display_id="a"),
        Text(0, "stdout", "two\n\x1b[Athree\nopen"),
        Elided(0, "stdout", 5, 100),
        Text(0, "stdout", "one\n"),
        Display(0, "update", {"text/plain": "b"}, display_id="a"),
        Elided(0, "stdout", 7, 100),
        Display(0, "clear", {"wait": True}),
        Text(0, "stdout", "after\none\n"),
        Finished(),
    ]
    shown = []
    for ranks in (1, 2):
        fold, rows = Fold(range(ranks), drops=False), list[Row]()
        for rank in range(1, ranks):
            fold.add(Result(rank, "ok", 0.1))
        for now_s, piece in enumerate(pieces):
            fold.add(piece, now_s)
            rows += fold.take(now_s) if takes else []
        shown.append(
            [(type(row).__name__, getattr(row, "text", ""), getattr(row, "data", "")) for row in rows + fold.take(99)]
        )
    assert shown[0] == shown[1]
    assert len(shown[0]) > 1
