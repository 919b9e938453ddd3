"""What several ranks say alike becomes one message: nothing is lost, doubled or moved before what it follows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from monarch_nb.branches.folding import FLOOD_BYTES, fold, ranks_of, results_of
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


def output(*ranks: pb.RankOutput, run_id: str = "r") -> pb.SessionEvent:
    return pb.SessionEvent(output=pb.Output(run_id=run_id, ranks=ranks))


def wrote(rank: int, *texts: bytes, end: int | None = None) -> pb.RankOutput:
    items = [pb.OutputItem(stdout=text) for text in texts]
    end = sum(map(len, texts)) if end is None else end
    return pb.RankOutput(rank=rank, items=items, cursor=run_pb2.Cursor(stdout_bytes=end))


def finished(*results: run_pb2.RankResult, run_id: str = "r") -> pb.SessionEvent:
    return pb.SessionEvent(finished=pb.Finished(run_id=run_id, results=results))


def result(rank: int, duration_s: float = 0.0, **more: object) -> run_pb2.RankResult:
    made = run_pb2.RankResult(run_id="r", rank=rank, outcome=run_pb2.OUTCOME_OK, duration_s=duration_s)
    made.MergeFrom(run_pb2.RankResult(**more))  # type: ignore[arg-type]
    return made


def kinds(events: Iterable[pb.SessionEvent]) -> list[str | None]:
    return [event.WhichOneof("message") for event in events]


class TestResults:
    def test_equal_ones_are_one_and_come_out_as_they_went_in(self) -> None:
        results = [result(rank, rank / 8, value_inline=b"v") for rank in range(4)]
        events, _ = fold([finished(*results[:2]), finished(*results[2:])])
        (equal,) = events[0].finished.equal
        assert list(equal.ranks) == [0, 1, 2, 3]
        assert list(results_of(equal)) == results

    def test_what_differs_stays_apart(self) -> None:
        ok, value, failed = result(0), result(1, value_inline=b"v"), result(2)
        failed.outcome = run_pb2.OUTCOME_ERROR
        events, _ = fold([finished(ok, value, failed)])
        assert [list(equal.ranks) for equal in events[0].finished.equal] == [[0], [1], [2]]

    def test_folded_again_one_level_up(self) -> None:
        (below,), _ = fold([finished(result(3, 0.3), result(4, 0.4))])
        events, _ = fold([below, finished(result(0, 0.1))])
        (equal,) = events[0].finished.equal
        assert [(one.rank, one.duration_s) for one in results_of(equal)] == [(3, 0.3), (4, 0.4), (0, 0.1)]

    def test_where_files_end_is_for_nobody_above(self) -> None:
        ended = [result(rank, end=run_pb2.Cursor(stdout_bytes=rank)) for rank in range(2)]
        events, _ = fold([finished(*ended)])
        assert len(events[0].finished.equal) == 1


class TestOutput:
    def test_equal_text_is_one(self) -> None:
        events, _ = fold([output(wrote(0, b"a\n")), output(wrote(1, b"a\n"), wrote(2, b"b\n"))])
        first, second = events[0].output.ranks
        assert [rank for rank, _ in ranks_of(first)] == [0, 1]
        assert not first.also_cursors
        assert second.rank == 2

    def test_cursors_stay_each_ranks_own(self) -> None:
        ends = {0: 2, 1: 2, 2: 12, 3: 2}
        (below,), _ = fold([output(*(wrote(rank, b"a\n", end=end) for rank, end in ends.items()))])
        (above,), _ = fold([below, output(wrote(4, b"a\n", end=7))])
        (joined,) = above.output.ranks
        assert {rank: cursor.stdout_bytes for rank, cursor in ranks_of(joined)} == {**ends, 4: 7}

    def test_text_of_a_rank_is_joined_in_order(self) -> None:
        events, _ = fold([output(wrote(0, b"a", end=1)), output(wrote(0, b"b\n", end=3), wrote(1, b"ab\n"))])
        (joined,) = events[0].output.ranks
        assert joined.items[0].stdout == b"ab\n"
        assert [(rank, cursor.stdout_bytes) for rank, cursor in ranks_of(joined)] == [(0, 3), (1, 3)]

    def test_runs_stay_apart(self) -> None:
        events, _ = fold([output(wrote(0, b"a\n"), run_id="r"), output(wrote(0, b"a\n"), run_id="s")])
        assert [event.output.run_id for event in events] == ["r", "s"]

    def test_a_flood_becomes_its_count_but_for_the_end(self) -> None:
        text = b"".join(b"line %d\n" % number for number in range(3000))
        ranks = 64
        big = [wrote(rank, b"rank %d\n" % rank + text) for rank in range(ranks)]
        events, is_flood = fold([output(*big)])
        assert is_flood
        assert events[0].ByteSize() < 1.1 * FLOOD_BYTES
        for each, before in zip(events[0].output.ranks, big, strict=True):
            shown = b"".join(item.stdout for item in each.items)
            elided = [item.elided for item in each.items if item.HasField("elided")]
            assert shown.endswith(b"line 2999\n")
            assert shown.startswith(b"line ")
            assert shown.count(b"\n") + sum(one.lines for one in elided) == 3001
            assert len(shown) + sum(one.size_bytes for one in elided) == len(before.items[0].stdout)
            assert each.cursor == before.cursor

    def test_who_printed_little_is_not_elided(self) -> None:
        loud = [wrote(rank, b"%d\n" % rank * 20_000) for rank in range(8)]
        events, _ = fold([output(*loud, wrote(8, b"hello\n"))])
        assert events[0].output.ranks[-1].items[0].stdout == b"hello\n"

    def test_pictures_are_never_elided(self) -> None:
        loud = [wrote(rank, b"%d\n" % rank * 30_000) for rank in range(8)]
        loud[0].items.add(display=run_pb2.Display(content_json="{}"))
        events, _ = fold([output(*loud)])
        assert sum(item.HasField("display") for each in events[0].output.ranks for item in each.items) == 1

    def test_equal_floods_are_none(self) -> None:
        text = b"x" * (FLOOD_BYTES // 2) + b"\n"
        events, is_flood = fold([output(*(wrote(rank, text) for rank in range(64)))])
        assert not is_flood
        assert len(events[0].output.ranks) == 1


class TestOrder:
    def test_output_comes_before_the_result_and_queued_before_all(self) -> None:
        events, _ = fold(
            [
                pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=[0])),
                finished(result(0)),
                output(wrote(1, b"a\n")),
                pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=[1])),
                output(wrote(1, b"b\n", end=4)),
                finished(result(1)),
            ]
        )
        assert kinds(events) == ["queued", "output", "finished"]
        assert list(events[0].queued.nodes) == [0, 1]

    def test_what_waits_is_told_apart(self) -> None:
        queued = [
            pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=[node], ahead=["x"] if node % 2 else []))
            for node in range(4)
        ]
        events, _ = fold(queued)
        assert [list(event.queued.nodes) for event in events] == [[0, 2], [1, 3]]

    def test_the_last_word_on_a_link_counts(self) -> None:
        links = [pb.Links(mesh_id="m", down=[1, 2]), pb.Links(mesh_id="m", up=[2])]
        events, _ = fold([pb.SessionEvent(links=each) for each in links])
        assert (list(events[0].links.down), list(events[0].links.up)) == ([1], [2])

    def test_others_are_left_alone(self) -> None:
        died = pb.SessionEvent(rank_died=pb.RankDied(mesh_id="m", rank=1))
        refused = pb.SessionEvent(refused=pb.Refused(run_id="r", error_json="{}"))
        assert fold([died, refused])[0] == [died, refused]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_folded_where(seed: int) -> None:
    """Events of many ranks, folded on their way through a random tree: what each rank wrote comes out, in order."""
    chosen = random.Random(seed)
    written: dict[int, bytes] = dict.fromkeys(range(12), b"")
    streams: list[list[pb.SessionEvent]] = [[] for _ in range(4)]
    for _ in range(200):
        rank = chosen.randrange(12)
        text = chosen.choice([b"a\n", b"b", b"a longer line\n", b"%d\n" % rank])
        written[rank] += text
        streams[rank % 4].append(output(wrote(rank, text, end=len(written[rank]))))
    while len(streams) > 1:
        left, right = streams.pop(), streams.pop()
        merged: list[pb.SessionEvent] = []
        while left or right:
            source = chosen.choice([each for each in (left, right) if each])
            count = chosen.randrange(1, 6)
            merged += fold(source[:count])[0]
            del source[:count]
        streams.insert(0, merged)
    come: dict[int, bytes] = dict.fromkeys(range(12), b"")
    for event in streams[0]:
        for each in event.output.ranks:
            for rank, cursor in ranks_of(each):
                come[rank] += b"".join(item.stdout for item in each.items)
                assert cursor.stdout_bytes == len(come[rank])
    assert come == written
