"""Each rank's own line of a row in a cell's output is found in the logs."""

from __future__ import annotations

from typing import Any

from monarch_nb.panel.logs.reading import REACH_LINES, Reader, own_lines, parse_places
from unit.panel.logs.test_log import STEPS, FakeLines

ROW = "step: 5  loss: 7.800–7.815  01:00:07"


def reader(texts: dict[int, list[str]]) -> tuple[Reader, FakeLines]:
    lines = FakeLines({1: texts})
    return Reader(lines), lines  # type: ignore[arg-type]


def texts_of(told: list[dict[str, Any]]) -> list[str]:
    return [each.get("text", each.get("absent")) for each in told]


async def test_lines_that_are_some_lines_off() -> None:
    for off in (1, REACH_LINES):
        texts = {**STEPS, 0: ["progress"] * off + STEPS[0], 3: ["progress"] * off + STEPS[3]}
        told = await own_lines(reader(texts)[0], 1, dict.fromkeys(range(16), 5), ROW)
        assert texts_of(told) == [STEPS[rank][5] for rank in range(16)]


async def test_a_rank_that_has_no_such_line_says_so() -> None:
    texts = {**STEPS, 3: STEPS[3][:5] + ["progress"] * 500, 4: ["progress"] * (REACH_LINES + 1) + STEPS[4]}
    read, lines = reader(texts)
    lines.away = {"node6"}
    told = await own_lines(read, 1, dict.fromkeys(range(16), 5), ROW)
    assert told[3] == {"ranks": "3", "absent": "its log has no such line near here"}
    assert told[4] == {"ranks": "4", "absent": "its log has no such line near here"}
    assert told[6] == {"ranks": "6", "absent": "its node does not answer"}
    assert told[5]["text"] == STEPS[5][5]
    told = await own_lines(reader(STEPS)[0], 1, dict.fromkeys(range(16), 5), "epoch: 5  loss: 7.800–7.815")
    assert {each["absent"] for each in told} == {"its log has no such line near here"}


async def test_the_text_of_a_row_may_be_the_end_of_a_progress_bar() -> None:
    texts = {rank: ["start", f"\r{rank} % done\r{rank + 50} % done"] for rank in range(2)}
    told = await own_lines(reader(texts)[0], 1, {0: 1, 1: 1}, "50–51 % done")
    assert texts_of(told) == [texts[0][1], texts[1][1]]


def test_places_are_read_without_ranks_that_are_none_and_what_says_nothing_is_refused() -> None:
    assert parse_places("5:0-999999,3;7:1", 3) == {0: 5, 1: 7, 2: 5}
    for text in ("", "5", "5:", "a:0", "5:0-", "5:-1", "5:0;", "5:0;;6:1", "5:0," * 2_000 + "5:0"):
        assert parse_places(text, 16) is None, text
