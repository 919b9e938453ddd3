"""The table of stopped ranks, and answers of many ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.debug.debugger import Debugger, StopInfo, actor_of, folded, stops_table
from monarch_nb.client.pools.infos import RunInfo
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


@pytest.mark.parametrize(
    ("title", "is_script", "failed", "ranks", "said"),
    [
        ("x = 1", False, (), (1,), "no error to look at: the last run on rank 1 did not fail"),
        ("bad.py --lr 1", True, (0,), (1,), "no error to look at: the last run on rank 1 did not fail"),
        ("bad.py --lr 1", True, (1,), (0, 1), "its processes have ended: %mesh run -i bad.py --lr 1 keeps them"),
        ("-m pkg", True, (1,), (1,), "-m pkg failed, and its processes have ended: %mesh run -i -m pkg keeps them"),
        ("make all", True, (1,), (1,), "make all failed, and its processes have ended"),
    ],
)
def test_why_there_is_no_error_to_look_at(
    title: str, is_script: bool, failed: tuple[int, ...], ranks: tuple[int, ...], said: str
) -> None:
    other = RunInfo("a", 1, "before", (0, 1), (0, 1), True, 0.0, 0, failed=(0, 1))
    later = RunInfo("c", 3, "elsewhere", (2, 3), (2, 3), True, 0.0, 0, failed=(2, 3), is_script=True)
    last = RunInfo("b", 2, title, (0, 1), (0, 1), True, 0.0, 0, failed=failed, is_script=is_script)
    mesh: Any = SimpleNamespace(ranks=ranks, past_runs=lambda: [other, last, later])
    told = Debugger(mesh).why_no_error()
    assert told.endswith(said)
    assert "\n" not in told
