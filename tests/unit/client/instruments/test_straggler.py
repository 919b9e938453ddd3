"""Who is waited for."""

from __future__ import annotations

import doctest
from xml.etree import ElementTree

import pytest

from monarch_nb.client.instruments import top_table
from monarch_nb.client.instruments.top_table import MOST_ROWS, Part, RankTop, TopTable, rank_top, straggler_of
from monarch_nb.client.pools.infos import RankInfo
from monarch_nb.notebook.output.html.top import top_markup
from monarch_nb.proto import run_pb2


def rank(number: int, waits: float, kind: str = "loader", line: str = "train.py:41", node: str = "node0") -> RankTop:
    """A rank that waits in all_reduce for a part of its time, and is in a line for the rest."""
    parts = [Part("collective", "all_reduce", waits, "train.py:50"), Part(kind, "", 1 - waits, line)]
    kept = tuple(sorted((part for part in parts if part.share), key=lambda part: -part.share))
    return RankTop(number, node, "running", kept)


def test_docstring_examples() -> None:
    assert doctest.testmod(top_table).failed == 0


@pytest.mark.parametrize(
    ("waits", "late"),
    [
        ([0.9, 0.9, 0.05, 0.9], (2,)),
        ([0.9, 0.05], (1,)),
        ([0.8, 0.1, 0.85, 0.12], (1, 3)),
        ([0.5, 0.5, 0.0, 0.55, 0.5, 0.52], (2,)),
        ([0.1, 0.12, 0.02, 0.1], None),  # nobody waits much
        ([0.6, 0.55, 0.5, 0.62], None),  # all wait alike
        ([1.0, 1.0, 1.0, 1.0], None),  # all hang
        ([0.9, 0.05, 0.05, 0.05], None),  # one waits: who is late is most of them
        ([0.05, 0.06, 0.05, 0.9, 0.9], None),  # so it is here
        ([0.9], None),
    ],
)
def test_who_waits_least_while_the_others_wait(waits: list[float], late: tuple[int, ...] | None) -> None:
    found = straggler_of([rank(number, share) for number, share in enumerate(waits)])
    assert (found.ranks if found else None) == late


def test_the_sentences() -> None:
    others = [rank(number, 0.85) for number in (0, 1, 3)]
    assert str(straggler_of([*others, rank(2, 0.08)])) == (
        "Slow: rank 2 spends 92% of its time in train.py:41 (data loader); ranks 0-1,3 wait for it in all_reduce (85%)"
    )
    idle = RankTop(2, "node0", "idle", (Part("idle", "", 1.0, ""),))
    assert str(straggler_of([*others, idle])) == (
        "Slow: rank 2 runs nothing; ranks 0-1,3 wait for it in all_reduce (85%)"
    )
    assert str(straggler_of([others[0], rank(2, 0.0, "python", "")])) == (
        "Slow: rank 2 spends 100% of its time in Python; rank 0 waits for it in all_reduce (85%)"
    )


def test_where_all_are_is_not_what_makes_one_late() -> None:
    step = Part("torch", "", 0.48, "train.py:40")
    others = [
        RankTop(number, "node0", "running", (step, Part("collective", "backward", 0.52, ""))) for number in (0, 1)
    ]
    late = RankTop(2, "node0", "running", (step, Part("waiting", "", 0.45, "data.py:36"), Part("python", "", 0.07, "")))
    assert str(straggler_of([*others, late])) == (
        "Slow: rank 2 spends 45% of its time in data.py:36 (waits); ranks 0-1 wait for it in backward (52%)"
    )
    elsewhere = RankTop(2, "node0", "running", (Part("torch", "", 0.5, "train.py:41"), *late.parts[1:]))
    assert "45% of its time in data.py:36 (waits)" in str(straggler_of([*others, elsewhere])), "torch takes all as long"


