import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.lines.spreads import Apart, Folded, spread
from monarch_nb.lines.templates import key_of


def _ranks(folded: Folded | Apart) -> str:
    return format_ranks(rank for rank in range(folded.ranks.bit_length()) if folded.ranks >> rank & 1)


def _spread(*texts: str) -> list[str]:
    folded = spread((1 << rank, text) for rank, text in enumerate(texts))
    return [f"[{_ranks(folded)}] {folded.text}", *(f"[{_ranks(each)}]! {each.text}" for each in folded.apart)]


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
        (["loss 1", "loss nan", "loss 2"], ["[0-2] loss 1–2", "[1]! loss: nan"]),
        (["loss nan", "loss nan", "loss 2"], ["[0-2] loss nan", "[2]! loss: 2"]),
        (["a 1 b inf", "a 2 b inf"], ["[0-1] a 1–2 b inf"]),
    ],
)
def test_alike_lines_become_one(texts: list[str], shown: list[str]) -> None:
    assert _spread(*texts) == shown


def test_a_number_far_from_the_others_stands_behind_the_line() -> None:
    others = [f"tps: {9_000 + 10 * rank:,}" for rank in range(9)]
    assert _spread(*others, "tps: 12") == ["[0-9] tps: 9,000–9,080", "[9]! tps: 12"]
    assert _spread(*others, "tps: 9,450") == ["[0-9] tps: 9,000–9,080", "[9]! tps: 9,450"], "4.6 times as far"
    assert _spread(*others, "tps: 9,440") == ["[0-9] tps: 9,000–9,440"]
    assert _spread(*["x 100"] * 8, "x 102") == ["[0-8] x 100–102"], "under 2 %"
    assert _spread(*["x 100"] * 8, "x 103") == ["[0-8] x 100", "[8]! x: 103"]
    assert _spread(*["0.1 s"] * 8, "0.2 s") == ["[0-8] 0.1–0.2 s"], "as if it were rounded"


def test_the_fewer_ranks_the_further_is_far_and_many_far_outside_are_no_exception() -> None:
    assert _spread("x 100", "x 101", "x 102", "x 360") == ["[0-3] x 100–102", "[3]! x: 360"]
    assert _spread("x 100", "x 101", "x 102", "x 350") == ["[0-3] x 100–350"]
    assert _spread("x 100", "x 101", "x 900") == ["[0-2] x 100–900"], "of two others nobody knows"
    assert _spread(*["x 1"] * 14, "x 900", "x 901") == ["[0-15] x 1", "[14-15]! x: 900–901"]
    assert _spread(*["x 1"] * 14, "x 900", "x -901") == ["[0-15] x 1", "[14]! x: 900", "[15]! x: -901"]
    assert _spread(*["x 1"] * 14, *["x 900"] * 3) == ["[0-16] x 1–900"]


def test_a_straggler_does_not_hide_in_a_time() -> None:
    assert _spread(*["elapsed 0:01:10"] * 15, "elapsed 1:59:59") == ["[0-15] elapsed 0:01:10", "[15]! elapsed 1:59:59"]
    assert _spread(*["00:59:10 eta"] * 15, "12:00:00 eta") == ["[0-15] 00:59:10 eta", "[15]! 12:00:00"]
    clocks = [f"10:40:{rank:02} up" for rank in range(16)]
    assert _spread(*clocks, "10:41:10 up") == ["[0-16] 10:40:00–10:41:10 up"]


def test_what_is_apart_has_its_name_and_its_unit() -> None:
    lines = [
        f"step: 5  train loss: {2 + rank / 100:.2f}  memory: 1.2{rank}GiB(5.{rank}%) in {rank} ms" for rank in range(9)
    ]
    odd = "step: 5  train loss: nan  memory: 79.00GiB(95.1%) in 3 ms"
    assert _spread(*lines, odd) == [
        "[0-9] step: 5  train loss: 2.00–2.08  memory: 1.20–1.28GiB(5.0–5.8%) in 0–8 ms",
        "[9]! train_loss: nan, memory: 79.00GiB, memory: 95.1%",
    ]
    assert _spread("\x1b[32mloss: \x1b[0m1 x", "\x1b[32mloss: \x1b[0mnan x")[1] == "[1]! loss: nan"
    assert _spread(*["found 3 of 9 files"] * 9, "found 3 of 900 files")[1] == "[9]! 3 of 900", (
        "no name: the words before"
    )


