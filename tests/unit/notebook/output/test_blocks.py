"""What a rank writes at once stays together where it does not fold; no line is lost, and none is shown twice."""

import random
from collections import deque
from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.client.connections.events import Finished, Text
from monarch_nb.lines.templates import FOLDS_BY, FoldBy
from monarch_nb.notebook.output.blocks import MAX_COPIES
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.rows import Row, TextRow
from unit.notebook.output.folds import fold_of, of_rank, shown_of


def _tensor(rank: int, rows: int = 3, call: int = 0) -> str:
    """Return what `print` writes of a tensor that no other rank has, nor another call."""
    shown = [f"[0.{call:02}{rank}{row}, 0.5]" for row in range(rows)]
    return "tensor([" + ",\n        ".join(shown) + "])\n"


def _summary(rank: int) -> str:
    """The same of one with three dimensions, of which some lines are equal on all ranks."""
    matrix = f"[[0.{rank}1, 0.5],\n         [0.{rank}2, 0.5],\n         ...,\n         [0.{rank}3, 0.5]]"
    return f"tensor([{matrix},\n\n        {matrix},\n\n        ...,\n\n\n        {matrix}])\n"


def _shown_of_each(texts: Sequence[str], order: Iterable[int] | None = None) -> list[tuple[str, str]]:
    fold = fold_of(len(texts), *(Text(rank, "stdout", texts[rank]) for rank in order or range(len(texts))))
    return shown_of(fold.rows())


def _as_blocks(texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(str(rank), line) for rank, text in enumerate(texts) for line in text.splitlines()]


# ---- examples ----


def test_tensors_of_eight_ranks_stay_whole() -> None:
    for tensor in (_tensor, _summary):
        texts = [tensor(rank) for rank in range(8)]
        assert _shown_of_each(texts) == _as_blocks(texts)
        assert _shown_of_each(texts, [3, 1, 0, 2, 7, 6, 5, 4]) == _as_blocks(texts)


def test_equal_tensors_fold_and_others_stay_whole_beside_them() -> None:
    texts = [_tensor(rank if rank in (2, 5) else 9) for rank in range(8)]
    equal = [("0,1,3,4,6,7", line) for line in texts[0].splitlines()]
    own = [(str(rank), line) for rank in (2, 5) for line in texts[rank].splitlines()]
    assert _shown_of_each(texts) == [*equal, *own]


def _diagonal(rank: int, ranks: int = 4) -> str:
    """Return what `print` writes of a matrix whose lines are other ranks' lines, too."""
    shown = [f"[{', '.join(str(int(row == column == rank)) for column in range(ranks))}]" for row in range(ranks)]
    return "tensor([" + ",\n        ".join(shown) + "])\n"


def test_tensors_that_share_lines_stay_whole() -> None:
    texts = [_diagonal(rank) for rank in range(4)]
    assert _shown_of_each(texts) == _as_blocks(texts)
    assert _shown_of_each(texts, [2, 0, 3, 1]) == _as_blocks(texts)


def test_of_very_many_lines_in_brackets_only_the_first_are_shown_once_more() -> None:
    ranks = 120
    texts = [_diagonal(rank, ranks) for rank in range(ranks)]
    fold = Fold(range(ranks), "equal")
    for rank, text in enumerate(texts):
        fold.add(Text(rank, "stdout", text))
    rows = fold.rows()
    assert len(fold._rows) < len(rows) < MAX_COPIES + 2 * len(fold._rows)
    for rank in (0, 77, ranks - 1):
        assert [line for _, line in of_rank(rows, rank)] == texts[rank].splitlines()


def test_a_pretty_printed_dictionary_stays_whole_and_equal_ones_fold() -> None:
    texts = [f"{{'rank': {rank // 3},\n 'world': 4,\n 'port': 29500}}\n" for rank in range(4)]
    assert _shown_of_each(texts) == [
        (ranks, line) for ranks, text in (("0,1,2", texts[0]), ("3", texts[3])) for line in text.splitlines()
    ]


def test_a_drawn_table_stays_whole() -> None:
    for table in ("┏━━━┓\n┃ {} ┃\n┗━━━┛\n", "+---+\n| {} |\n+---+\n"):
        texts = [table.format(rank) for rank in range(3)]
        assert _shown_of_each(texts) == _as_blocks(texts)


def test_a_text_printed_before_a_tensor_stays_with_it() -> None:
    """`print("step 1\\n", tensor)` puts a blank between the two."""
    texts = [f"step 1\n {_tensor(rank)}ready\n" for rank in range(2)]
    own = [(str(rank), line) for rank, text in enumerate(texts) for line in text.splitlines()[:-1]]
    assert _shown_of_each(texts) == [*own, ("0,1", "ready")]


