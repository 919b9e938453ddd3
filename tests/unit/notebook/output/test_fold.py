"""Output folds by rank set and loses nothing."""

import random
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.client.connections.events import (
    Display,
    Elided,
    ElidedOfMany,
    Event,
    Finished,
    Notice,
    Restart,
    Result,
    Text,
    TextOfMany,
)
from monarch_nb.errors import RankFailure
from monarch_nb.lines.templates import FOLDS_BY, FoldBy, key_of
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.placing import Places
from monarch_nb.notebook.output.rows import DisplayRow, ElidedRow, NoteRow, Row, TextRow, members

_LINES = st.sampled_from(["", "}", "step 1", "step 2", "loss 2.31", "loss 2.35", "a warning", "done", "x" * 2500 + "1"])
_OUTPUT = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), _LINES), max_size=12)
_OUTPUTS = st.lists(_OUTPUT, min_size=1, max_size=4)


def _fold(ranks: int, *events: Event) -> Fold:
    fold = Fold(range(ranks))
    for event in events:
        fold.add(event)
    return fold


def _shown(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Return e.g. ("0,1", "loss 2.31")."""
    shown = []
    for row in rows:
        text = row.text if isinstance(row, TextRow | NoteRow) else type(row).__name__
        shown.append((",".join(map(str, members(row.ranks))), text))
    return shown


def _of_rank(rows: Iterable[Row], rank: int) -> list[tuple[str, str]]:
    return [(row.stream, row.text) for row in rows if isinstance(row, TextRow) and row.ranks >> rank & 1]


def _as_shown(output: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (stream, f"{line[:2000]}… ({len(line):,} characters)" if len(line) > 2000 else line) for stream, line in output
    ]


def _interleaved(outputs: Sequence[Sequence[Any]], order: random.Random) -> Iterable[tuple[int, Any]]:
    waiting = {rank: deque(output) for rank, output in enumerate(outputs) if output}
    while waiting:
        rank = order.choice(list(waiting))
        yield rank, waiting[rank].popleft()
        if not waiting[rank]:
            del waiting[rank]


# ---- what must hold for any output ----


@settings(deadline=None)
@given(_OUTPUTS, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 0.3, 2.0]))
def test_every_rank_keeps_all_its_lines_in_order(
    outputs: list[list[tuple[str, str]]], order: random.Random, step_s: float
) -> None:
    fold, now_s = Fold(range(len(outputs))), 0.0
    for rank, (stream, line) in _interleaved(outputs, order):
        now_s += step_s * order.random()
        fold.add(Text(rank, stream, line + "\n"), now_s)
    for rank, output in enumerate(outputs):
        assert _of_rank(fold.rows(), rank) == _as_shown(output)


@settings(deadline=None)
@given(_OUTPUT, st.integers(2, 5), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 2.0]))
def test_equal_output_folds_to_one_set(
    output: list[tuple[str, str]], ranks: int, order: random.Random, step_s: float
) -> None:
    fold, now_s = Fold(range(ranks)), 0.0
    for rank, (stream, line) in _interleaved([output] * ranks, order):
        now_s += step_s
        fold.add(Text(rank, stream, line + "\n"), now_s)
    rows = fold.rows()
    assert _of_rank(rows, 0) == _as_shown(output)
    assert {members(row.ranks) for row in rows} <= {tuple(range(ranks))}


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 6), st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(ranks: int, steps: int, order: random.Random) -> None:
    def output(rank: int) -> list[str]:
        return [
            line for step in range(steps) for line in (f"step {step}", f"rank {rank} loss {order_free(rank, step)}")
        ]

    def order_free(rank: int, step: int) -> str:
        return f"2.{rank * 31 + step}"

    outputs = [output(rank) for rank in range(ranks)]
    by_rank = _fold(ranks, *(Text(rank, "stdout", f"{line}\n") for rank, lines in enumerate(outputs) for line in lines))
    mixed = _fold(ranks, *(Text(rank, "stdout", f"{line}\n") for rank, line in _interleaved(outputs, order)))
    assert _shown(by_rank.rows()) == _shown(mixed.rows())
    everyone = ",".join(map(str, range(ranks)))
    expected = []
    for step in range(steps):
        expected += [(everyone, f"step {step}")]
        expected += [(str(rank), f"rank {rank} loss {order_free(rank, step)}") for rank in range(ranks)]
    assert _shown(mixed.rows()) == expected


@settings(deadline=None)
@given(_OUTPUTS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_taking_rows_loses_nothing(outputs: list[list[tuple[str, str]]], order: random.Random, every: int) -> None:
    fold, taken = Fold(range(len(outputs))), []
    for count, (rank, (stream, line)) in enumerate(_interleaved(outputs, order)):
        fold.add(Text(rank, stream, line + "\n"), count * 0.2)
        if count % every == 0:
            taken += fold.take(count * 0.2)
    fold.add(Finished())
    taken += fold.take()
    for rank, output in enumerate(outputs):
        assert _of_rank(taken, rank) == _as_shown(output)
    assert fold.rows() == []


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 4), min_size=1), _LINES, st.sampled_from(["stdout", "stderr"])), max_size=25
    ),
    st.sampled_from(FOLDS_BY),
    st.randoms(use_true_random=False),
)
def test_rows_open_to_every_line_of_each_rank(
    steps: list[tuple[set[int], str, Any]], by: FoldBy, order: random.Random
) -> None:
    """Whether text of several ranks comes as one or one by one, wherever it is cut."""
    fold, wrote, now_s = Fold(range(5), by), {rank: list[tuple[str, str]]() for rank in range(5)}, 0.0
    for ranks, line, stream in steps:
        cut = order.randrange(len(line) + 2)
        for piece in filter(None, (f"{line}\n"[:cut], f"{line}\n"[cut:])):
            now_s += order.choice([0.0, 0.1, 0.3])
            if order.random() < 0.6:
                fold.add(TextOfMany(tuple(ranks), stream, piece), now_s)
            else:
                for rank in order.sample(sorted(ranks), len(ranks)):
                    fold.add(Text(rank, stream, piece), now_s)
        for rank in ranks:
            wrote[rank].append((stream, line))
    rows = [row for row in fold.rows() if isinstance(row, TextRow)]
    for rank, lines in wrote.items():
        assert [row.number_of(rank) for row in rows if row.ranks >> rank & 1] == [*range(len(lines))]
    for row in rows:
        opened = [wrote[rank][row.number_of(rank)] for rank in members(row.ranks)]
        assert {stream for stream, _ in opened} == {row.stream}
        assert len({key_of(line, by) for _, line in opened}) == 1, "no row mixes steps"
        assert row.is_folded or [*map(_as_shown, [opened[:1]])] == [[(row.stream, row.text)]]
        assert by != "off" or len(opened) == 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(_LINES, max_size=6)), max_size=20),
    st.sampled_from(FOLDS_BY),
    st.sampled_from([0.0, 0.1, 0.6]),
)
def test_lines_that_follow_others_go_where_lines_go_that_come_one_by_one(
    pieces: list[tuple[int, list[str]]], by: FoldBy, step_s: float
) -> None:
    """Whatever is added in a short loop would have gone to the same row the careful way."""
    quick, careful = Fold(range(4), by), Fold(range(4), by)
    careful._places.follow = lambda cursor, keys, at: []  # type: ignore[method-assign]
    for fold in (quick, careful):
        for count, (rank, lines) in enumerate(pieces):
            fold.add(Text(rank, "stdout", "".join(f"{line}\n" for line in lines)), count * step_s)
    shown = [
        [(row.position, row.ranks, row.text, row.ranks_by_number()) for row in fold.rows() if isinstance(row, TextRow)]
        for fold in (quick, careful)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("by", ["equal", "numbers"])
def test_text_of_many_ranks_is_added_once(by: FoldBy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of one, also after some ranks have written something by themselves."""
    found, find, follow = [0], Places.find, Places.follow

    def counting(self: Places, *about: Any) -> Row | None:
        found[0] += 1
        return find(self, *about)

    def counting_all(self: Places, *about: Any) -> list[TextRow]:
        followed = follow(self, *about)
        found[0] += len(followed)
        return followed

    monkeypatch.setattr(Places, "find", counting)
    monkeypatch.setattr(Places, "follow", counting_all)
    fold, everyone = Fold(range(1_024), by), tuple(range(1_024))
    fold.add(TextOfMany(everyone, "stdout", "".join(f"line {n}\n" for n in range(100))))
    assert found == [100]
    for rank in range(10, 20):
        fold.add(Text(rank, "stdout", f"loss {rank}\n"))
    fold.add(TextOfMany(everyone[:500], "stdout", "some\nmore\n"))
    fold.add(TextOfMany(everyone[500:], "stdout", "some\nmore\n"))
    for n in range(10):
        fold.add(TextOfMany(everyone, "stdout", f"again {n}\n"))
    found[0] = 0
    fold.add(TextOfMany(everyone[:10] + everyone[20:], "stdout", "half a "))
    fold.add(TextOfMany(everyone[:10] + everyone[20:], "stdout", "line\n"))
    assert found[0] <= 2, "those that were apart have come together again"


# ---- examples ----


def test_numbers_stay_intact() -> None:
    fold = _fold(3, *(Text(rank, "stdout", f"{rank}\nloss {value}\n") for rank, value in enumerate([1.5, 1.5, 2.5])))
    assert _shown(fold.rows()) == [("0", "0"), ("1", "1"), ("2", "2"), ("0,1", "loss 1.5"), ("2", "loss 2.5")]


@pytest.mark.parametrize("together", [True, False])
def test_extra_lines_of_one_rank_do_not_unfold_the_others(together: bool) -> None:
    text = "one\nonly here\nand more\ntwo\nthree\n"
    fold = _fold(3, *(Text(rank, "stdout", "one\ntwo\nthree\n") for rank in (0, 1)))
    for piece in [text] if together else text:
        fold.add(Text(2, "stdout", piece))
    assert _shown(fold.rows()) == [
        ("0,1,2", "one"),
        ("2", "only here"),
        ("2", "and more"),
        ("0,1,2", "two"),
        ("0,1,2", "three"),
    ]


def test_extra_lines_before_a_line_that_differs_in_digits() -> None:
    fold = _fold(2, Text(0, "stdout", "loss 1\nloss 2\n"), Text(1, "stdout", "only here\nloss 3\nloss 4\n"))
    assert _shown(fold.rows()) == [
        ("1", "only here"),
        ("0", "loss 1"),
        ("1", "loss 3"),
        ("0", "loss 2"),
        ("1", "loss 4"),
    ]


def test_wholly_different_lines_stand_side_by_side() -> None:
    fold = _fold(2, Text(1, "stdout", "worker\nworks\n"), Text(0, "stdout", "root\nrules\n"))
    assert _shown(fold.rows()) == [("0", "root"), ("1", "worker"), ("0", "rules"), ("1", "works")]


def test_repeated_lines_stay_repeated() -> None:
    fold = _fold(2, Text(0, "stdout", "same\nsame\nsame\n"), Text(1, "stdout", "same\nsame\n"))
    assert _shown(fold.rows()) == [("0,1", "same"), ("0,1", "same"), ("0", "same")]


def test_a_late_line_stands_at_the_end() -> None:
    fold = Fold(range(3))
    for step in range(10):
        fold.add(Text(0, "stdout", f"epoch {step}\n"), now_s=float(step))
    fold.add(Text(2, "stdout", "rank 2 is done\n"), now_s=20.0)
    fold.add(Text(0, "stdout", "rank 0 is done\n"), now_s=20.01)
    fold.add(Text(1, "stdout", "rank 1 is done\n"), now_s=20.02)
    assert [ranks for ranks, _ in _shown(fold.rows())] == ["0"] * 10 + ["0", "1", "2"]
    assert _shown(fold.rows())[10][1] == "rank 0 is done"


def test_blank_lines_do_not_drag_a_rank_far_ahead() -> None:
    far = "".join(f"line {count} of many\n" for count in range(30))
    fold = _fold(2, Text(0, "stdout", far + "\n"), Text(1, "stdout", "\n" + far))
    assert ("0,1", "line 29 of many") in _shown(fold.rows())


def test_stdout_and_stderr_do_not_mix() -> None:
    fold = _fold(2, Text(0, "stdout", "x\n"), Text(1, "stderr", "x\n"))
    assert [(row.stream, members(row.ranks)) for row in fold.rows() if isinstance(row, TextRow)] == [
        ("stdout", (0,)),
        ("stderr", (1,)),
    ]


def test_long_lines_fold_only_when_all_of_them_is_equal() -> None:
    long = "x" * 3000
    fold = _fold(3, *(Text(rank, "stdout", long + end + "\n") for rank, end in enumerate("aab")))
    assert [members(row.ranks) for row in fold.rows()] == [(0, 1), (2,)]


def test_a_rank_that_was_not_announced() -> None:
    fold = _fold(1, Text(7, "stdout", "x\n"))
    assert _shown(fold.rows()) == [("7", "x")]
    assert members(fold.ranks) == (0, 7)


# ---- open lines ----


def test_progress_bars_are_live_and_fold() -> None:
    fold = _fold(3, *(Text(rank, "stderr", "10%\r20%\r30%") for rank in (0, 1)), Text(2, "stderr", "\r10%"))
    fold.add(Text(0, "stdout", "text\n"))
    assert [(members(row.ranks), row.text, row.live) for row in fold.rows() if isinstance(row, TextRow)] == [
        ((0,), "text", False),
        ((0, 1), "30%", True),
        ((2,), "10%", True),
    ]
    for rank in range(3):
        fold.add(Text(rank, "stderr", "\r100%\n"))
    assert _shown(fold.rows()) == [("0", "text"), ("0,1,2", "100%")]


def test_an_open_line_is_finished_by_the_result_and_by_the_end() -> None:
    fold = _fold(2, Text(0, "stdout", "a"), Text(1, "stdout", "a"), Result(0, "ok", 0.1))
    assert [row.live for row in fold.rows() if isinstance(row, TextRow)] == [False, True]
    fold.add(Finished())
    assert _shown(fold.rows()) == [("0,1", "a")]


def test_a_display_finishes_the_open_line_before_it() -> None:
    fold = _fold(1, Text(0, "stdout", "before"), Display(0, "show", {"text/plain": "x"}), Text(0, "stdout", "after"))
    assert _shown(fold.rows()) == [("0", "before"), ("0", "DisplayRow"), ("0", "after")]


def test_moving_up_takes_the_line_back() -> None:
    fold = _fold(2, *(Text(rank, "stderr", "bar1\n") for rank in (0, 1)))
    fold.add(Text(1, "stderr", "bar2\x1b[A\rBAR1"))
    assert _shown(fold.rows()) == [("0", "bar1"), ("1", "BAR1"), ("1", "bar2")]


# ---- displays ----


def _picture(name: str) -> dict[str, Any]:
    return {"image/png": name, "text/plain": "<Figure>"}


def _pictures(fold: Fold) -> list[tuple[tuple[int, ...], str]]:
    return [(members(row.ranks), row.data["image/png"]) for row in fold.rows() if isinstance(row, DisplayRow)]


def test_equal_displays_fold() -> None:
    fold = _fold(3, *(Display(rank, "show", _picture("ab"[rank == 1])) for rank in range(3)))
    assert _pictures(fold) == [((0, 2), "a"), ((1,), "b")]


def test_metadata_makes_a_difference() -> None:
    fold = _fold(2, *(Display(rank, "show", _picture("a"), {"width": rank}) for rank in range(2)))
    assert _pictures(fold) == [((0,), "a"), ((1,), "a")]


def test_updates_replace_in_place() -> None:
    fold = Fold(range(2))
    for rank in range(2):
        fold.add(Display(rank, "show", _picture("a"), display_id="id"))
        fold.add(Text(rank, "stdout", "after\n"))
    fold.add(Display(1, "update", _picture("b"), display_id="id"))
    assert _pictures(fold) == [((0,), "a"), ((1,), "b")]
    fold.add(Display(0, "update", _picture("b"), display_id="id"))
    fold.add(Display(0, "update", _picture("c"), display_id="unknown"))
    assert _shown(fold.rows()) == [("0,1", "DisplayRow"), ("0,1", "after")]
    assert _pictures(fold) == [((0, 1), "b")]


def test_clear_removes_what_the_rank_showed() -> None:
    fold = _fold(2, *(Text(rank, "stdout", "a\nopen") for rank in range(2)), Display(0, "clear"))
    assert _shown(fold.rows()) == [("1", "a"), ("1", "open")]


def test_clear_can_wait_for_the_next_output() -> None:
    fold = _fold(1, Display(0, "show", _picture("a")), Display(0, "clear", {"wait": True}))
    assert _pictures(fold) == [((0,), "a")]
    fold.add(Display(0, "show", _picture("b")))
    assert _pictures(fold) == [((0,), "b")]


def test_an_animation_stays_small() -> None:
    fold = Fold(range(2))
    for frame in range(500):
        for rank in range(2):
            fold.add(Display(rank, "clear", {"wait": True}))
            fold.add(Display(rank, "show", _picture(f"{frame}"), display_id="x"))
            fold.add(Display(rank, "update", _picture(f"{frame}+"), display_id="x"))
    assert _pictures(fold) == [((0, 1), "499+")]


def test_many_displays_are_named_but_not_kept() -> None:
    fold = _fold(1, *(Display(0, "show", _picture(str(count))) for count in range(50)))
    assert [name for _, name in _pictures(fold)] == [str(count) for count in (0, 1, 2, 3, *range(34, 50))]
    elided = [row for row in fold.rows() if isinstance(row, ElidedRow)]
    assert len(elided) == 30
    assert elided[0].text == "<Figure>"


def test_large_displays_are_not_kept() -> None:
    fold = _fold(1, *(Display(0, "show", _picture(str(count) * 3_000_000)) for count in range(5)))
    assert [name[0] for _, name in _pictures(fold)] == ["3", "4"]


# ---- results, failures, notices ----


def test_results_fold() -> None:
    values = {0: "1", 1: "2", 2: "1"}
    fold = _fold(4, *(Result(rank, "ok", 0.1, {"text/plain": value}) for rank, value in values.items()))
    fold.add(Result(3, "ok", 0.1))
    assert [(members(group.ranks), group.bundle["text/plain"]) for group in fold.results()] == [
        ((0, 2), "1"),
        ((1,), "2"),
    ]
    assert members(fold.ended) == (0, 1, 2, 3)


def test_failures_fold() -> None:
    failures = [RankFailure(rank, "host", "error", "KeyError", "'x'", "Traceback") for rank in range(3)]
    fold = _fold(4, *(Result(rank, "error", 0.1, failure=failure) for rank, failure in enumerate(failures)))
    assert [ranks for ranks, _ in fold.failure_groups()] == [[0, 1, 2]]


def test_notices_replace_each_other() -> None:
    fold = _fold(1, Notice("a", "k"), Notice("b", "k"), Notice("c", "other"), Notice("", "other"))
    assert fold.notices == {"k": "b"}


# ---- floods ----


def _counted(rows: Iterable[Row]) -> Counter[int]:
    """Return how many lines of each rank are shown or counted as not shown."""
    counts: Counter[int] = Counter()
    for row in rows:
        if isinstance(row, ElidedRow):
            counts.update(row.lines)
        else:
            counts.update(members(row.ranks))
    return counts


@pytest.mark.parametrize("chunk", [7, 500, 20_000])
@pytest.mark.parametrize("equal", [True, False])
def test_a_flood_is_bounded_and_counted(chunk: int, equal: bool) -> None:
    ranks, lines = 4, 20_000
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
        assert _shown(rows[:1]) == [(everyone, "line 0 ")]
        assert _shown(rows[-1:]) == [(everyone, "line 19999 ")]
    else:
        for rank in range(ranks):
            assert _of_rank(rows, rank)[-1] == ("stdout", f"line 19999 {rank}")


def test_a_flood_of_one_rank_does_not_hide_the_others() -> None:
    fold = Fold(range(3))
    fold.add(Text(2, "stdout", "early words\n"))
    for start in range(0, 50_000, 1000):
        fold.add(
            Text(0, "stdout", "".join(f"line {count}\n" for count in range(start, start + 1000))), now_s=start / 1e4
        )
        if start == 20_000:
            fold.add(Text(1, "stdout", "a warning\nand more of it\n"), now_s=start / 1e4)
    assert {"early words", "a warning", "and more of it"} <= {text for _, text in _shown(fold.rows())}


def test_elisions_align_ranks_by_line_number() -> None:
    fold = Fold(range(2))
    for rank, shown in enumerate([100, 60]):
        fold.add(Text(rank, "stdout", "".join(f"line {n}\n" for n in range(shown))))
        fold.add(Elided(rank, "stdout", 1000 - shown, 10_000))
        fold.add(Text(rank, "stdout", "".join(f"line {n}\n" for n in range(1000, 1100))))
    rows = fold.rows()
    assert _counted(rows) == {0: 1100, 1: 1100}
    assert _shown(rows[-100:]) == [("0,1", f"line {n}") for n in range(1000, 1100)]
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
    assert _shown(rows)[-1] == ("40", "the end of 40")
    assert {text for _, text in _shown(rows)} >= {f"{rank} at 4999" for rank in range(8)}


@pytest.mark.parametrize("last", ["the end", "the end of {rank}"])
def test_the_end_of_a_flood_folds_though_ranks_come_there_seconds_apart(last: str) -> None:
    fold = Fold(range(4))
    for rank in range(4):
        for start in range(0, 10_000, 1000):
            text = "".join(f"line {n}\n" for n in range(start, start + 1000))
            fold.add(Text(rank, "stdout", text), 10.0 * rank + start / 1000)
    for rank in range(4):
        fold.add(Text(rank, "stdout", f"{last.format(rank=rank)}\n"), 50.0)
    before = _counted(fold.rows())
    fold.add(Finished())
    rows = fold.rows()
    assert _counted(rows) == before == dict.fromkeys(range(4), 10_001)
    ending = [("0,1,2,3", f"line {n}") for n in range(9_940, 10_000)]
    ending += [("0,1,2,3", last)] if last == "the end" else [(str(rank), last.format(rank=rank)) for rank in range(4)]
    assert _shown(rows)[-len(ending) :] == ending


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 9), st.booleans()), max_size=40))
def test_the_end_of_a_flood_keeps_every_line_and_each_ranks_order(parts: list[tuple[int, int, int, bool]]) -> None:
    fold, printed = Fold(range(4)), {rank: list[str]() for rank in range(4)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HEAD_ROWS": 3, "TAIL_ROWS": 8, "_SLACK_ROWS": 4, "LAST_ROWS_OF_ALL": 12}.items():
            patch.setattr(f"monarch_nb.notebook.output.fold.{name}", value)
        for now_s, (rank, count, digit, counts) in enumerate(parts):
            lines = [f"line {len(printed[rank]) + n if counts else digit}" for n in range(count)]
            printed[rank] += lines
            fold.add(Text(rank, "stdout", "".join(f"{line}\n" for line in lines)), now_s / 3)
        fold.add(Finished())
        rows = fold.rows()
    assert {rank: count for rank, count in _counted(rows).items() if count} == {
        rank: len(lines) for rank, lines in printed.items() if lines
    }
    for rank, lines in printed.items():
        left = iter(lines)
        assert all(text in left for _, text in _of_rank(rows, rank)), "in the order in which it printed them"


def test_snippets_of_a_flood_make_room_for_the_newest() -> None:
    """Eight ranks, each at its own speed; the allocator forwards a hundred lines of every ten thousand."""
    fold, total, order = Fold(range(8)), 100_000, random.Random(1)
    done = dict.fromkeys(range(8), 0)
    now_s = 0.0
    while any(count < total for count in done.values()):
        now_s += 0.05
        for rank, count in done.items():
            if count < total:
                burst = min(total - count, order.randrange(2_000, 10_000))
                fold.add(Elided(rank, "stdout", burst - 100, burst * 10), now_s)
                numbers = range(count + burst - 100, count + burst)
                fold.add(Text(rank, "stdout", "".join(f"line {n}\n" for n in numbers)), now_s)
                done[rank] += burst
    rows = fold.rows()
    assert _counted(rows) == dict.fromkeys(range(8), total)
    assert _shown(rows[-1:]) == [("0,1,2,3,4,5,6,7", "line 99999")]
    assert len(rows) <= 101


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_lines_of_every_rank_are_shown_at_the_end(seed: int) -> None:
    """Ranks whose lines differ, each at its own speed: now a few lines come, now the ends of a flood."""
    fold, total, order = Fold(range(4)), 20_000, random.Random(seed)
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
    assert _counted(rows) == dict.fromkeys(range(4), total)
    for rank in range(4):
        shown = [text for _, text in _of_rank(rows, rank)]
        assert shown[-60:] == [f"line {number} of rank {rank}" for number in range(total - 60, total)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 5)), max_size=40))
