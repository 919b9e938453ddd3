"""Output folds by rank set and loses nothing."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.client.connections.events import (
    Display,
    Finished,
    Restart,
    Text,
    TextOfMany,
)
from monarch_nb.lines.templates import FOLDS_BY, FoldBy, key_of
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.placing import Places
from monarch_nb.notebook.output.rows import TextRow, members, order
from unit.notebook.output.folds import fold_of, of_rank, packed, shown_of

_LINES = st.sampled_from(["", "}", "step 1", "step 2", "loss 2.31", "loss 2.35", "a warning", "done", "x" * 2500 + "1"])
_OUTPUT = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), _LINES), max_size=12)
_OUTPUTS = st.lists(_OUTPUT, min_size=1, max_size=4)


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
@given(_OUTPUT, st.integers(2, 5), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 2.0]))
def test_equal_output_folds_to_one_set(
    output: list[tuple[str, str]], ranks: int, order: random.Random, step_s: float
) -> None:
    fold, now_s = Fold(range(ranks)), 0.0
    for rank, (stream, line) in _interleaved([output] * ranks, order):
        now_s += step_s
        fold.add(Text(rank, stream, line + "\n"), now_s)
    rows = fold.rows()
    assert of_rank(rows, 0) == _as_shown(output)
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
    by_rank = fold_of(
        ranks, *(Text(rank, "stdout", f"{line}\n") for rank, lines in enumerate(outputs) for line in lines)
    )
    mixed = fold_of(ranks, *(Text(rank, "stdout", f"{line}\n") for rank, line in _interleaved(outputs, order)))
    assert shown_of(by_rank.rows()) == shown_of(mixed.rows())
    everyone = ",".join(map(str, range(ranks)))
    expected = []
    for step in range(steps):
        expected += [(everyone, f"step {step}")]
        expected += [(str(rank), f"rank {rank} loss {order_free(rank, step)}") for rank in range(ranks)]
    assert shown_of(mixed.rows()) == expected


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
        assert of_rank(taken, rank) == _as_shown(output)
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
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 4), min_size=1),
            st.lists(st.sampled_from(["loss {}", "step 1: \x1b[32m{}\x1b[0m s", "done", "{}% of {}"]), max_size=3),
            st.sampled_from(["packed", "packed", "alone", "half"]),
        ),
        max_size=25,
    ),
    st.sampled_from(FOLDS_BY),
    st.randoms(use_true_random=False),
)
def test_packed_lines_open_to_every_line_of_each_rank(
    steps: list[tuple[set[int], list[str], str]], by: FoldBy, chance: random.Random
) -> None:
    """However they come: packed for some ranks, for others one by one, or after the half of a line."""
    fold, wrote, now_s = Fold(range(5), by), {rank: list[str]() for rank in range(5)}, 0.0
    half: dict[int, str] = {}
    for ranks, templates, how in steps:
        texts = {rank: [line.format(chance.randrange(9), 5) for line in templates] for rank in sorted(ranks)}
        now_s += chance.choice([0.0, 0.1, 0.3])
        if how == "packed":
            fold.add(packed(texts), now_s)
        for rank, lines in texts.items():
            text = "".join(f"{line}\n" for line in lines)
            if how == "half":
                fold.add(Text(rank, "stdout", "so far "), now_s)
                half[rank] = half.get(rank, "") + "so far "
                continue
            if how == "alone":
                fold.add(Text(rank, "stdout", text), now_s)
            if lines:
                wrote[rank] += [half.pop(rank, "") + lines[0], *lines[1:]]
    fold.add(Finished())
    rows = [row for row in fold.rows() if isinstance(row, TextRow)]
    for rank, lines in wrote.items():
        of_rank = [row for row in rows if row.ranks >> rank & 1]
        assert [row.number_of(rank) for row in of_rank] == [*range(len(lines) + (rank in half))]
        kept = [row for row in fold._rows if isinstance(row, TextRow) and row.ranks >> rank & 1]
        assert [row.text_of(rank) for row in sorted(kept, key=order)] == [*lines, *filter(None, [half.get(rank)])]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(_LINES, min_size=1, max_size=6)), max_size=20),
    st.sampled_from(FOLDS_BY),
    st.sampled_from([0.0, 0.1, 0.6]),
)
def test_rows_are_the_same_when_lines_come_one_by_one(
    pieces: list[tuple[int, list[str]]], by: FoldBy, step_s: float
) -> None:
    together, apart = Fold(range(4), by), Fold(range(4), by)
    for count, (rank, lines) in enumerate(pieces):
        together.add(Text(rank, "stdout", "".join(f"{line}\n" for line in lines)), count * step_s)
        for line in lines:
            apart.add(Text(rank, "stdout", f"{line}\n"), count * step_s)
    shown = [
        [(row.position, row.ranks, row.text, row.ranks_by_number()) for row in fold.rows()]
        for fold in (together, apart)
    ]
    assert shown[0] == shown[1]


def test_packed_lines_that_are_rewritten_are_each_ranks_own() -> None:
    """Who moves up to lines that differ goes on alone, from its own line."""
    fold = Fold(range(9))
    fold.add(packed({rank: [f"loss {rank}.5"] for rank in range(9)}))
    fold.add(TextOfMany(tuple(range(9)), "stdout", "\x1b[A\x1b[8Cx\n"))
    fold.add(Finished())
    (row,) = [row for row in fold._rows if row.ranks]
    assert isinstance(row, TextRow)
    assert [row.text_of(rank) for rank in range(9)] == [f"loss {rank}.5x" for rank in range(9)]


def test_packed_lines_of_many_ranks_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, follow = [], Places.follow
    monkeypatch.setattr(Places, "follow", lambda *about: found.extend([1, *(one := follow(*about))]) or one)
    fold = Fold(range(1_024))
    for step in range(10):
        for first in range(0, 1_024, 512):
            fold.add(packed({rank: [f"step {step} loss {rank}.5"] for rank in range(first, first + 512)}))
    assert len(found) <= 2 * 2 * 10
    everyone = (1 << 1_024) - 1
    shown = [(row.ranks, row.text) for row in fold.rows() if isinstance(row, TextRow)]
    assert shown == [(everyone, f"step {step} loss 0.5–1023.5") for step in range(10)]


@pytest.mark.parametrize("by", ["equal", "numbers"])
def test_text_of_many_ranks_is_added_once(by: FoldBy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after some ranks have written something by themselves, and others have come together again."""
    found, find, follow = [0], Places.find, Places.follow
    monkeypatch.setattr(Places, "find", lambda *about: found.append(1) or find(*about))
    monkeypatch.setattr(Places, "follow", lambda *about: found.extend(one := follow(*about)) or one)
    fold, everyone = Fold(range(1_024), by), tuple(range(1_024))
    fold.add(TextOfMany(everyone, "stdout", "".join(f"line {n}\n" for n in range(100))))
    assert len(found) == 1 + 100
    for rank in range(10, 20):
        fold.add(Text(rank, "stdout", f"loss {rank}\n"))
    fold.add(TextOfMany(everyone[:500], "stdout", "some\nmore\n"))
    fold.add(TextOfMany(everyone[500:], "stdout", "some\nmore\n"))
    for n in range(10):
        fold.add(TextOfMany(everyone, "stdout", f"again {n}\n"))
    found.clear()
    fold.add(TextOfMany(everyone[:10] + everyone[20:], "stdout", "half a "))
    fold.add(TextOfMany(everyone[:10] + everyone[20:], "stdout", "line\n"))
    assert len(found) <= 2


