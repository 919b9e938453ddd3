"""Lines as logs hold them: which may share a row, and which a row stands for."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.lines import logged
from monarch_nb.lines.logged import MAX_FOLDED_BYTES, final_text, is_alike, is_shown_as, keys_of
from monarch_nb.lines.spreads import spread
from monarch_nb.lines.templates import FoldBy, key_of

PIECES = [
    "loss: ",
    "7.80",
    "nan",
    "12:30:01",
    "2026-11-26 ",
    "step 5 ",
    "\x1b[36m",
    "é█ ",
    "rank 3",
    "0x1f",
    "\r",
    " ",
    "v1.2.3",
]
lines = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@given(st.lists(lines, min_size=2, max_size=8), st.sampled_from(["numbers", "times", "equal"]))
def test_lines_have_equal_keys_in_bytes_where_they_have_as_texts(texts: list[str], by: FoldBy) -> None:
    keys = keys_of([text.encode() for text in texts], by)
    for (one, key), (other, other_key) in combinations(zip(texts, keys, strict=True), 2):
        if by == "equal":
            assert (key == other_key) == (one == other)
        else:
            assert (key == other_key) == (key_of(final_text(one), by) == key_of(final_text(other), by))


@given(st.lists(lines, min_size=1, max_size=12))
def test_a_row_is_shown_for_the_lines_that_it_stands_for(texts: list[str]) -> None:
    alike = [final_text(text) for text in texts if is_alike(text, texts[0])]
    row = spread((1 << rank, text) for rank, text in enumerate(alike))
    for text in alike:
        assert is_shown_as(text, row.marked)


@pytest.mark.parametrize("line", ["step 6: loss 2.32", "step 5: loss 2.32 and more", "a step 5: loss 2.32", ""])
def test_other_lines_are_not_what_a_row_stands_for(line: str) -> None:
    assert is_shown_as("step 5: loss 2.32", "step 5: loss 2.31–2.35")
    assert not is_shown_as(line, "step 5: loss 2.31–2.35")


def test_bytes_that_are_no_text_and_very_long_lines_have_keys() -> None:
    long = b"loss 1" * MAX_FOLDED_BYTES
    keys = keys_of([b"\xff loss 1", b"\xff loss 2", b"\xfe loss 1", long, long.replace(b"1", b"2")], "numbers")
    assert [keys[0] == key for key in keys] == [True, True, False, False, False]
    assert keys[3] != keys[4]


def test_what_is_remembered_of_lines_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(logged, "MAX_KNOWN_SHAPES", 10)
    logged._known_cuts["numbers"].clear()
    keys = keys_of([b"x" * count + b" 1" for count in range(100)] * 2, "numbers")
    assert len(logged._known_cuts["numbers"]) <= 10
    assert keys[:100] == keys[100:]
    assert len(set(keys)) == 100