def test_a_bracket_that_stays_open_holds_no_other_lines() -> None:
    texts = [f"loading (slow\nready\n  of {rank}\n" for rank in range(2)]
    assert _shown_of_each(texts) == [
        ("0,1", "loading (slow"),
        ("0,1", "ready"),
        ("0", "  of 0"),
        ("1", "  of 1"),
    ]
    fold = Fold(range(2))
    for now_s, line in ((1.0, "items: ["), (2.0, "  {}"), (3.0, "]")):
        for rank in range(2):
            fold.add(Text(rank, "stdout", line.format(rank) + "\n"), now_s)
    assert [ranks for ranks, _ in shown_of(fold.rows())] == ["0,1", "0", "1", "0,1"], "a line a second is no block"


def test_a_rank_that_is_late_has_its_tensor_whole() -> None:
    fold = Fold(range(4))
    for rank in range(4):
        fold.add(Text(rank, "stdout", _diagonal(rank)), 20.0 * (rank == 3))
    assert shown_of(fold.rows()) == _as_blocks([_diagonal(rank) for rank in range(4)])


def test_a_tensor_that_comes_in_pieces_is_whole() -> None:
    for cut in range(1, len(_diagonal(0))):
        fold = Fold(range(4))
        for rank in range(4):
            fold.add(Text(rank, "stdout", _diagonal(rank)[:cut]), 5.0)
        assert shown_of(fold.take(5.0)) == [], "nor does a terminal show some of it"
        for rank in range(4):
            fold.add(Text(rank, "stdout", _diagonal(rank)[cut:]), 5.04)
        texts = [_diagonal(rank) for rank in range(4)]
        assert shown_of(fold.rows()) == _as_blocks(texts)
        fold.add(Finished(), 5.04)
        assert shown_of(fold.take(5.04)) == _as_blocks(texts)


def test_a_terminal_does_not_wait_long_for_a_bracket_to_close() -> None:
    fold = fold_of(1, Text(0, "stdout", "loading (slow\n"))
    assert shown_of(fold.take()) == []
    assert shown_of(fold.take(1.0)) == [("0", "loading (slow")]


def test_what_has_only_a_line_of_its_own_folds() -> None:
    texts = [f'{{\n  "rank": {rank},\n  "world": 4,\n  "host": "h",\n  "port": 29500\n}}\n' for rank in range(4)]
    everyone = "0,1,2,3"
    assert _shown_of_each(texts) == [
        (everyone, "{"),
        *((str(rank), f'  "rank": {rank},') for rank in range(4)),
        (everyone, '  "world": 4,'),
        (everyone, '  "host": "h",'),
        (everyone, '  "port": 29500'),
        (everyone, "}"),
    ]


def test_a_frame_stays_whole_and_equal_ones_fold() -> None:
    def frame(rank: int) -> str:
        return f"   step  loss\n0     1   0.{rank}\n1     2   0.5\n2    10  10.5\n"

    texts = [frame(rank) for rank in range(3)]
    assert _shown_of_each(texts) == _as_blocks(texts)
    assert _shown_of_each([frame(0)] * 3) == [("0,1,2", line) for line in frame(0).splitlines()]
    grouped = [f"     loss\na x   0.{rank}\n  y   0.5\nb x   0.6\n" for rank in range(3)]
    assert _shown_of_each([f"{text}ready\n" for text in grouped]) == [*_as_blocks(grouped), ("0,1,2", "ready")]


def test_ranks_stand_side_by_side_in_a_loop() -> None:
    for line in ("step {step} loss {loss}", "   {step}  {loss}", "loss {loss}"):
        losses = [[f"{rank - 1}.{step}" for rank in range(3)] for step in range(5)]
        texts = [
            "".join(line.format(step=step, loss=losses[step][rank]) + "\n" for step in range(5)) for rank in range(3)
        ]
        assert _shown_of_each(texts) == [
            (str(rank), line.format(step=step, loss=losses[step][rank])) for step in range(5) for rank in range(3)
        ]


def test_a_step_of_a_loop_is_a_block() -> None:
    texts = ["".join(f"rank {rank} at {step}\nloss {rank}.{step}\n" for step in range(3)) for rank in range(2)]
    assert _shown_of_each(texts) == [
        (str(rank), line)
        for step in range(3)
        for rank in range(2)
        for line in (f"rank {rank} at {step}", f"loss {rank}.{step}")
    ]


