"""What is sent again of a run, and to whom."""

from __future__ import annotations

from typing import Any

from monarch_nb.branches.passed import PassedRun
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


def passed(number: int = 7, *, ranks: range = range(8), **more: Any) -> PassedRun:
    """A run on four nodes of two ranks."""
    submit = pb.Submit(
        mesh_id="m",
        run=run_pb2.RunSpec(run_id="r", number=number),
        all_ranks=ranks,
        give_number=True,
        earlier=pb.EarlierRuns(by_node={1: 5, 3: 6}),
        **more,
    )
    return PassedRun("m", "r", Ranges.of(ranks), 2, submit=submit)


def ranges(*numbers: int) -> pb.NumberRanges:
    return pb.NumberRanges(bounds=Ranges.of(numbers).bounds)


def request(run: PassedRun, *nodes: int) -> pb.SessionRequest:
    made = run.request(Ranges.of(nodes))
    assert made is not None
    return made


def again(run: PassedRun, *nodes: int) -> pb.SessionRequest:
    made = run.replay(Ranges.of(nodes))
    assert made is not None
    return made


def test_each_part_learns_all_ranks_and_what_came_before_there() -> None:
    submit = request(passed(), 1, 3).submit
    assert list(submit.all_ranks) == list(range(8))
    assert dict(submit.earlier.by_node) == {1: 5, 3: 6}
    assert not submit.give_number, "only the first node does"
    assert request(passed(), 0, 2).submit.give_number


def test_without_a_number_only_who_gives_it_is_told_and_the_others_learn_what_came_before() -> None:
    run = passed(number=0)
    assert run.request(Ranges.of([1, 2])) is None
    assert request(run, 0, 1).submit.give_number
    run.submit.run.number = 9  # type: ignore[union-attr]
    run.on_queued(pb.Queued(run_id="r", number=9, earlier=pb.EarlierRuns(of_others=8), nodes=ranges(0)))
    run.on_queued(pb.Queued(run_id="r", number=9, nodes=ranges(1)))
    submit = request(run, 1).submit
    assert (submit.run.number, submit.earlier.of_others) == (9, 8)


def test_it_goes_on_from_the_cursors_and_in_the_same_files() -> None:
    run = passed()
    run.on_queued(pb.Queued(run_id="r", number=7, output=4, nodes=ranges(1, 2)))
    shown, folded, counted = (run_pb2.Cursor(stdout_bytes=size) for size in (3, 5, 20))
    text = pb.RankOutput(rank=2, cursor=shown, also=[4], also_cursors=[folded])
    run.on_output(pb.Output(run_id="r", ranks=[text], counted=pb.Counted(ranks=[6], cursors=[counted])))
    submit = request(run, 1, 2, 3).submit
    assert dict(submit.outputs) == {1: 4, 2: 4}
    assert {rank: cursor.stdout_bytes for rank, cursor in submit.cursors.items()} == {2: 3, 4: 5, 6: 20}


def test_where_all_have_finished_it_is_only_followed() -> None:
    run = passed()
    run.on_finished(
        pb.Finished(run_id="r", results=[run_pb2.RankResult(rank=2)], equal=[pb.EqualResults(ranks=ranges(3))])
    )
    assert request(run, 1).WhichOneof("message") == "follow"
    assert list(request(run, 1).follow.ranks) == [2, 3]
    assert request(run, 1, 2).WhichOneof("message") == "submit"
    assert not run.done


def test_a_replay_asks_again_from_the_beginning_also_those_that_were_quiet() -> None:
    run, unnumbered = passed(quiet=True), passed(number=0)
    assert request(run, 1).submit.quiet
    run.on_output(pb.Output(run_id="r", ranks=[pb.RankOutput(rank=2, cursor=run_pb2.Cursor(stdout_bytes=3))]))
    run.restart()
    replay = again(run, 1, 2)
    assert (list(replay.follow.ranks), len(replay.follow.cursors)) == ([2, 3, 4, 5], 0)
    assert not request(run, 1).submit.quiet
    assert unnumbered.replay(Ranges.of([1, 2])) is None, "before it has its number, only the first and those below it"
    replay = again(unnumbered, 0, 1)
    assert list(replay.follow.ranks) == [0, 1, 2, 3]


def test_a_run_of_somebody_else_is_followed_from_what_was_shown() -> None:
    run = PassedRun("m", "r", Ranges.of(range(8)), 2, from_shown=True)
    follow = request(run, 3).follow
    assert (list(follow.ranks), follow.from_shown) == ([6, 7], True)


def test_it_is_taken_in_when_every_node_has_said_so_and_the_last_output_named_counts() -> None:
    run = passed()
    run.on_queued(pb.Queued(run_id="r", number=7, output=4, nodes=ranges(0, 1, 2)))
    assert list(run.not_taken_in) == [3]
    run.on_queued(pb.Queued(run_id="r", number=7, output=4, nodes=ranges(3)))
    assert not run.not_taken_in
    run.on_queued(pb.Queued(run_id="r", number=7, output=7, nodes=ranges(2)))
    run.on_queued(pb.Queued(run_id="r", number=7, output=4, nodes=ranges(2)))
    assert dict(request(run, 1, 2).submit.outputs) == {1: 4, 2: 4}
    run.on_queued(pb.Queued(run_id="r", number=7, output=7, nodes=ranges(1)))
    assert dict(request(run, 1, 2).submit.outputs) == {1: 7, 2: 4}