# ---- examples ----


def test_where_lines_stand() -> None:
    for texts, shown in (
        (["0\nloss 1.5", "1\nloss 1.5", "2\nloss 2.5"], "0 0|1 1|2 2|0,1 loss 1.5|2 loss 2.5"),
        (["loss 1\nloss 2", "only here\nloss 3\nloss 4"], "1 only here|0 loss 1|1 loss 3|0 loss 2|1 loss 4"),
        (["root\nrules", "worker\nworks"], "0 root|1 worker|0 rules|1 works"),
    ):
        fold = fold_of(len(texts), *(Text(rank, "stdout", f"{text}\n") for rank, text in enumerate(texts)))
        assert "|".join(f"{ranks} {text}" for ranks, text in shown_of(fold.rows())) == shown


def test_extra_lines_of_one_rank_do_not_unfold_the_others() -> None:
    for together in (True, False):
        text = "one\nonly here\nand more\ntwo\nthree\n"
        fold = fold_of(3, *(Text(rank, "stdout", "one\ntwo\nthree\n") for rank in (0, 1)))
        for piece in [text] if together else text:
            fold.add(Text(2, "stdout", piece))
        assert shown_of(fold.rows()) == [
            ("0,1,2", "one"),
            ("2", "only here"),
            ("2", "and more"),
            ("0,1,2", "two"),
            ("0,1,2", "three"),
        ]


