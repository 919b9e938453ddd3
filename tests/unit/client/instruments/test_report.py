"""What is said of ranks' memory: ranks that hold the same are one."""

from __future__ import annotations

from typing import Any

from monarch_nb.client.instruments.memory import MemoryReport, RankMemory, released_line
from monarch_nb.worker.memory import GpuFigures

GB = 1 << 30
HELD: tuple[Any, ...] = (
    (("model.weight", "[512, 512] float32 cuda", GB, ("tied",)), ("", "[9] float32 cuda", 36, ())),
    1,
    {"cuda": GB},
    1,
    {"cuda": 36},
    True,
)


def of(rank: int, held: tuple[Any, ...] = HELD, gpu: tuple[int, ...] | None = None, pss: int = GB) -> RankMemory:
    return RankMemory.told(rank, {"pss": pss, "greatest_rss": 2 * GB, "gpu": gpu, "held": held})


def test_ranks_that_hold_the_same_are_one() -> None:
    gpu = (3 * GB, 4 * GB, GB // 2, 5 * GB, 60 * GB, 80 * GB)
    more = (3 * GB, 6 * GB, GB // 2, 5 * GB, 58 * GB, 80 * GB)
    other = ((*HELD[0], ("leak", "[7] float32 cuda", 28, ())), 2, *HELD[2:])
    report = MemoryReport(
        (of(0, gpu=gpu), of(1, gpu=more, pss=2 * GB), of(2, other, gpu), RankMemory(3, GB)), ("rank 3 computes",)
    )
    assert [row[:7] for row in report.figure_rows()[1:]] == [
        *[("0-1", "3.0 GiB", "4.0 GiB to 6.0 GiB", "1.0 GiB to 3.0 GiB", "512 MiB", "5.0 GiB", "58 GiB to 60 GiB")],
        *[("2", "3.0 GiB", "4.0 GiB", "1.0 GiB", "512 MiB", "5.0 GiB", "60 GiB")],
        *[("3", "", "", "", "", "", "")],
    ]
    assert [row[7:] for row in report.figure_rows()] == [
        ("main memory (PSS)", "greatest (RSS)"),
        ("1.0 GiB to 2.0 GiB", "2.0 GiB"),
        ("1.0 GiB", "2.0 GiB"),
        ("1.0 GiB", ""),
    ]
    rest = "2.0 GiB of the GPU is held by the backward's graph and libraries"
    (first, _), (second, rows) = report.tensor_tables()
    assert first == f"ranks 0-1: 1 tensor with a name (1.0 GiB cuda), 1 without one (36 B cuda), {rest}"
    assert second == f"rank 2: 2 tensors with a name (1.0 GiB cuda), 1 without one (36 B cuda), {rest}"
    assert rows == [
        ("size", "tensor", "what", "also"),
        ("1.0 GiB", "model.weight", "[512, 512] float32 cuda", "tied"),
        ("36 B", "(no name)", "[9] float32 cuda", ""),
        ("28 B", "leak", "[7] float32 cuda", ""),
    ]
    assert str(report).splitlines()[-1] == "rank 3 computes"


def test_without_gpus_only_main_memory_is_told() -> None:
    report = MemoryReport((of(0, ((), 0, {}, 0, {}, False)),))
    assert str(report) == "  rank  main memory (PSS)  greatest (RSS)\n  0     1.0 GiB            2.0 GiB"


def test_many_groups_are_told_together() -> None:
    ranks = tuple(
        of(rank, (((f"x{rank}", "[7] float32 cpu", 28, ()),), 1, {"cpu": 28}, 0, {}, True)) for rank in range(20)
    )
    report = MemoryReport((*ranks, RankMemory(20, GB)))
    assert [row[0] for row in report.figure_rows()] == ["rank", "0-19", "20"]
    assert [rows[1][1] for _, rows in report.tensor_tables()] == ["x0", "x1", "x2", "x3"]
    assert report.notes() == ["16 groups of ranks more, with other tensors: mesh.memory().ranks has all"]


def test_what_ranks_gave_back_and_what_holds_the_rest() -> None:
    gpu = GpuFigures(3 * GB, 4 * GB, GB // 2, 5 * GB, 60 * GB, 80 * GB)
    empty = GpuFigures(0, 0, 0, 5 * GB, 60 * GB, 80 * GB)
    holding = [RankMemory(rank, GB, gpu=gpu, released=(rank + 1) * GB) for rank in range(2)]
    assert released_line([*holding, RankMemory(2, GB)]).startswith(
        "ranks 0-1 gave back 1.0 GiB to 2.0 GiB of GPU memory. Blocks with tensors hold 4.0 GiB: del what you"
    )
    said = released_line([RankMemory(0, GB, gpu=empty, released=GB)])
    assert said.startswith("rank 0 gave back 1.0 GiB of GPU memory; no tensors are left there")
    assert released_line([RankMemory(0, GB)]) == "no rank that answered uses a GPU: there is no GPU memory to give back"
