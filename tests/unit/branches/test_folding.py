"""What several ranks say alike becomes one message: nothing is lost, doubled or moved before what it follows."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from monarch_nb.branches.alike import opened, ranks_of
from monarch_nb.branches.folding import (
    COUNTED_COST,
    FLOOD_BYTES,
    FLOOD_RANKS,
    MANY_COST,
    fold,
    ranks_finished,
    ranks_of_equal,
    results_of,
)
from monarch_nb.ground.ranges import Ranges
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


def output(*ranks: pb.RankOutput, run_id: str = "r") -> pb.SessionEvent:
    return pb.SessionEvent(output=pb.Output(run_id=run_id, ranks=ranks))


def wrote(rank: int, *texts: bytes, end: int | None = None) -> pb.RankOutput:
    items = [pb.OutputItem(stdout=text) for text in texts]
    end = sum(map(len, texts)) if end is None else end
    return pb.RankOutput(rank=rank, items=items, cursor=run_pb2.Cursor(stdout_bytes=end))


def shown_of(told: pb.RankOutput) -> bytes:
    return b"".join(item.stdout for item in told.items)


def come_of(output: pb.Output) -> dict[int, bytes]:
    """Return what a message says that each rank wrote."""
    come: dict[int, bytes] = {}
    for each in output.ranks:
        for rank, items, _ in opened(each):
            come[rank] = come.get(rank, b"") + b"".join(item.stdout for item in items)
    return come


def told_of(output: pb.Output) -> dict[int, tuple[int, int]]:
    """Return how many lines and bytes of each rank's stdout a message speaks of, be it that it counts them."""
    counted = output.counted
    told = dict(zip(counted.ranks, zip(counted.stdout_lines, counted.stdout_bytes, strict=True), strict=True))
    for each in output.ranks:
        elided = [item.elided for item in each.items if item.HasField("elided")]
        lines = shown_of(each).count(b"\n") + sum(one.lines for one in elided)
        size_bytes = len(shown_of(each)) + sum(one.size_bytes for one in elided)
        for rank, _ in ranks_of(each):
            before = told.get(rank, (0, 0))
            told[rank] = before[0] + lines, before[1] + size_bytes
    return told


def cursors_of(output: pb.Output) -> dict[int, run_pb2.Cursor]:
    ends = dict(zip(output.counted.ranks, output.counted.cursors, strict=True))
    return ends | {rank: cursor for each in output.ranks for rank, cursor in ranks_of(each)}


def finished(*results: run_pb2.RankResult, run_id: str = "r") -> pb.SessionEvent:
    return pb.SessionEvent(finished=pb.Finished(run_id=run_id, results=results))


def result(rank: int, duration_s: float = 0.0, **more: object) -> run_pb2.RankResult:
    made = run_pb2.RankResult(run_id="r", rank=rank, outcome=run_pb2.OUTCOME_OK, duration_s=duration_s)
    made.MergeFrom(run_pb2.RankResult(**more))  # type: ignore[arg-type]
    return made


def ranges(*numbers: int) -> pb.NumberRanges:
    return pb.NumberRanges(bounds=Ranges.of(numbers).bounds)


def kinds(events: Iterable[pb.SessionEvent]) -> list[str | None]:
    return [event.WhichOneof("message") for event in events]


class TestResults:
    def test_equal_ones_are_one_and_come_out_as_they_went_in(self) -> None:
        results = [result(rank, rank / 8, value_inline=b"v") for rank in range(4)]
        events, _ = fold([finished(*results[:2]), finished(*results[2:])])
        (equal,) = events[0].finished.equal
        assert list(equal.ranks.bounds) == [0, 4]
        assert list(results_of(equal)) == results

    def test_what_differs_stays_apart_but_for_where_files_end(self) -> None:
        ok, value, failed = result(0), result(1, value_inline=b"v"), result(2)
        failed.outcome = run_pb2.OUTCOME_ERROR
        ended = [result(rank, end=run_pb2.Cursor(stdout_bytes=rank)) for rank in (3, 4)]
        events, _ = fold([finished(ok, value, failed, *ended)])
        assert [list(ranks_of_equal(equal)) for equal in events[0].finished.equal] == [[0, 3, 4], [1], [2]]

    def test_folded_again_one_level_up_each_rank_keeps_what_is_its_own(self) -> None:
        below = [fold([finished(*(result(rank, rank / 8) for rank in ranks))])[0][0] for ranks in ([0, 6], [3, 1])]
        (event,), _ = fold([*below, finished(result(4, 0.5))])
        (equal,) = event.finished.equal
        assert {one.rank: one.duration_s for one in results_of(equal)} == {rank: rank / 8 for rank in (0, 1, 3, 4, 6)}
        assert list(equal.ranks.bounds) == [0, 1, 6, 7, 1, 2, 3, 5]
        assert sorted(ranks_finished(event.finished)) == [0, 1, 3, 4, 6]

    def test_a_failure_is_not_joined_with_itself(self) -> None:
        died = result(0, death=run_pb2.Death(stderr_tail=["Killed"]))
        (below,), _ = fold([finished(died)])
        other = run_pb2.RankResult()
        other.CopyFrom(died)
        other.rank = 1
        (equal,) = fold([below, finished(other)])[0][0].finished.equal
        assert list(equal.result.death.stderr_tail) == ["Killed"]


