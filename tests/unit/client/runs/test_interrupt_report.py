"""What there is to say of ranks that were interrupted."""

from __future__ import annotations

import pytest

from monarch_nb.client.runs.interrupting import ABORTED, PRESS, InterruptReport, handled_by, place_of

RUN, AGAIN = "run 34, cell [3]", "within 10 s to kill and restart"


def test_how_an_optimizers_state_is_sent_is_said() -> None:
    assert ABORTED.endswith("send rank 0's optimizer (broadcast_object_list)")


class TestInterruptReport:
    @pytest.mark.parametrize(
        ("report", "says"),
        [
            (InterruptReport(), "nothing was running"),
            (InterruptReport(stopped=(0,), aborted=(0,)), f"interrupted rank 0; {ABORTED}"),
            (InterruptReport(stuck={3: "at a.py:7"}), "rank 3 does not stop (at a.py:7)"),
            (
                InterruptReport(stuck=dict.fromkeys((0, 1), place_of(None))),
                "ranks 0-1 do not stop (no answer: native code holds the interpreter)",
            ),
            (
                InterruptReport(stuck={3: "at a.py:7"}, kills=frozenset({3})),
                f"rank 3 does not stop (at a.py:7): interrupt(kill_stuck=True) {AGAIN} it",
            ),
            (
                InterruptReport(stuck={3: "at a.py:7"}, handling={1: "since 12 s, at b.py:2"}, kills=frozenset({3})),
                (
                    f"rank 3 does not stop (at a.py:7): interrupt(kill_stuck=True) {AGAIN} it; "
                    "rank 1 handles the interrupt (since 12 s, at b.py:2)"
                ),
            ),
            (InterruptReport(restarted=(3,)), "killed and restarted rank 3: their variables are lost"),
            (InterruptReport(unbegun=(0, 1), ahead=(RUN,)), f"not begun: removed from the queue; {RUN} goes on"),
            (
                InterruptReport(unbegun=(0, 1), ahead=("run 3", "run 4"), may_stop_ahead=True),
                "not begun: removed from the queue; run 3; run 4 go on: %mesh interrupt stops them",
            ),
            (
                InterruptReport(stopped=(0, 1), unbegun=(2,), ahead=("run 3", "run 4")),
                "interrupted ranks 0-1; not begun on rank 2: removed from the queue; run 3; run 4 go on",
            ),
            (
                InterruptReport.of(
                    {RUN: InterruptReport(stopped=(0, 1)), "b": InterruptReport(stopped=(2,))}, dropped=["c"]
                ),
                f"interrupted {RUN}, on ranks 0-1 and b on rank 2; dropped 1 that waited: c",
            ),
            (
                InterruptReport(dropped=tuple(f"run {number}" for number in range(1, 13))),
                "dropped 12 that waited: run 1; run 2; run 3; and 9 more",
            ),
            (
                InterruptReport(
                    stuck={3: "at a.py:7", 4: "at b.py:1", 5: "at a.py:7"}, kills=frozenset({3, 4, 5}), again=PRESS
                ),
                f"ranks 3-5 do not stop (in 2 places: %mesh stacks): interrupt again {AGAIN} them",
            ),
            (
                InterruptReport(unreachable={1: "host2"}),
                "rank 1 can not be reached and goes on: host2 does not answer (%mesh status)",
            ),
            (
                InterruptReport(unreachable={1: "host2", 2: "host3"}),
                "ranks 1-2 can not be reached and go on: host2 and 1 more node do not answer (%mesh status)",
            ),
        ],
    )
    def test_it_reads_well(self, report: InterruptReport, says: str) -> None:
        assert str(report) == says

    @pytest.mark.parametrize("is_aborted", [False, True])
    def test_an_interrupted_cell_says_two_lines_at_most(self, is_aborted: bool) -> None:
        stuck = {rank: f"in all_reduce at train.py:{rank}" for rank in range(4)} if not is_aborted else {}
        unreachable = {rank: f"host{rank}" for rank in range(8, 64)}
        report = InterruptReport(
            stopped=(4, 5), free=(6, 7), stuck=stuck, unreachable=unreachable, aborted=(4, 5) if is_aborted else ()
        )
        assert len(f"KeyboardInterrupt: {report}") <= 2 * 130, str(report)

    def test_several_are_told_as_one(self) -> None:
        first = InterruptReport(stopped=(0, 1), free=(5,), stuck={2: "at a.py:1"}, unreachable={3: "node1"})
        both = first.then(InterruptReport(free=(0, 1, 5), restarted=(2,), unreachable={3: "node1"}))
        assert (both.stopped, both.free, both.stuck, both.restarted) == ((0, 1), (5,), {}, (2,))
        assert both.unreachable == {3: "node1"}

    def test_ranks_that_finished_since_are_neither_stuck_nor_out_of_reach(self) -> None:
        report = InterruptReport(stopped=(0,), stuck={1: "at a.py:1"}, unreachable={2: "node1", 3: "node1"})
        assert report.as_of([0, 1, 2]) == InterruptReport(stopped=(0, 1, 2), unreachable={3: "node1"})


def test_of_a_run_that_had_ended_before_the_press_nothing_is_said() -> None:
    assert handled_by([1, 0]) == "interrupted; ranks 0-1 went on to the end"
    assert handled_by(()) == ""