def test_what_is_apart_is_coloured_behind_the_line() -> None:
    folded = spread([(0b1, "loss 1"), (0b10, "loss 2"), (0b100, "loss nan")])
    assert folded.marked == "loss 1–2  \x1b[1;31m[2]! loss: nan\x1b[0m"
    far = spread((1 << rank, f"tps: {12 if rank == 9 else 9_000 + rank}") for rank in range(10))
    assert far.marked == "tps: 9000–9008  \x1b[1;93m[9]! tps: 12\x1b[0m", "another colour than nan"


def test_ranks_apart_that_wrote_the_same_are_named_together() -> None:
    texts = ["loss 1.5"] * 30 + ["loss nan"] * 2
    assert _spread(*texts) == ["[0-31] loss 1.5", "[30-31]! loss: nan"]
    odd = _spread(*(f"loss {'nan' if rank % 2 else rank}" for rank in range(200)))[1]
    assert odd == "[" + ",".join(map(str, range(1, 200, 2))) + "]! loss: nan"
    [mark] = spread((1 << rank, f"loss {'nan' if rank % 2 else rank}") for rank in range(200)).marked.split("  ")[1:]
    assert mark.startswith("\x1b[1;31m[1,3,5,"), "the first of many ranks"
    assert mark.endswith(",… 100 ranks]! loss: nan\x1b[0m")


def test_ranks_themselves_are_never_outside_and_a_thousand_are_one_row() -> None:
    assert _spread(*(f"rank {rank}: ready" for rank in range(128))) == ["[0-127] rank 0-127: ready"]
    assert _spread("rank 0 of 4", "rank 1 of 4", "rank 3 of 4") == ["[0-2] rank 0-1,3 of 4"]
    lines = [(1 << rank, f"shard {rank} of {rank + 2}") for rank in (*range(9), 5_000)]
    assert spread(lines).text == "shard 0–5000 of 2–10", "numbers that happen to be ranks are a range as all others"
    shown = _spread(*(f"step: 5 loss: {2 + rank / 1e5:.4f} tps: {9_000 + rank}" for rank in range(1_024)))
    assert shown == ["[0-1023] step: 5 loss: 2.0000–2.0102 tps: 9000–10023"]


_NUMBERS = st.one_of(st.integers(-999, 9_999).map(str), st.floats(-1e6, 1e6).map(lambda x: f"{x:.3f}"), st.just("nan"))


@given(st.lists(st.tuples(_NUMBERS, _NUMBERS), min_size=1, max_size=40))
def test_every_rank_is_in_one_row_whose_ranges_hold_its_numbers(values: list[tuple[str, str]]) -> None:
    texts = [f"a= {one} b= {other} end" for one, other in values]
    assume(len({key_of(text, "numbers") for text in texts}) == 1)
    folded = spread((1 << rank, text) for rank, text in enumerate(texts))
    assert folded.ranks == (1 << len(texts)) - 1
    found = re.fullmatch(r"a= (.*) b= (.*) end", folded.text)
    assert found is not None
    for rank, numbers in enumerate(values):
        apart = "".join(f", {each.text}" for each in folded.apart if each.ranks >> rank & 1)
        for name, shown, number in zip("ab", found.groups(), numbers, strict=True):
            told = re.search(rf", {name}: ([^ ,]*)", apart)
            assert _holds(told[1] if told else shown, number)
    again = spread((1 << rank, text) for rank, text in reversed(list(enumerate(texts))))
    assert again == folded, "whatever the order"


def _holds(shown: str, value: str) -> bool:
    if shown == value:
        return True
    least, _, greatest = shown.partition("–")
    return float(least) <= float(value) <= float(greatest or least)
