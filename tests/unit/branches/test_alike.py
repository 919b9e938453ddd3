"""Lines that differ only in numbers go as one message, from which comes what each rank wrote."""

from __future__ import annotations

import random

from monarch_nb.branches.alike import of_some, opened, pack, ranks_of
from monarch_nb.branches.folding import joined_alike
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


def wrote(rank: int, *pieces: tuple[str, bytes]) -> pb.RankOutput:
    items = [pb.OutputItem(**{stream: text}) for stream, text in pieces]  # type: ignore[arg-type]
    return pb.RankOutput(rank=rank, items=items, cursor=run_pb2.Cursor(stdout_bytes=100 + rank))


def texts_of(told: list[pb.RankOutput]) -> dict[int, list[tuple[str, bytes]]]:
    """Return what each rank wrote: pieces of one stream after the other are one."""
    texts: dict[int, list[tuple[str, bytes]]] = {}
    for each in told:
        for rank, items, cursor in opened(each):
            assert cursor.stdout_bytes == 100 + rank
            found = texts.setdefault(rank, [])
            for item in items:
                kind = item.WhichOneof("item") or ""
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + getattr(item, kind))
                else:
                    found.append((kind, getattr(item, kind)))
    return texts


def test_lines_that_differ_in_numbers_are_one_message_as_long_as_their_numbers() -> None:
    step = "step: 5  loss: 2.{:04}  tps: {:,}\n"
    told = [wrote(rank, ("stdout", step.format(17 * rank, 9000 + rank).encode() * 20)) for rank in range(8)]
    before = texts_of(told)
    (packed,) = pack(told)
    assert [rank for rank, _ in ranks_of(packed)] == [*range(8)]
    assert packed.ByteSize() < 0.6 * sum(each.ByteSize() for each in told)
    assert texts_of([packed]) == before


def test_a_rank_that_is_ahead_goes_with_the_others_as_far_as_they_are() -> None:
    told = [wrote(rank, ("stdout", b"step: 1  loss: %d\nstep: 2  loss: %d\n" % (rank, rank))) for rank in range(3)]
    told.append(wrote(3, ("stdout", b"step: 1  loss: 7\n")))
    before = texts_of(told)
    packed = pack(told)
    assert [[rank for rank, _ in ranks_of(each)] for each in packed] == [[0, 1, 2, 3], [0, 1, 2]]
    assert texts_of(packed) == before


def test_of_packed_lines_some_ranks_can_be_chosen() -> None:
    told = [wrote(rank, ("stderr", b"loss %d\n" % (rank % 2))) for rank in range(4)]
    (packed,) = pack(told)
    assert [of_some(packed.items[0], indexes) for indexes in ([0, 2], [3])] == [
        pb.OutputItem(stderr=b"loss 0\n"),
        pb.OutputItem(stderr=b"loss 1\n"),
    ], "those that are equal are plain text again"
    (few,) = [of_some(packed.items[0], [3, 0])]
    assert few.alike.text == "loss 1\n"


def test_whatever_ranks_write_comes_out_of_the_message() -> None:
    """Also what is no text, is no whole line, or moves the cursor."""
    pieces = [b"loss %d\n", b"step %d\n", b"\x1b[3%dmred\x1b[0m\n", b"%d%%\r", b"half %d", b"\xff %d\n", b"a\n\nb %d\n"]
    for seed in range(10):
        chance, told = random.Random(seed), []
        for rank in chance.sample(range(60), 12):
            streams = [chance.choice(["stdout", "stderr"]) for _ in range(chance.randrange(1, 5))]
            told.append(wrote(rank, *((stream, chance.choice(pieces) % chance.randrange(3)) for stream in streams)))
        before = texts_of(told)
        joined = [joined_alike((one.rank, list(one.items), one.cursor) for one in told[at::3]) for at in range(3)]
        assert texts_of([each for part in joined for each in pack(part)]) == before
