"""The order of a series: what is run, what is not, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.logs.records import LogRecord
from monarch_nb.client.meshes.scaling import Series
from monarch_nb.client.meshes.scaling_report import Plan, ScalingReport
from monarch_nb.errors import MeshNotFound, RankDead, UsageError

Wait = Callable[[Any], None]


class FakeMesh:
    """8 ranks with a process group of all; they print `lines`, and runs return `values`."""

    def __init__(self) -> None:
        self.ranks, self.flag, self.group = tuple(range(8)), "", 8
        self.done: list[str] = []
        self.lines: list[str] = []
        self.value: Any = None

    def end_groups(self) -> int:
        self.done.append("end groups")
        ended, self.group = self.group, 0
        return ended

    def log_batches(self, ranks: Iterable[int], lines: int | None, run: Any) -> Iterator[list[LogRecord]]:
        kept = self.lines if lines is None else self.lines[-lines:]
        yield [LogRecord(rank, "stdout", run.number, f"{line}\n") for rank in ranks for line in kept]

    def submit(self, ranks: tuple[int, ...]) -> Any:
        self.done.append(f"{len(ranks)}")
        self.group = len(ranks)
        results = {rank: SimpleNamespace(duration_s=1.0 + rank) for rank in ranks}
        values = [self.value] * len(ranks)
        return SimpleNamespace(
            ranks=ranks, results=results, number=len(self.done), kept_values=values, done=True, refusal=None
        )


def series(mesh: FakeMesh, plan: Plan, wait: Wait = lambda _: None, **options: Any) -> Series:
    return Series(mesh, plan, mesh.submit, wait, **options)  # type: ignore[arg-type]


def at(size: int, do: Wait) -> Wait:
    return lambda run: do(run) if len(run.ranks) == size else None


def fail(error: BaseException) -> Wait:
    def wait(_: Any) -> None:
        raise error

    return wait


def test_groups_end_before_each_run_and_after_the_last() -> None:
    mesh, shown = FakeMesh(), list[ScalingReport]()
    report = series(mesh, Plan((1, 2)), show=shown.append).measure()
    assert mesh.done == ["end groups", "1", "end groups", "2", "end groups"]
    assert [(row.time_s, row.run) for row in report.rows] == [(1.0, 2), (2.0, 4)]
    assert [[row.time_s for row in each.rows] for each in shown] == [[1.0], [1.0, 2.0], [1.0, 2.0]]
    assert report.notes[0].startswith("the process group of 8 ranks was ended for this: call dist.init_process_group()")
    assert report.notes[1] == "runs 2, 4: %mesh logs --run 4 has what the last one printed"


def test_a_failure_ends_its_size_alone() -> None:
    mesh = FakeMesh()
    report = series(mesh, Plan((1, 2, 4)), at(2, fail(RankDead("rank 1 is dead\nmore")))).measure()
    assert [row.failure for row in report.rows] == ["", "rank 1 is dead", ""]


def test_a_number_that_can_not_be_read_is_a_failure_without_a_time() -> None:
    mesh = FakeMesh()

    def log_batches(*_: Any) -> Any:
        raise RankDead("node1 is gone")

    mesh.log_batches = log_batches  # type: ignore[method-assign]
    report = series(mesh, Plan((1,), "tokens")).measure()
    assert [(row.time_s, row.failure) for row in report.rows] == [(None, "node1 is gone")]


def test_an_interrupt_ends_the_series() -> None:
    mesh = FakeMesh()
    made = series(mesh, Plan((1, 2, 4)), at(2, fail(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        made.measure()
    assert [row.failure for row in made.report.rows] == ["", "interrupted"]
    assert mesh.done[-2:] == ["2", "end groups"]


def test_ranks_that_do_not_stop_end_the_series() -> None:
    """What comes next would wait for them for ever, and so would the end of groups."""

    def hang(run: Any) -> None:
        run.done = False
        raise TimeoutError("not finished after 5 s; rank 1 does not stop")

    mesh = FakeMesh()
    report = series(mesh, Plan((1, 2, 4)), at(2, hang)).measure()
    assert mesh.done[-1] == "2"
    assert report.rows[-1].failure == "not finished after 5 s; rank 1 does not stop"


def test_a_mesh_that_is_gone_is_an_error() -> None:
    mesh = FakeMesh()
    with pytest.raises(MeshNotFound):
        series(mesh, Plan((1, 2)), fail(MeshNotFound("released"))).measure()
    assert "2" not in mesh.done


@pytest.mark.parametrize(
    ("lines", "value", "told"),
    [
        (["tokens: 1", "tokens: 5"], None, 10),
        (["tokens: 5"], {"tokens": 7}, 14),
        (["tokens: 5"], 7, 10),
        ([], 7, 14),
        (["tokens: 5", *["more"] * 2000], None, 10),
        (["tokens: nan"], None, None),
        (["token: 5", "loss=2.0"], True, None),
    ],
)
def test_numbers_of_two_ranks(lines: list[str], value: Any, told: float | None) -> None:
    mesh = FakeMesh()
    mesh.lines, mesh.value = lines, value
    report = series(mesh, Plan((2,), "tokens")).measure()
    assert report.rows[0].throughput == (told and told / 2), "in 2 s"


def test_a_name_that_nobody_tells_ends_the_series_after_its_first_run() -> None:
    mesh = FakeMesh()
    mesh.lines = ["token: 5"]
    made = series(mesh, Plan((2, 4), "tokens"))
    with pytest.raises(UsageError, match=r"no tokens in what .* it printed token; nothing else was run"):
        made.measure()
    assert mesh.done == ["end groups", "2", "end groups"]
    assert [row.time_s for row in made.report.rows] == [2.0]
    assert len(made.report.notes) == 2, "of the group, and where the output is: the error says the rest"


def test_a_name_that_only_some_sizes_tell_is_a_note() -> None:
    mesh = FakeMesh()
    mesh.lines = ["tokens: 5"]

    def forget(_: Any) -> None:
        mesh.lines = []

    report = series(mesh, Plan((1, 2, 4), "tokens"), at(2, forget)).measure()
    assert [row.throughput for row in report.rows] == [5.0, None, None]
    assert any(note.startswith("no tokens in what the cell printed or returned on 2 ranks") for note in report.notes)
