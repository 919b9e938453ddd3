import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.spreads import Folded, spread
from monarch_nb.lines.templates import key_of


def _ranks(folded: Folded) -> str:
    return format_ranks(rank for rank in range(folded.ranks.bit_length()) if folded.ranks >> rank & 1)


def _spread(*texts: str) -> list[str]:
    return [
        f"[{_ranks(folded)}]{'!' if folded.is_apart else ''} {folded.text}"
        for folded in spread((1 << rank, text) for rank, text in enumerate(texts))
    ]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["loss 2.31", "loss 2.31"], ["[0-1] loss 2.31"]),
        (["loss 2.31", "loss 2.4"], ["[0-1] loss 2.31–2.4"]),
        (["tps: 10,988 mfu 33.9%", "tps: 9,012 mfu 30.1%"], ["[0-1] tps: 9,012–10,988 mfu 30.1–33.9%"]),
        (["x -1", "x -3"], ["[0-1] x -3–-1"]),
        (["x 1.0", "x 1.00"], ["[0-1] x 1.0"]),
        (["rank 0", "rank 1", "rank 2"], ["[0-2] rank 0-2"]),
        (["cuda:0 on", "cuda:1 on", "cuda:0 on"], ["[0-2] cuda:0-1 on"]),
        (["10:40:04 up", "10:40:05 up"], ["[0-1] \x1b[2m10:40:04\x1b[22m up"]),
        (["10:40:04 up", "12:10:05 up"], ["[0-1] 10:40:04–12:10:05 up"]),
        (["10:40:04 up"] * 9 + ["2026-11-26 up"], ["[0-9] \x1b[2m10:40:04\x1b[22m up"]),
        (["elapsed 0:01:10", "elapsed 1:59:59"], ["[0-1] elapsed 0:01:10–1:59:59"]),
        (["[00:50<01:00, x]", "[00:51<01:01, x]"], ["[0-1] [\x1b[2m00:50\x1b[22m<\x1b[2m01:00\x1b[22m, x]"]),
        (["in 1.20 s", "in 1.25 s"], ["[0-1] in \x1b[2m1.20\x1b[22m s"]),
        (["in 1.2 s", "in 9.9 s"], ["[0-1] in 1.2–9.9 s"]),
        (["at 0x7f, pid 12", "at 0xa1b2, pid 13"], ["[0-1] at 0x…, pid …"]),
        (["\x1b[31mloss 2\x1b[0m", "\x1b[31mloss 3\x1b[0m"], ["[0-1] \x1b[31mloss 2–3\x1b[0m"]),
        (["loss 1", "loss nan", "loss 2"], ["[0,2] loss 1–2", "[1]! loss nan"]),
        (["loss nan", "loss nan", "loss 2"], ["[0-1] loss nan", "[2]! loss 2"]),
        (["a 1 b inf", "a 2 b inf"], ["[0-1] a 1–2 b inf"]),
    ],
)
def test_alike_lines_become_one(texts: list[str], shown: list[str]) -> None:
    assert _spread(*texts) == shown


def test_a_rank_far_outside_has_a_row_of_its_own() -> None:
    others = [f"tps: {9_000 + 10 * rank:,}" for rank in range(9)]
    assert _spread(*others, "tps: 12") == ["[0-8] tps: 9,000–9,080", "[9]! tps: 12"]
    assert _spread(*others, "tps: 9,280") == ["[0-8] tps: 9,000–9,080", "[9]! tps: 9,280"], "over twice as far, and 2 %"
    assert _spread(*others, "tps: 9,250") == ["[0-9] tps: 9,000–9,250"], "over twice as far, under 2 %"
    assert _spread(*["x 100"] * 8, "x 102") == ["[0-8] x 100–102"], "under 2 %"
    assert _spread(*["x 100"] * 8, "x 103") == ["[0-7] x 100", "[8]! x 103"]
    assert _spread(*["x 100"] * 7, "x 900") == ["[0-7] x 100–900"], "of 7 others nobody knows"


def test_a_straggler_does_not_hide_in_a_time() -> None:
    assert _spread(*["elapsed 0:01:10"] * 15, "elapsed 1:59:59") == ["[0-14] elapsed 0:01:10", "[15]! elapsed 1:59:59"]
    assert _spread(*["00:59:10 eta"] * 15, "12:00:00 eta") == ["[0-14] 00:59:10 eta", "[15]! 12:00:00 eta"]
    clocks = [f"10:40:{rank:02} up" for rank in range(16)]
    assert _spread(*clocks, "10:41:10 up") == ["[0-16] 10:40:00–10:41:10 up"]


def test_many_far_outside_are_no_exception() -> None:
    assert _spread(*["x 1"] * 14, "x 900", "x 901") == ["[0-13] x 1", "[14]! x 900", "[15]! x 901"]
    assert _spread(*["x 1"] * 14, *["x 900"] * 3) == ["[0-16] x 1–900"]


def test_ranks_apart_that_wrote_the_same_are_one_row() -> None:
    texts = ["loss 1.5"] * 30 + ["loss nan"] * 2
    assert _spread(*texts) == ["[0-29] loss 1.5", "[30-31]! loss nan"]


def test_ranks_themselves_are_never_outside() -> None:
    assert _spread(*(f"rank {rank}: ready" for rank in range(128))) == ["[0-127] rank 0-127: ready"]
    assert _spread(*(f"shard {rank} of 128" for rank in range(128))) == ["[0-127] shard 0-127 of 128"]


def test_a_thousand_ranks_are_one_row() -> None:
    shown = _spread(*(f"step: 5 loss: {2 + rank / 1e5:.4f} tps: {9_000 + rank}" for rank in range(1_024)))
    assert shown == ["[0-1023] step: 5 loss: 2.0000–2.0102 tps: 9000–10023"]


_NUMBERS = st.one_of(st.integers(-999, 9_999).map(str), st.floats(-1e6, 1e6).map(lambda x: f"{x:.3f}"), st.just("nan"))


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS), min_size=1, max_size=40))
def test_every_rank_is_in_one_row_whose_ranges_hold_its_numbers(values: list[tuple[str, str]]) -> None:
    texts = [f"a= {one} b= {other} end" for one, other in values]
    assume(len({key_of(text, "numbers") for text in texts}) == 1)
    rows = spread((1 << rank, text) for rank, text in enumerate(texts))
    assert sum(row.ranks for row in rows) == (1 << len(texts)) - 1, "each rank once"
    for row in rows:
        for rank, (one, other) in enumerate(values):
            if row.ranks >> rank & 1:
                found = re.fullmatch(r"a= (.*) b= (.*) end", row.text)
                assert found is not None
                assert _holds(found[1], one)
                assert _holds(found[2], other)
    again = spread((1 << rank, text) for rank, text in reversed(list(enumerate(texts))))
    assert [(row.ranks, row.is_apart) for row in again] == [(row.ranks, row.is_apart) for row in rows]


def _holds(shown: str, value: str) -> bool:
    if shown == value:
        return True
    if re.fullmatch(r"[\d,-]+", shown) and not shown.startswith("-"):
        return float(value) in {n for part in shown.split(",") for n in _numbers(part)}
    least, _, greatest = shown.partition("–")
    return float(least) <= float(value) <= float(greatest or least)


def _numbers(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