def test_all_come_to_a_line_that_folds() -> None:
    texts = [f"mine is {'abcd'[rank]}\n{_tensor(rank)}ready\nyours is {'abcd'[rank]}\n" for rank in range(2)]
    assert [text for _, text in _shown_of_each(texts)] == [
        "mine is a",
        *_tensor(0).splitlines(),
        "mine is b",
        *_tensor(1).splitlines(),
        "ready",
        "yours is a",
        "yours is b",
    ]


def test_a_later_line_is_no_part_of_a_block() -> None:
    fold = Fold(range(2))
    for now_s, line in ((0.0, "begin {}"), (0.04, "soon {}"), (0.3, "later {}")):
        for rank in range(2):
            fold.add(Text(rank, "stdout", line.format("ab"[rank]) + "\n"), now_s)
    assert [text for _, text in shown_of(fold.rows())] == [
        "begin a",
        "soon a",
        "begin b",
        "soon b",
        "later a",
        "later b",
    ]


def test_the_end_of_a_tensors_last_line_may_come_later() -> None:
    """`print` writes a text and then the line's end: the allocator may look between the two."""
    fold = Fold(range(2))
    fold.add(Text(0, "stdout", f"rank 0:\n{_tensor(0)}"[:-1]), 0.05)
    fold.add(Text(1, "stdout", f"rank 1:\n{_tensor(1)}"), 0.06)
    assert shown_of(fold.take(0.07)) == [], "nor does a terminal show some of it"
    fold.add(Text(0, "stdout", "\n"), 0.3)
    texts = [f"rank {rank}:\n{_tensor(rank)}" for rank in range(2)]
    assert shown_of(fold.rows()) == _as_blocks(texts)
    assert shown_of(fold.take(0.3)) == _as_blocks(texts)


def test_a_terminal_waits_for_the_rest_of_a_block() -> None:
    """Of no block a part is taken: a bracket that is open says that more comes."""
    fold = fold_of(2, Text(0, "stdout", _tensor(0)), Text(1, "stdout", "tensor([[0.9, 0.5],\n"))
    assert shown_of(fold.take()) == []
    fold.add(Text(1, "stdout", "        [0.8, 0.5],\n        [0.7, 0.5]])\n"))
    assert [ranks for ranks, _ in shown_of(fold.take())] == ["0", "0", "0", "1", "1", "1"]


# ---- what must hold for any output ----

_CALLS = st.lists(
    st.sampled_from(["tensor", "tensor", "long tensor", "diagonal", "diagonal", "same", "step", "blank", "indented"]),
    max_size=8,
)


def _printed(kind: str, rank: int, call: int) -> str:
    if kind.endswith("tensor"):
        return _tensor(rank, 9 if kind.startswith("long") else 2, call)
    if kind == "diagonal":
        return _diagonal(rank).replace("1", f"1{call}")
    return {"same": "ready\n", "step": f"step {call} loss {rank}.5\n", "blank": "\n", "indented": "  and\n"}[kind]


@settings(deadline=None)
@given(
    st.lists(_CALLS, min_size=2, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from(FOLDS_BY[1:]),
    st.sampled_from([0.0, 0.02, 0.1, 0.7]),
    st.booleans(),
)
def test_no_line_is_lost_and_none_twice_and_blocks_are_whole(
    calls: list[list[str]], chance: random.Random, by: FoldBy, step_s: float, takes: bool
) -> None:
    wrote, tensors = dict.fromkeys(range(len(calls)), ""), []
    waiting: dict[int, deque[str]] = {}
    for rank, kinds in enumerate(calls):
        for call, kind in enumerate(kinds):
            text = _printed(kind, rank, call)
            wrote[rank] += text
            if kind.endswith("tensor"):
                tensors.append(text.splitlines())
            whole = step_s or chance.random() < 0.5
            waiting.setdefault(rank, deque()).extend([text] if whole else [text[:-1], "\n"])
    fold, now_s, taken = Fold(range(len(calls)), by), 0.0, list[Row]()
    while waiting:
        rank = chance.choice(list(waiting))
        now_s += step_s
        fold.add(Text(rank, "stdout", waiting[rank].popleft()), now_s)
        if not waiting[rank]:
            del waiting[rank]
        if takes and chance.random() < 0.5:
            taken += fold.take(now_s)
    fold.add(Finished(), now_s)
    rows = [*taken, *(fold.take(now_s) if takes else fold.rows())]
    for rank, text in wrote.items():
        assert [line for _, line in of_rank(rows, rank)] == text.splitlines()
    shown = [row.text for row in rows if isinstance(row, TextRow)]
    for tensor in tensors:
        at = shown.index(tensor[0])
        assert shown[at : at + len(tensor)] == tensor