def test_ranks_that_were_not_looked_at_do_not_count() -> None:
    silent = [RankTop(4, "node1", "no answer"), RankTop(5, "node1", "dead")]
    found = straggler_of([rank(0, 0.9), rank(1, 0.9), rank(2, 0.1), *silent])
    assert found is not None
    assert (found.ranks, found.waiting) == ((2,), (0, 1))
    assert straggler_of(silent) is None


def test_many_ranks_fold_and_the_late_one_is_first_with_a_row_of_its_own() -> None:
    ranks = [rank(number, 0.9, node=f"node{number // 8}") for number in range(24)]
    ranks[17] = rank(17, 0.05, node="node2")
    ranks[20] = RankTop(20, "node2", "dead")
    table = TopTable(tuple(ranks))
    assert [row.ranks_text for row in table.rows] == ["17", "0-16,18-19,21-23", "20"]
    assert [row.is_late for row in table.rows] == [True, False, False]
    assert [row.cells()[1] for row in table.rows] == ["node2", "3 nodes", "node2"]
    assert len(TopTable(tuple(ranks[:MOST_ROWS])).rows) == MOST_ROWS
    assert str(table).startswith("Slow: rank 17 spends ")
    assert "dead" in str(table)


def test_in_a_cell_there_are_bars_with_words_and_columns_only_for_what_is_known() -> None:
    table = TopTable((rank(0, 0.9), rank(1, 0.9), rank(2, 0.05, line="<x>:1")))
    shown = top_markup(table, ["how to go on"])
    root = ElementTree.fromstring(f"<div>{shown}</div>")
    heads, *rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]
    assert heads == ["rank", "node", "the last seconds", "where mostly"]
    assert rows[2] == ["2 ←", "node0", "data loader 95% · all_reduce 5%", "<x>:1"]
    widths = [each.get("style", "").partition(";")[0] for each in root.iter("span")]
    assert widths == ["width:10.0%", "width:90.0%"] * 2 + ["width:95.0%", "width:5.0%"]
    assert "Slow: rank 2 " in shown
    assert "how to go on" in shown


def test_what_is_said_where_nobody_is_late() -> None:
    idle = tuple(RankTop(number, "node0", "idle", (Part("idle", "", 1.0, ""),)) for number in (0, 1))
    assert TopTable(idle).sentence == "nothing runs on these ranks"
    assert TopTable((RankTop(0, "node0", "running"),)).sentence == "looking where the ranks are"
    assert TopTable((rank(0, 1.0), rank(1, 1.0))).sentence == "all ranks wait in collectives"
    assert TopTable((rank(0, 0.1), rank(1, 0.1))).sentence == "no rank is slow"
    partly = TopTable((rank(0, 1.0), rank(1, 1.0)), others=2)
    assert partly.sentence == "ranks 0-1 wait in collectives; 2 other ranks are not looked at"
    assert repr(partly) == str(partly), "as the last value of a cell"
    half = RankTop(0, "node0", "idle", (Part("python", "", 0.5, "a.py:1"), Part("idle", "", 0.5, "")))
    assert TopTable((half,)).rows[0].texts()["idle"] == "50%"
    dead = RankTop(2, "node0", "dead")
    assert TopTable((rank(0, 0.1), rank(1, 0.1), dead)).sentence == "no rank is slow; rank 2 is dead"
    assert TopTable(idle).is_idle, "who looks once need look no longer"
    assert not TopTable((*idle, RankTop(2, "node0", "idle"))).is_idle, "of the third nothing is known yet"


def test_a_rank_that_does_nothing_does_no_steps() -> None:
    info = RankInfo(0, "node0", 0, "idle")
    looks = run_pb2.Looks(count=4, steps_per_s=1.5, shares=[run_pb2.LooksShare(kind="idle", looks=4)])
    assert rank_top(info, looks).steps_per_s is None
    looks.shares.add(kind="torch", looks=1)
    assert rank_top(info, looks).steps_per_s == 1.5
