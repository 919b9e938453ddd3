"""Packed lines open to what each rank wrote."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.lines import packing
from monarch_nb.lines.packing import LineOfMany, lines_of_many
from monarch_nb.lines.spreads import spread
from monarch_nb.lines.templates import key_of

_NUMBERS = st.sampled_from(
    ["0", "2.31", "1e-05", "nan", "-inf", "9,012", "12:00:01", "0x7f", "31 ms", "rank 3", "step 5"]
)
_WORDS = st.sampled_from(["loss", "µ:", "\x1b[31mred\x1b[0m", "", "=", "in", "pid 7", "|██ |", "a\tb"])
_LINES = st.lists(st.tuples(_WORDS, _NUMBERS), max_size=4).map(
    lambda parts: " ".join(part for pair in parts for part in pair)
)


def _with_other_digits(line: str, chance: random.Random) -> str:
    """Return a line that may have the same template."""
    return "".join(chance.choice("123456789") if char in "123456789" else char for char in line)


@settings(deadline=None)
@given(_LINES, st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_packed_lines_spread_as_those_that_come_one_by_one(line: str, sizes: list[int], chance: random.Random) -> None:
    tried = [_with_other_digits(line, chance) for _ in range(sum(sizes))]
    lines = [each if key_of(each, "numbers") == key_of(line, "numbers") else line for each in tried]
    ranks = chance.sample(range(40), len(lines))
    plain = [(1 << rank, text) for rank, text in zip(ranks, lines, strict=True)]
    packed: list[tuple[int, str]] = []
    at = 0
    for size in sizes:
        whose, of = tuple(ranks[at : at + size]), lines[at : at + size]
        _, columns = packing.keys_and_columns(of)
        text = packing.text_of(packing.joined(columns, [1] * size))
        packed.append((sum(1 << rank for rank in whose), LineOfMany.make(of[0], whose, text) if size > 1 else of[0]))
        at += size
    assert spread(packed) == spread(plain)


def test_whose_line_stands_for_all_may_change() -> None:
    line = LineOfMany.make("loss 2.31", (4, 7), "2.31\x1f2.5")
    seen = line.seen_from(7)
    assert (str(seen), seen.of(4), seen.of(7)) == ("loss 2.5", "loss 2.31", "loss 2.5")


def test_what_moves_the_cursor_is_not_packed() -> None:
    assert packing.is_packable("\x1b[31mloss\x1b[0m 2.31\n")
    for text in ("50%\r51%\n", "one\n\x1b[Atwo\n", "a\bb\n", "\x1b]0;title\x07\n"):
        assert not packing.is_packable(text)


def test_lines_that_are_shown_with_other_numbers_than_were_packed_are_none() -> None:
    """As when colours stand between digits: who adds them opens them instead."""
    assert lines_of_many((0, 1), "1\x1f2", ["a \x1b[31m7\x1b[0m"]) is None
    assert lines_of_many((0, 1), "1\x1f2", None) is None
    assert lines_of_many((0, 1), "1\x1f2\n1", ["a 1"]) is None
