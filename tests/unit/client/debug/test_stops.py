"""The table of stopped ranks, and answers of many ranks."""

from __future__ import annotations

import pytest

from monarch_nb.client.debug.stops import StopInfo, actor_of, folded, stops_table
from monarch_nb.errors import UsageError


def stop(rank: int, line_number: int = 61, *, actor: str = "debugee", executes: bool = False) -> StopInfo:
    at = {"host": rank // 2, "gpu": rank % 2}
    return StopInfo(
        *(1, actor, rank, at, "localhost", "dbgex.to_debug", "dbgex.py", line_number, "", "run"), executes=executes
    )


def test_the_table_looks_as_monarchs() -> None:
    assert stops_table([stop(0), stop(3, 7)]) == (
        "+------------+------+-----------------------+-----------+----------------+----------+\n"
        "| Actor Name | Rank | Coords                | Hostname  | Function       | Line No. |\n"
        "+============+======+=======================+===========+================+==========+\n"
        "| debugee    |    0 | {'host': 0, 'gpu': 0} | localhost | dbgex.to_debug |       61 |\n"
        "+------------+------+-----------------------+-----------+----------------+----------+\n"
        "| debugee    |    3 | {'host': 1, 'gpu': 1} | localhost | dbgex.to_debug |        7 |\n"
        "+------------+------+-----------------------+-----------+----------------+----------+"
    )


def test_the_table_says_which_rank_is_not_done_with_a_line() -> None:
    assert "dbgex.to_debug (running)" in stops_table([stop(0, executes=True)])
    assert len(stops_table([]).splitlines()) == 4, "an empty one has its headers"


def test_the_only_name_that_has_stopped_can_be_left_out() -> None:
    assert actor_of([stop(0), stop(3)], "", ("attach", "3")) == "debugee"
    assert actor_of([stop(0), stop(3, actor="cell")], "cell", ("attach", "3")) == "cell"


def test_of_several_names_one_must_be_said() -> None:
    stops = [stop(0), stop(3, actor="cell"), stop(1)]
    with pytest.raises(UsageError, match=r"^stopped are cell, debugee: name one, as in cast cell all p x$"):
        actor_of(stops, "", ("cast", "all p x"))
    with pytest.raises(UsageError, match="No debug sessions for actor trainers; stopped are cell, debugee"):
        actor_of(stops, "trainers", ("attach", "3"))


def test_equal_answers_once() -> None:
    answers = {0: "1\n", 3: "1\n", 1: "2\n", 2: "> f()\n-> x\n", 4: ""}
    assert folded(answers) == "[0,3] 1\n[1] 2\n[2]\n> f()\n-> x\n[4]"
