"""When an engine is asked for more nodes, how many, and what becomes of what was asked for in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.choosing import Shape, lacking
from monarch_nb.client.reservations import jobs
from monarch_nb.client.reservations.jobs import Asking, Ended, end_jobs_of, end_unused, with_further_nodes
from monarch_nb.config import TrustPaths
from monarch_nb.errors import CapacityError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.launchers import Job
from monarch_nb.times import Duration

FIRST = Job("slurm", "1", "dev", "slurm-dev", 2, 1, 0, TrustPaths(Path("/nowhere")))
POOL: Any = SimpleNamespace(name="slurm-dev")


def silent(_: str) -> None:
    pass


class Engine:
    """An engine that is asked for jobs; `ended` are those that were given back."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float, float | None]] = []
        self.ended: list[int] = []

    def add(self, like: Job, nodes: int, time_s: float, longest_s: float | None, _: object) -> int:
        assert like is FIRST
        self.asked.append((nodes, time_s, longest_s))
        return nodes


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(jobs.jobs, "job_of_pool", {"slurm-dev": FIRST}.get)
    monkeypatch.setattr(jobs.jobs, "add", made.add)

    def end(_pool: object, some: list[int], _say: object) -> Ended:
        made.ended.extend(some)
        return Ended()

    monkeypatch.setattr(jobs, "end_unused", end)
    return made


def missing(*counts: int, left_s: float = 0.0) -> Callable[[], Any]:
    """Nodes that are missing, each time it is asked."""
    told: Iterator[int] = iter(counts)

    async def ask() -> tuple[int, float]:
        return next(told), left_s

    return ask


def taken(wait: bool | Duration) -> str:
    return f"taken, wait={wait}"


def test_as_many_as_are_missing_are_asked_for(engine: Engine) -> None:
    assert with_further_nodes(POOL, Asking(True), missing(0), silent, taken) == "taken, wait=False"
    assert engine.asked == [], "enough are free"
    assert with_further_nodes(POOL, Asking(False), missing(2, 0), silent, taken) == "taken, wait=False"
    assert engine.asked == [(2, 0.0, None)]
    with_further_nodes(POOL, Asking(False), missing(3, 1, 0), silent, taken)
    assert [nodes for nodes, *_ in engine.asked] == [2, 3, 1], "one went away while it was waited for"
    assert engine.ended == []


def test_it_is_not_asked_for_ever(engine: Engine) -> None:
    """The new nodes have less than was asked for, say."""

    def refuse(_: bool | Duration) -> None:
        raise CapacityError("only 0 of 1 can take 8 gpus")

    with pytest.raises(CapacityError, match="can take 8 gpus"):
        with_further_nodes(POOL, Asking(False), missing(2, 2, 2), silent, refuse)
    assert engine.ended == [2], "what was asked for in vain is given back"


def test_what_others_took_meanwhile_is_asked_for(engine: Engine) -> None:
    """It was free when it was counted."""
    refusals = [CapacityError("only 0 of 1 can take 1 proc")]

    def take(wait: bool | Duration) -> str:
        if refusals:
            raise refusals.pop()
        return taken(wait)

    assert with_further_nodes(POOL, Asking(False), missing(0, 1, 0), silent, take) == "taken, wait=False"
    assert [nodes for nodes, *_ in engine.asked] == [1]
    assert engine.ended == []


def test_others_are_not_raced_for_ever(engine: Engine) -> None:
    def refuse(_: bool | Duration) -> None:
        raise CapacityError("others were faster")

    with pytest.raises(CapacityError, match="others were faster"):
        with_further_nodes(POOL, Asking(False), missing(*[0] * 100), silent, refuse)


def test_it_is_for_what_is_left_of_the_time_or_what_is_said(engine: Engine) -> None:
    for time, wait in ((None, False), ("2h", "30m")):
        with_further_nodes(POOL, Asking(wait, time), missing(1, 0, left_s=600.0), silent, taken)
    assert engine.asked == [(1, 600.0 + jobs.jobs.SOONER_S, None), (1, 7200.0, 1800.0)]


def test_a_pool_that_no_job_was_made_for_is_as_it_was(engine: Engine) -> None:
    lab: Any = SimpleNamespace(name="lab")
    assert with_further_nodes(lab, Asking("2h"), missing(), silent, taken) == "taken, wait=2h"
    with pytest.raises(UsageError, match="--time is for nodes of an engine"):
        with_further_nodes(lab, Asking(False, "2h"), missing(), silent, taken)


class TestEnding:
    """Jobs that are needed no more; of the second one a node is held."""

    SECOND = replace(FIRST, id="2")

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def used(_: object) -> dict[str, str]:
            return {"n2:1": "n2"}

        monkeypatch.setattr(jobs, "_used", used)
        monkeypatch.setattr(jobs.jobs, "nodes_in", lambda job, named: [n for n in named if n == f"n{job.id}:1"])
        monkeypatch.setattr(jobs.jobs, "why_not_ended", lambda job, _say: "it is stuck" if job.id == "3" else "")
        monkeypatch.setattr(jobs.jobs, "has_ended", lambda _: False)

    def test_one_that_can_not_be_ended_is_said_and_keeps_no_other(self) -> None:
        some = [replace(FIRST, id="3"), FIRST, self.SECOND]
        assert end_unused(POOL, some, silent) == Ended((FIRST,), ("it is stuck",))

    def test_one_that_was_to_be_ended_is_ended_by_the_next_change(self, monkeypatch: pytest.MonkeyPatch) -> None:
        unwanted = replace(FIRST, id="4", unwanted=True)
        monkeypatch.setattr(jobs.jobs, "jobs_of_pool", lambda _: [FIRST, self.SECOND, unwanted])
        assert end_jobs_of(POOL, [], silent) == Ended((unwanted,))

    def test_one_whose_nodes_are_held_again_is_wanted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remembered: list[Job] = []
        monkeypatch.setattr(jobs.jobs, "jobs_of_pool", lambda _: [replace(self.SECOND, unwanted=True)])
        monkeypatch.setattr(jobs.jobs, "remember", remembered.append)
        assert end_jobs_of(POOL, [], silent) == Ended()
        assert remembered == [self.SECOND]

    def test_ctrl_c_says_what_was_cancelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(_: object) -> None:
            raise KeyboardInterrupt

        some = [replace(FIRST, id="3"), FIRST]
        monkeypatch.setattr(jobs.jobs, "job_of_pool", lambda _: FIRST)
        monkeypatch.setattr(jobs.jobs, "add", lambda *_: some.pop())
        with pytest.raises(KeyboardInterrupt, match=r"^Slurm job 1 was cancelled; it is stuck$"):
            with_further_nodes(POOL, Asking(False), missing(2, 1, 0), silent, interrupted)


def test_nodes_that_have_room_are_not_missing() -> None:
    nodes = [pb.DescribeReply(procs_free=free) for free in (0, 2, 4)]
    assert [lacking(Shape(count, 2, 0), nodes) for count in (1, 2, 3, 5)] == [0, 0, 1, 3]
    assert lacking(Shape(1, 0, 1), nodes) == 1