def test_a_late_line_stands_at_the_end() -> None:
    fold = Fold(range(3))
    for step in range(10):
        fold.add(Text(0, "stdout", f"epoch {step}\n"), now_s=float(step))
    fold.add(Text(2, "stdout", "rank 2 is done\n"), now_s=20.0)
    fold.add(Text(0, "stdout", "rank 0 is done\n"), now_s=20.01)
    fold.add(Text(1, "stdout", "rank 1 is done\n"), now_s=20.02)
    assert [ranks for ranks, _ in shown_of(fold.rows())] == ["0"] * 10 + ["0", "1", "2"]
    assert shown_of(fold.rows())[10][1] == "rank 0 is done"


def test_blank_lines_do_not_drag_a_rank_far_ahead() -> None:
    far = "".join(f"line {count} of many\n" for count in range(30))
    fold = fold_of(2, Text(0, "stdout", far + "\n"), Text(1, "stdout", "\n" + far))
    assert ("0,1", "line 29 of many") in shown_of(fold.rows())


def test_long_lines_fold_only_when_all_of_them_is_equal() -> None:
    long = "x" * 3000
    fold = fold_of(3, *(Text(rank, "stdout", long + end + "\n") for rank, end in enumerate("aab")))
    assert [members(row.ranks) for row in fold.rows()] == [(0, 1), (2,)]


def test_a_rank_that_was_not_announced() -> None:
    fold = fold_of(1, Text(7, "stdout", "x\n"))
    assert shown_of(fold.rows()) == [("7", "x")]
    assert members(fold.ranks) == (0, 7)


# ---- open lines ----


def test_progress_bars_are_live_and_fold() -> None:
    fold = fold_of(3, *(Text(rank, "stderr", "10%\r20%\r30%") for rank in (0, 1)), Text(2, "stderr", "\r10%"))
    fold.add(Text(0, "stdout", "text\n"))
    assert [(members(row.ranks), row.text, row.live) for row in fold.rows() if isinstance(row, TextRow)] == [
        ((0,), "text", False),
        ((0, 1), "30%", True),
        ((2,), "10%", True),
    ]
    for rank in range(3):
        fold.add(Text(rank, "stderr", "\r100%\n"))
    assert shown_of(fold.rows()) == [("0", "text"), ("0,1,2", "100%")]


def test_a_display_finishes_the_open_line_before_it() -> None:
    fold = fold_of(1, Text(0, "stdout", "before"), Display(0, "show", {"text/plain": "x"}), Text(0, "stdout", "after"))
    assert shown_of(fold.rows()) == [("0", "before"), ("0", "DisplayRow"), ("0", "after")]


def test_moving_up_takes_the_line_back() -> None:
    fold = fold_of(2, *(Text(rank, "stderr", "bar1\n") for rank in (0, 1)))
    fold.add(Text(1, "stderr", "bar2\x1b[A\rBAR1"))
    assert shown_of(fold.rows()) == [("0", "bar1"), ("1", "BAR1"), ("1", "bar2")]


# ---- results, failures, notices ----


# ---- restarts ----


def test_nothing_folds_or_moves_across_a_restart() -> None:
    first = [Text(0, "stdout", f"step {step}\n") for step in range(9)] + [Text(1, "stdout", "step 0\nstep 1\nopen")]
    second = [Text(rank, "stdout", "step 0\nstep 1\n") for rank in (1, 0)]
    shown = shown_of(fold_of(2, *first, Restart("starting all again"), *second, Finished()).rows())
    at = shown.index(("0,1", "starting all again"))
    assert ("1", "open") in shown[:at]
    assert ("0", "step 8") in shown[:at]
    assert shown[at + 1 :] == [("0,1", "step 0"), ("0,1", "step 1")]


def test_a_terminal_takes_a_restart_at_once() -> None:
    fold = fold_of(2, Text(0, "stdout", "step 0\n"), Restart("starting all again"), Text(1, "stdout", "step 0\n"))
    assert shown_of(fold.take()) == [("0", "step 0"), ("0,1", "starting all again")]
