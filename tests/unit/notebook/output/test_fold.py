"""Output folds by rank set and loses nothing."""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

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
    outputs = [
        [line for step in range(steps) for line in (f"step {step}", f"rank {rank} loss 2.{31 * rank + step}")]
        for rank in range(ranks)
    ]
    fold = fold_of(ranks, *(Text(rank, "stdout", f"{line}\n") for rank, line in _interleaved(outputs, order)))
    everyone = ",".join(map(str, range(ranks)))
    expected = []
    for step in range(steps):
        expected += [(everyone, f"step {step}")]
        expected += [(str(rank), f"rank {rank} loss 2.{31 * rank + step}") for rank in range(ranks)]
    assert shown_of(fold.rows()) == expected


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
        st.tuples(
            st.sets(st.integers(0, 4), min_size=1),
            st.lists(st.sampled_from(["loss {}", "step 1: \x1b[32m{}\x1b[0m s", "done", "{}% of {}"]), max_size=3),
            st.sampled_from(["packed", "packed", "as one", "alone", "half"]),
        ),
        max_size=25,
    ),
    st.sampled_from(FOLDS_BY),
    st.randoms(use_true_random=False),
)
def test_rows_open_to_every_line_of_each_rank(
    steps: list[tuple[set[int], list[str], str]], by: FoldBy, chance: random.Random
) -> None:
    """However they come: packed, equal and cut anywhere for some ranks, one by one, or after the half of a line."""
    fold, wrote, now_s = Fold(range(5), by), {rank: list[str]() for rank in range(5)}, 0.0
    half: dict[int, str] = {}
    for ranks, templates, how in steps:
        texts = {rank: [line.format(chance.randrange(9), 5) for line in templates] for rank in sorted(ranks)}
        now_s += chance.choice([0.0, 0.1, 0.3])
        if how == "packed":
            fold.add(packed(texts), now_s)
        if how == "as one":
            texts = dict.fromkeys(texts, texts[min(ranks)])
            text = "".join(f"{line}\n" for line in texts[min(ranks)])
            cut = chance.randrange(len(text) + 1)
            for piece in filter(None, (text[:cut], text[cut:])):
                fold.add(TextOfMany(tuple(texts), "stdout", piece), now_s)
        for rank, lines in texts.items():
            if how == "half":
                fold.add(Text(rank, "stdout", "so far "), now_s)
                half[rank] = half.get(rank, "") + "so far "
                continue
            if how == "alone":
                fold.add(Text(rank, "stdout", "".join(f"{line}\n" for line in lines)), now_s)
            if lines:
                wrote[rank] += [half.pop(rank, "") + lines[0], *lines[1:]]
    fold.add(Finished())
    for rank, begun in half.items():
        wrote[rank].append(begun)
    rows = [row for row in fold.rows() if isinstance(row, TextRow)]
    for rank, lines in wrote.items():
        assert [row.number_of(rank) for row in rows if row.ranks >> rank & 1] == [*range(len(lines))]
        kept = [row for row in fold._rows if isinstance(row, TextRow) and row.ranks >> rank & 1]
        assert [row.text_of(rank) for row in sorted(kept, key=order)] == lines
    for row in rows:
        opened = [wrote[rank][row.number_of(rank)] for rank in members(row.ranks)]
        assert len({key_of(line, by) for line in opened}) == 1, "no row mixes steps"
        assert by != "off" or len(opened) == 1


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


# ---- examples ----


def test_where_lines_stand() -> None:
    for texts, shown in (
        (["0\nloss 1.5", "1\nloss 1.5", "2\nloss 2.5"], "0 0|1 1|2 2|2 loss 2.5|0,1 loss 1.5"),
        (["loss 1\nloss 2", "only here\nloss 3\nloss 4"], "1 only here|1 loss 3|0 loss 1|0 loss 2|1 loss 4"),
        (["root\nrules", "worker\nworks"], "0 root|0 rules|1 worker|1 works"),
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


# ---- open lines ----


def test_open_lines_fold_as_finished_ones_do() -> None:
    for by, shown in (("numbers", [("0,1", "loss 1.5–2.5")]), ("times", [("0", "loss 1.5"), ("1", "loss 2.5")])):
        fold = Fold(range(2), by)  # type: ignore[arg-type]
        for rank in range(2):
            fold.add(Text(rank, "stdout", f"loss {rank + 1}.5"))
        assert shown_of(fold.rows()) == shown


def test_a_display_finishes_the_open_line_before_it() -> None:
    fold = fold_of(1, Text(0, "stdout", "before"), Display(0, "show", {"text/plain": "x"}), Text(0, "stdout", "after"))
    assert shown_of(fold.rows()) == [("0", "before"), ("0", "DisplayRow"), ("0", "after")]


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