class TestOutput:
    def test_equal_text_of_a_run_is_one(self) -> None:
        events, _ = fold([output(wrote(0, b"a\n")), output(wrote(1, b"a\n"), wrote(2, b"b\n"))])
        first, second = events[0].output.ranks
        assert [rank for rank, _ in ranks_of(first)] == [0, 1]
        assert not first.also_cursors
        assert second.rank == 2
        events, _ = fold([output(wrote(0, b"a\n"), run_id="r"), output(wrote(0, b"a\n"), run_id="s")])
        assert [event.output.run_id for event in events] == ["r", "s"]

    def test_texts_that_are_joined_of_pieces_stay_each_ranks_own(self) -> None:
        """However soon the memory of one is used for the next."""
        pieces = [output(*(wrote(rank, b"%d" % (rank // 2)) for rank in range(50))) for _ in range(2)]
        (event,), _ = fold(pieces)
        assert come_of(event.output) == {rank: b"%d%d" % (rank // 2, rank // 2) for rank in range(50)}

    def test_a_flood_becomes_its_count_but_for_the_end(self) -> None:
        text = b"".join(b"line %d\n" % number for number in range(3000))
        big = [wrote(rank, b"rank %d\n" % rank + text) for rank in range(FLOOD_RANKS)]
        (event,), flooding = fold([output(*big)])
        assert flooding == FLOOD_RANKS
        assert event.ByteSize() < 1.1 * FLOOD_BYTES
        assert not event.output.HasField("counted")
        for each in event.output.ranks:
            assert shown_of(each).endswith(b"line 2999\n")
            assert shown_of(each).startswith(b"line ")
        assert told_of(event.output) == {rank: (3001, len(before.items[0].stdout)) for rank, before in enumerate(big)}

    def test_of_a_flood_on_many_ranks_the_end_of_a_few_is_left(self) -> None:
        text = b"".join(b"line %d\n" % number for number in range(3000))
        big = [wrote(rank, b"rank %d\n" % rank + text) for rank in reversed(range(64))]
        (event,), flooding = fold([output(*big)])
        assert flooding == MANY_COST + COUNTED_COST * (64 - FLOOD_RANKS)
        assert event.ByteSize() < FLOOD_BYTES
        assert sorted(each.rank for each in event.output.ranks) == list(range(FLOOD_RANKS))
        assert all(shown_of(each).endswith(b"line 2999\n") for each in event.output.ranks)
        assert told_of(event.output) == {each.rank: (3001, len(each.items[0].stdout)) for each in big}
        assert cursors_of(event.output) == {each.rank: each.cursor for each in big}

    def test_what_comes_after_a_count_stays_after_it_and_what_came_before_is_counted(self) -> None:
        counted = pb.Counted(ranks=[4], cursors=[run_pb2.Cursor(stdout_bytes=90)])
        for column, amount in (("stdout_lines", 3), ("stdout_bytes", 80), ("stderr_lines", 0), ("stderr_bytes", 0)):
            getattr(counted, column).append(amount)
        below = pb.SessionEvent(output=pb.Output(run_id="r", counted=counted))
        (event,), _ = fold([output(wrote(4, b"before it\n")), below, output(wrote(4, b"end\n", end=94))])
        assert (list(event.output.counted.stdout_lines), list(event.output.counted.stdout_bytes)) == ([4], [90])
        assert shown_of(event.output.ranks[0]) == b"end\n"
        assert cursors_of(event.output) == {4: run_pb2.Cursor(stdout_bytes=94)}

    def test_who_printed_little_is_not_elided_and_equal_floods_are_none(self) -> None:
        loud = [wrote(rank, b"%d\n" % rank * 20_000) for rank in range(8)]
        events, _ = fold([output(*loud, wrote(8, b"hello\n"))])
        assert events[0].output.ranks[-1].items[0].stdout == b"hello\n"
        text = b"x" * (FLOOD_BYTES // 2) + b"\n"
        events, flooding = fold([output(*(wrote(rank, text) for rank in range(64)))])
        assert (flooding, len(events[0].output.ranks)) == (0, 1)

    def test_pictures_are_never_elided(self) -> None:
        loud = [wrote(rank, b"%d\n" % rank * 30_000) for rank in range(8)]
        loud += [wrote(rank, b"%d\n" % rank * 30_000) for rank in (8, 9)]
        for rank in (0, 9):
            loud[rank].items.add(display=run_pb2.Display(content_json="{}"))
        events, _ = fold([output(*loud)])
        pictures = [each.rank for each in events[0].output.ranks for item in each.items if item.HasField("display")]
        assert pictures == [0, 9], "also that of a rank whose text is only counted"


class TestPlaces:
    def seen(self, *places: tuple[int, str | None], look_id: str = "l") -> pb.SessionEvent:
        seen = pb.Seen(look_id=look_id)
        for rank, line in places:
            seen.places.add(ranks=[rank], where=None if line is None else run_pb2.Where(line=line))
        return pb.SessionEvent(seen=seen)

    def test_ranks_at_the_same_place_of_a_look_are_one(self) -> None:
        (below,), _ = fold([self.seen((2, "a.py:1"), (3, None))])
        events, _ = fold([self.seen((0, "a.py:1"), (1, "b.py:2")), below, self.seen((4, None)), self.seen(look_id="m")])
        told = [(list(place.ranks), place.where.line, place.HasField("where")) for place in events[0].seen.places]
        assert told == [([0, 2], "a.py:1", True), ([1], "b.py:2", True), ([3, 4], "", False)]
        assert [event.seen.look_id for event in events] == ["l", "m"]


class TestOrder:
    def test_output_comes_before_the_result_and_queued_before_all(self) -> None:
        events, _ = fold(
            [
                pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=ranges(0))),
                finished(result(0)),
                output(wrote(1, b"a\n")),
                pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=ranges(1))),
                output(wrote(1, b"b\n", end=4)),
                finished(result(1)),
            ]
        )
        assert kinds(events) == ["queued", "output", "finished"]
        assert events[0].queued.nodes == ranges(0, 1)

    def test_what_waits_is_told_apart(self) -> None:
        queued = [
            pb.SessionEvent(queued=pb.Queued(run_id="r", number=1, nodes=ranges(node), ahead=["x"] if node % 2 else []))
            for node in range(4)
        ]
        events, _ = fold(queued)
        assert [event.queued.nodes for event in events] == [ranges(0, 2), ranges(1, 3)]

    def test_the_last_word_on_a_link_counts_and_others_are_left_alone(self) -> None:
        links = [pb.Links(mesh_id="m", down=[1, 2]), pb.Links(mesh_id="m", up=[2])]
        died = pb.SessionEvent(rank_died=pb.RankDied(mesh_id="m", rank=1))
        refused = pb.SessionEvent(refused=pb.Refused(run_id="r", error_json="{}"))
        events, _ = fold([died, *(pb.SessionEvent(links=each) for each in links), refused])
        assert [event for event in events if not event.HasField("links")] == [died, refused]
        assert [event.links for event in events if event.HasField("links")] == [pb.Links(mesh_id="m", down=[1], up=[2])]


def folded_in_a_tree(streams: list[list[pb.SessionEvent]], chosen: random.Random, most: int) -> list[pb.SessionEvent]:
    """Fold events on their way through a random tree, so many at a time at most."""
    while len(streams) > 1:
        left, right = streams.pop(), streams.pop()
        merged: list[pb.SessionEvent] = []
        while left or right:
            source = chosen.choice([each for each in (left, right) if each])
            count = chosen.randrange(1, most)
            merged += fold(source[:count])[0]
            del source[:count]
        streams.insert(0, merged)
    return streams[0]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_folded_where(seed: int) -> None:
    """What each of many ranks wrote comes out, in order."""
    chosen = random.Random(seed)
    written: dict[int, bytes] = dict.fromkeys(range(12), b"")
    streams: list[list[pb.SessionEvent]] = [[] for _ in range(4)]
    for _ in range(200):
        rank = chosen.randrange(12)
        text = chosen.choice([b"a\n", b"b", b"a longer line\n", b"%d\n" % rank, b"loss %d\n" % chosen.randrange(999)])
        written[rank] += text
        streams[rank % 4].append(output(wrote(rank, text, end=len(written[rank]))))
    come: dict[int, bytes] = dict.fromkeys(range(12), b"")
    events = folded_in_a_tree(streams, chosen, 6)
    for event in events:
        for rank, text in come_of(event.output).items():
            come[rank] += text
        for rank, cursor in cursors_of(event.output).items():
            assert cursor.stdout_bytes == len(come[rank])
    assert come == written
    assert any(item.HasField("alike") for event in events for each in event.output.ranks for item in each.items)


@pytest.mark.parametrize("seed", range(5))
def test_wherever_a_flood_is_folded_every_line_is_told_of_once(seed: int) -> None:
    """Of 40 ranks, some of which print alike: what is shown and what is counted is all there was, and no count is said
    to be of what comes before something shown already."""
    chosen = random.Random(seed)
    written = {rank: [0, 0] for rank in range(40)}
    streams: list[list[pb.SessionEvent]] = [[] for _ in range(5)]
    for _ in range(300):
        rank = chosen.randrange(40)
        line = chosen.choice([b"all say this\n", b"rank %d says this\n" % rank])
        text = line * chosen.choice([1, 5, 2_000])
        written[rank][0] += text.count(b"\n")
        written[rank][1] += len(text)
        streams[rank % 5].append(output(wrote(rank, text, end=written[rank][1])))
    come = {rank: [0, 0] for rank in range(40)}
    events = folded_in_a_tree(streams, chosen, 60)
    for event in events:
        for rank, (lines, size_bytes) in told_of(event.output).items():
            come[rank][0] += lines
            come[rank][1] += size_bytes
        for rank, cursor in cursors_of(event.output).items():
            assert cursor.stdout_bytes == come[rank][1]
    assert come == written
    assert any(event.output.HasField("counted") for event in events)
