"""The view publishes seldom, in time, and only what there is to see."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.advice import read_in_terminal
from monarch_nb.client.connections.events import (
    QUEUE_NOTICE,
    Display,
    Elided,
    ElidedOfMany,
    Finished,
    Notice,
    Result,
    Text,
    wants_whole,
)
from monarch_nb.errors import RankFailure
from monarch_nb.notebook.output import displays
from monarch_nb.notebook.output.view import RunView


class _Cell:
    """A cell with a clock of its own, that notes what is published and when."""

    def __init__(self, ranks: int = 2, **options: Any) -> None:
        self.now_s = 100.0
        self.published: list[tuple[float, dict[str, str], bool]] = []
        self.displays: dict[int, dict[str, Any]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.view = RunView(range(ranks), self._publish, self._call_later, clock=lambda: self.now_s, **options)

    def _publish(
        self, bundle: dict[str, str], update: bool, number: int = 0, metadata: dict[str, Any] | None = None
    ) -> None:
        self.published.append((self.now_s, bundle, update))
        self.displays[number] = bundle

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (self.now_s + delay_s, self._count, callback))

    def pass_time(self, duration_s: float) -> None:
        until_s = self.now_s + duration_s
        while self._timers and self._timers[0][0] <= until_s:
            self.now_s, _, callback = heapq.heappop(self._timers)
            callback()
        self.now_s = until_s

    def print(self, text: str, rank: int = 0) -> None:
        self.view.on_event(Text(rank, "stdout", text))

    def finish(self, ranks: int = 2, duration_s: float = 0.1, *, close: bool = False) -> None:
        for rank in range(ranks):
            self.view.on_event(Result(rank, "ok", duration_s))
        self.end(close=close)

    def end(self, *, close: bool = True) -> None:
        self.view.on_event(Finished())
        if close:
            self.view.close()

    def fail(self, rank: int = 0, kind: Any = "error", where: str = "") -> None:
        failure = RankFailure(rank, "h", kind, "KeyError", "'x'", "the traceback", where)
        self.view.on_event(Result(rank, "error", 0.1, failure=failure))

    @property
    def texts(self) -> list[str]:
        return [bundle["text/plain"] for _, bundle, _ in self.published]

    @property
    def html(self) -> str:
        return self.published[-1][1]["text/html"]


# ---- when ----


def test_a_silent_cell_publishes_nothing_and_a_short_one_once() -> None:
    cell = _Cell()
    cell.finish(close=True)
    cell.pass_time(100)
    assert cell.published == []
    cell = _Cell()
    for rank in range(2):
        cell.print("hello\n", rank)
        cell.pass_time(0.004)
    cell.finish(close=True)
    cell.pass_time(100)
    assert cell.texts == ["[0-1] hello"]
    assert [update for *_, update in cell.published] == [False]
    assert "0.1 s" not in cell.html


def test_the_first_output_comes_at_once_and_the_next_at_most_ten_times_a_second() -> None:
    cell = _Cell()
    for count in range(1000):
        cell.print(f"line {count}\n")
        cell.pass_time(0.001)
    assert cell.published[0][0] < 100.03
    assert [update for *_, update in cell.published] == [False] + [True] * (len(cell.published) - 1)
    times = [when for when, *_ in cell.published]
    assert all(later - earlier > 0.095 for earlier, later in pairwise(times))
    assert 9 <= len(times) <= 11
    cell.pass_time(0.2)
    assert "line 999" in cell.texts[-1]


def test_large_output_is_updated_less_often() -> None:
    cell = _Cell()
    for count in range(1000):
        cell.view.on_event(Display(0, "show", {"image/png": f"{count}" + "x" * 100_000}))
        cell.pass_time(0.01)
    assert 3 < len(cell.published) < 15


def test_without_streaming_everything_comes_at_the_end() -> None:
    cell = _Cell(stream=False)
    cell.print("a\n")
    cell.pass_time(10)
    assert cell.published == []
    cell.finish(close=True)
    assert cell.texts == ["[0] a"]
    silent = _Cell(stream=False)
    silent.pass_time(10)
    silent.finish(duration_s=10, close=True)
    assert silent.published == []


# ---- the line about the run ----


def test_a_long_cell_says_that_it_runs_and_how_long_it_took() -> None:
    cell = _Cell(ranks=8)
    cell.pass_time(1.9)
    assert cell.published == []
    cell.pass_time(0.2)
    assert cell.texts == ["● running on 8 ranks · 2 s"]
    cell.view.on_event(Result(0, "ok", 2.0))
    cell.pass_time(1.0)
    assert cell.texts[-1] == "● running on 8 ranks · 3 s · 1 finished"
    cell.finish(8, duration_s=31.25, close=True)
    assert cell.texts[-1] == "8 ranks · 31.2 s"
    before = len(cell.published)
    cell.pass_time(1000)
    assert len(cell.published) == before


def test_a_quiet_run_is_updated_less_and_less_often() -> None:
    cell = _Cell(ranks=1)
    cell.print("a\n")
    cell.pass_time(3600)
    assert len(cell.published) < 100
    assert "running on 1 rank · 60 min" in cell.html


def test_the_traceback_of_a_failed_rank_shows_while_others_run() -> None:
    cell = _Cell()
    cell.fail(0, where="train.py:41")
    cell.pass_time(3)
    assert cell.texts[-1] == "rank 0: KeyError: 'x' · train.py:41\nthe traceback"
    assert "running on 2 ranks · 3 s · 1 failed" in cell.html
    cell.fail(1, "interrupted")
    cell.end()
    assert cell.texts[-1] == "2 ranks · 0.10 s · 1 failed · 1 interrupted", "the cell raises it"


def test_a_cell_that_fails_at_once_leaves_it_to_the_exception() -> None:
    cell = _Cell()
    cell.fail()
    cell.pass_time(0.5)
    cell.end()
    assert cell.published == []


def test_a_cell_whose_turn_has_not_come_is_queued() -> None:
    queued, turn = Notice("waits for: run 15, cell [22]", QUEUE_NOTICE), Notice("", QUEUE_NOTICE)
    cell = _Cell(ranks=8)
    cell.view.on_event(queued)
    cell.pass_time(0.1)
    assert cell.texts == ["waits for: run 15, cell [22]"]
    cell.pass_time(6.0)
    assert "queued · 6 s" in cell.html
    assert "running" not in cell.html
    cell.view.on_event(turn)
    cell.pass_time(4.1)
    assert cell.texts[-1] == "● running on 8 ranks · 4 s", "since it runs"
    cell = _Cell(ranks=8)
    cell.view.on_event(queued)
    cell.print("a\n")
    cell.pass_time(3)
    assert "running on 8 ranks · 3 s" in cell.html, "although other ranks wait"
    cell.view.on_event(queued)  # another node
    cell.pass_time(1)
    assert "running on 8 ranks" in cell.html


def test_a_dropped_cell_took_no_time() -> None:
    cell = _Cell(show_failures=True)
    cell.view.keep_open()
    cell.view.on_event(Notice("waits for: run 15", QUEUE_NOTICE))
    cell.pass_time(5)
    for rank in range(2):
        failure = RankFailure(rank, "h", "cancelled", "Cancelled", "dropped before it began on this rank")
        cell.view.on_event(Result(rank, "cancelled", 0.0, failure=failure))
    cell.view.on_event(Notice("", QUEUE_NOTICE))
    cell.view.on_event(Finished())
    cell.pass_time(1)
    assert "dropped before it began" in cell.texts[-1]
    assert "2 ranks · 2 cancelled" in cell.html


def test_a_cell_whose_turn_never_came_took_no_time() -> None:
    cell = _Cell()
    cell.view.on_event(Notice("waits for: run 15", QUEUE_NOTICE))
    cell.pass_time(5)
    assert "queued · 5 s" in cell.html
    cell.view.on_event(Notice("dev has ended", "time"))
    cell.view.on_event(Finished())
    cell.view.on_event(Notice("", "time"))  # the cell raises it
    cell.view.close()
    assert set(cell.displays[0].values()) == {""}


# ---- cells that do not wait ----


def test_a_cell_that_does_not_wait_shows_the_run_at_once_and_its_end() -> None:
    cell = _Cell(show_failures=True)
    cell.view.keep_open()
    assert [(bundle["text/plain"], update) for _, bundle, update in cell.published] == [("● running on 2 ranks", False)]
    cell.print("a\n")
    cell.pass_time(0.1)
    cell.fail()
    cell.view.on_event(Result(1, "ok", 0.41))
    cell.end(close=False)
    assert cell.texts[-1] == "[0] a\nrank 0: KeyError: 'x'\nthe traceback"
    assert "2 ranks · 0.41 s · 1 failed" in cell.html
    assert all(update for *_, update in cell.published[1:])


# ---- terminals ----


def test_a_terminal_gets_only_what_is_new() -> None:
    cell = _Cell(terminal=True)
    for step in range(3):
        for rank in range(2):
            cell.print(f"step {step}\nrank {rank}\n", rank)
        cell.pass_time(0.5)
    cell.print("only one rank\n", 1)
    cell.pass_time(5)
    assert "".join(text + "\n" for text in cell.texts).splitlines() == [
        *(line for step in range(3) for line in (f"[0-1] step {step}", "  [0] rank 0", "  [1] rank 1")),
        "  [1] only one rank",
    ]
    assert not any(update for *_, update in cell.published)
    cell.view.on_event(Elided(0, "stdout", 5, 5))
    cell.view.on_event(Result(0, "ok", 0.1, {"text/plain": "1"}))
    cell.view.on_event(Result(1, "ok", 0.1, {"text/plain": "1"}))
    cell.end()
    assert cell.texts[-1] == "      … 5 lines on rank 0 not shown; `%mesh logs -n 0` has them\nOut[0-1]: 1"
    assert all("text/html" not in bundle for _, bundle, _ in cell.published)


def test_of_many_ranks_that_are_counted_those_are_told_that_are_shown() -> None:
    for resumed in (False, True):
        cell = _Cell(ranks=4, shown=[0, 1], resumed=resumed)
        cell.view.on_event(ElidedOfMany((2, 3), "stdout", (5, 6), (50, 60)))
        cell.view.on_event(ElidedOfMany((0, 1, 3), "stdout", (7, 7, 9), (70, 70, 90)))
        cell.finish(4, close=True)
        assert cell.texts[-1].strip() == "… 14 lines on ranks 0-1 not shown; `%mesh logs -n 0` has them"


def test_a_terminal_gets_arranged_output_at_the_end_and_progress_bars_when_they_are_done() -> None:
    cell = _Cell(terminal=True, group="rank")
    for rank in (1, 0):
        cell.print(f"both\nown {rank}\n", rank)
    cell.pass_time(5)
    assert cell.published == []
    cell.finish(close=True)
    lines = [line.strip() for line in cell.texts[0].splitlines()]
    assert lines == ["[0] both", "[0] own 0", "[1] both", "[1] own 1"]
    cell = _Cell(terminal=True)
    cell.print("\r10%")
    cell.pass_time(5)
    assert cell.published == []
    cell.print("\r100%\n")
    cell.pass_time(5)
    assert cell.texts == ["  [0] 100%"]


def test_an_unfinished_line_is_shown_at_the_end() -> None:
    for terminal in (True, False):
        cell = _Cell(terminal=terminal)
        cell.print("no newline")
        cell.finish(close=True)
        assert cell.texts[-1].strip() == "[0] no newline"


# ---- followed from the middle ----


def test_ranks_that_are_apart_where_output_goes_on_are_shown_in_step() -> None:
    cell = _Cell(4, resumed=True)
    for rank in (1, 2):
        cell.print("step 4\n", rank)
    cell.pass_time(0.3)
    for rank in (0, 3, 1, 2):
        cell.print("step 5\n", rank)
    for number in range(6, 9):
        cell.pass_time(0.3)
        for rank in range(4):
            cell.print(f"step {number}\n", rank)
    cell.finish(4, close=True)
    assert cell.texts[-1].splitlines() == ["[1-2] step 4", *(f"[0-3] step {number}" for number in range(5, 9))]
    cell = _Cell(3, resumed=True)
    for rank, first in ((0, 7), (1, 5), (2, 6)):
        cell.print("".join(f"step {number}\n" for number in range(first, 9)), rank)
    cell.view.close()
    assert cell.texts == ["  [1] step 5\n[1-2] step 6\n[0-2] step 7\n[0-2] step 8"]


def test_what_was_held_shows_soon_though_a_rank_is_silent_and_notices_at_once() -> None:
    cell = _Cell(2, resumed=True)
    cell.view.keep_open()
    cell.print("only me\n", 0)
    cell.view.on_event(Notice("node1 does not answer", key="link"))
    cell.pass_time(0.4)
    assert "only me" not in cell.texts[-1]
    assert "node1 does not answer" in cell.texts[-1]
    cell.pass_time(0.5)
    assert "only me" in cell.texts[-1]
    cell.print("and me\n", 1)
    cell.pass_time(0.2)
    assert "and me" in cell.texts[-1]


# ---- displays of other cells ----


class _Run:
    def __init__(self, mesh: str, number: int) -> None:
        self.mesh, self.number = SimpleNamespace(id=mesh, flag="", reservation=SimpleNamespace(name="dev")), number


def _cells(*meshes: str, **options: Any) -> list[_Cell]:
    """Return cells that have run on these meshes, each with its run."""
    cells = []
    for number, mesh in enumerate(meshes, 1):
        cell = _Cell(**options)
        cell.run = _Run(mesh, number)  # type: ignore[attr-defined]  # which the view does not keep
        cell.view.shows(cell.run)  # type: ignore[attr-defined]
        cells.append(cell)
    return cells


def _chart(text: str, kind: Any = "show", rank: int = 0) -> Display:
    return Display(rank, kind, {"text/html": f"<b>{text}</b>", "text/plain": text}, display_id="chart")


def test_an_update_from_a_later_cell_reaches_its_display() -> None:
    first, other, second = _cells("mesh", "other", "mesh")
    first.view.on_event(_chart("old"))
    first.finish(close=True)
    other.view.on_event(_chart("of another mesh"))
    second.view.on_event(_chart("new", "update"))
    for cell in (first, other, second):
        cell.pass_time(1)
    assert "<b>new</b>" in first.html
    assert "another mesh" in other.html
    assert not second.published
    second.view.on_event(_chart("of rank 1", "update", rank=1))
    second.pass_time(1)
    assert "<b>of rank 1</b>" in second.html, "which had none"


def test_an_update_of_a_display_that_is_gone_shows_in_the_cell_that_makes_it() -> None:
    first, second, third = _cells("again", "again", "again", cell="the first")
    first.view.on_event(_chart("old"))
    first.finish(close=True)
    displays.forget("the first")
    second.view.on_event(_chart("new", "update"))
    second.pass_time(1)
    third.view.on_event(_chart("newer", "update"))
    for cell in (first, second, third):
        cell.pass_time(1)
    assert "old" in first.html
    assert "newer" in second.html
    assert not third.published


def test_of_cells_that_take_too_much_memory_the_oldest_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(displays, "_MAX_BYTES", 50_000)
    cells = _cells(*["large"] * 4)
    charts = [replace(_chart("x" * 10_000), display_id=str(number)) for number in range(4)]
    for cell, chart in zip(cells, charts, strict=True):
        cell.view.on_event(chart)
        cell.finish(close=True)
    shown_in = [displays.view_of("large", chart) for chart in charts]
    assert shown_in == [None, *(cell.view for cell in cells[1:])]


def test_a_cell_may_begin_while_another_looks_for_a_display() -> None:
    class View(SimpleNamespace):
        def shows_display(self, *_: object) -> bool:
            displays.forget("of two")
            return False

    for cell in ("of one", "of two"):
        displays.keep(View(cell=cell, size_bytes=0))
    assert displays.view_of("mesh", _chart("new", "update")) is None
    displays.forget("of one")


# ---- what the front end shows by itself ----


def test_a_large_chart_is_sent_once_whatever_is_printed_and_again_when_it_changes() -> None:
    cell = _Cell(1)
    chart = {"text/html": "x" * 4_800_000, "text/plain": "chart"}
    cell.view.on_event(Display(0, "show", chart, display_id="chart"))
    for count in range(100):
        cell.print(f"line {count}\n")
        cell.view.on_event(Display(0, "update", dict(chart), display_id="chart"))
        cell.pass_time(0.1)
    sent = [bundle["text/html"] for _, bundle, _ in cell.published if len(bundle["text/html"]) > 4_000_000]
    assert len(sent) == 1
    assert "line 99" in cell.displays[2]["text/html"]
    cell.view.on_event(Display(0, "update", {"text/html": "y" * 4_800_000}, display_id="chart"))
    cell.pass_time(5)
    assert cell.displays[1]["text/html"][0] == "y"


def test_a_large_chart_that_changes_all_the_time_is_sent_seldom_be_it_text_or_json() -> None:
    points = "x" * 4_800_000
    for mime_type, content in (("text/html", points), ("application/vnd.plotly.v1+json", {"data": [points]})):
        cell = _Cell(1)
        for count in range(30):
            kind: Any = "update" if count else "show"
            cell.view.on_event(Display(0, kind, {mime_type: content, "text/plain": str(count)}, display_id="chart"))
            cell.pass_time(0.1)
        sent = [when for when, bundle, _ in cell.published if len(str(bundle.get(mime_type))) > 4_000_000]
        assert len(sent) == 2, mime_type
        assert all(later - earlier > 2.3 for earlier, later in pairwise(sent))


def test_a_cell_that_has_returned_gets_no_more_displays() -> None:
    cell = _Cell(1)
    json = {"application/json": {"a": 1}, "text/plain": "object"}
    cell.view.on_event(Display(0, "show", json))
    cell.view.on_event(Result(0, "ok", 0.1, may_print_later=True))
    cell.end()
    assert list(cell.displays) == [0, 1, 2]
    cell.print("later\n")
    cell.view.on_event(Display(0, "show", {"application/json": {"b": 2}, "text/plain": "other"}))
    cell.pass_time(1)
    assert list(cell.displays) == [0, 1, 2]
    assert cell.displays[1] == json
    assert cell.displays[2]["text/plain"] == "[0] later\n[0] other"


def test_what_is_cleared_leaves_empty_displays() -> None:
    cell = _Cell(1)
    cell.view.on_event(Display(0, "show", {"application/json": {"a": 1}}))
    cell.print("below\n")
    cell.pass_time(1)
    cell.view.on_event(Display(0, "clear"))
    cell.end()
    assert all(set(bundle.values()) == {""} for bundle in cell.displays.values())


def test_in_a_terminal_the_hint_is_what_is_typed_there() -> None:
    [cell] = _cells("mesh", ranks=1, terminal=True)
    cell.view.on_event(Elided(0, "stdout", 5_000, 1))
    with read_in_terminal(["run"]):
        cell.finish(1, close=True)
    assert "`monarch-nb logs dev --run 1 -n 0` has them" in cell.texts[0]


def test_in_a_file_no_line_is_left_out() -> None:
    for whole, count in ((True, 10_000), (False, 1_001)):
        cell = _Cell(1, terminal=True, whole=whole)
        assert wants_whole(cell.view.on_event) == whole
        cell.print("".join(f"line {number} {'x' * (number % 7)}\n" for number in range(10_000)))
        cell.finish(1, close=True)
        assert len(cell.texts[0].splitlines()) == count


def test_a_terminal_or_a_file_has_lines_whole() -> None:
    cell = _Cell(1, terminal=True)
    cell.print("x" * 300_000 + "\n")
    cell.finish(1, close=True)
    assert cell.texts[0] == "x" * 300_000


def test_while_a_cell_goes_on_it_is_said_who_can_do_what_is_advised() -> None:
    cell = _Cell()
    advice = "dev will be released at 14:00: %mesh extend 1h adds to it"
    cell.view.on_event(Notice(advice, "time"))
    cell.pass_time(0.1)
    ways = "the panel, another notebook or a terminal (monarch-nb extend 1h)"
    assert cell.texts[-1].splitlines() == [advice, f"This kernel is busy until ■; meanwhile {ways} can do that."]
    cell.view.keep_open()
    assert cell.texts[-1].splitlines()[0] == advice
    assert "busy" not in cell.texts[-1], "the cell has returned"