def test_elisions_keep_order_and_counts(steps: list[tuple[int, int, int]]) -> None:
    fold, printed, now_s = Fold(range(3)), Counter[int](), 0.0
    for rank, kind, count in steps:
        now_s += 0.4 * (kind == 3)
        if kind == 0:
            fold.add(Elided(rank, "stdout", count, 1), now_s)
        else:
            numbers = range(printed[rank], printed[rank] + count)
            fold.add(Text(rank, "stdout", "".join(f"n{n}\n" for n in numbers)), now_s)
        printed[rank] += count
    rows = fold.rows()
    assert _counted(rows) == +printed
    for rank in range(3):
        numbers = [int(text[1:]) for _, text in _of_rank(rows, rank)]
        assert numbers == sorted(numbers)


def test_a_flood_is_fast() -> None:
    fold = Fold(range(8))
    texts = [Text(rank, "stdout", "".join(f"rank {rank} line {n}\n" for n in range(500))) for rank in range(8)]
    started_s = time.process_time()
    for _ in range(5):
        for text in texts:
            fold.add(text)
    assert time.process_time() - started_s < 1.0, "20,000 lines take about 0.1 s"


def test_nothing_folds_or_moves_across_a_restart() -> None:
    first = [Text(0, "stdout", f"step {step}\n") for step in range(9)] + [Text(1, "stdout", "step 0\nstep 1\nopen")]
    second = [Text(rank, "stdout", "step 0\nstep 1\n") for rank in (1, 0)]
    shown = _shown(_fold(2, *first, Restart("starting all again"), *second, Finished()).rows())
    at = shown.index(("0,1", "starting all again"))
    assert ("1", "open") in shown[:at]
    assert ("0", "step 8") in shown[:at]
    assert shown[at + 1 :] == [("0,1", "step 0"), ("0,1", "step 1")]


def test_a_terminal_takes_a_restart_at_once() -> None:
    fold = _fold(2, Text(0, "stdout", "step 0\n"), Restart("starting all again"), Text(1, "stdout", "step 0\n"))
    assert _shown(fold.take()) == [("0", "step 0"), ("0,1", "starting all again")]
