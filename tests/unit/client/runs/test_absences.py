"""What a run says of nodes that do not answer, and when it gives them up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import events
from monarch_nb.client.runs import notices
from monarch_nb.client.runs.notices import Absences
from monarch_nb.errors import PoolError, ReservationReleased
from monarch_nb.proto import allocator_pb2 as pb

CANCELLED = "engine job 1 was cancelled: %mesh reserve dev --on engine asks for another"


class Harness:
    """Two nodes with a rank each, their lines, and an engine that says what it is told to say, the last again and
    again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, says: list[tuple[str, bool]], *, has_job: bool = True) -> None:
        self.nodes: list[Any] = [SimpleNamespace(name=name, absence=f"{name} unreachable") for name in ("n1", "n2")]
        self.is_away: set[int] = set()
        self.lines: dict[str, str] = {}
        self.refusals: list[Exception] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.asked: list[str] = []
        self._says = says
        self.ends: list[pb.Ended | None] = []
        monkeypatch.setattr(notices, "ASK_AFTER_S", 0.0)
        monkeypatch.setattr(notices, "LOOK_AGAIN_S", 0.0)
        self.heals: Callable[[Callable[[str], None]], None] = lambda _: None
        pool = SimpleNamespace(end_of=self._end_of, heal=lambda say: self.heals(say))
        monkeypatch.setattr(notices, "pool_object", lambda _: pool)
        monkeypatch.setattr(notices.jobs, "job_of_pool", lambda _: object() if has_job else None)
        monkeypatch.setattr(notices.jobs, "has_gone", lambda _: False)  # whatever pools this user has
        monkeypatch.setattr(notices.jobs, "what_became", self._became)
        run: Any = SimpleNamespace(
            emit=self._emit,
            left=lambda: [] if self.refusals else [0, 1],
            on_refused=self.refusals.append,
            mesh=SimpleNamespace(
                reservation=SimpleNamespace(pool="engine-dev", id="r"),
                core=SimpleNamespace(way_on=lambda _: "they are replaced"),
            ),
        )
        nodes: Any = SimpleNamespace(
            away=lambda: [self.nodes[node] for node in sorted(self.is_away)],
            reachable=lambda ranks: [rank for rank in ranks if rank not in self.is_away],
        )
        self.absences = Absences(run, nodes, lambda work: self.tasks.append(asyncio.ensure_future(work)))

    def _emit(self, event: events.Event) -> None:
        assert isinstance(event, events.Notice)
        self.lines.pop(event.key, None)
        if event.text:
            self.lines[event.key] = event.text

    def _became(self, pool: str) -> tuple[str, bool]:
        self.asked.append(pool)
        if len(self._says) == 1:
            self.is_away.clear()  # else it is asked for ever
            return self._says[0]
        return self._says.pop(0)

    def _end_of(self, reservation_id: str) -> pb.Ended | None:
        assert reservation_id == "r"
        return self.ends.pop(0) if self.ends else None

    def lose(self, *nodes: int) -> None:
        for node in nodes:
            self.is_away.add(node)
            self.absences.on_link(self.nodes[node], up=False)

    async def is_told(self) -> None:
        """Wait until the engine is asked no more."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10.0)


async def test_a_run_ends_when_no_job_has_nodes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, [("", False), (CANCELLED, True), ("not asked", True)])
    harness.lose(0, 1)
    await harness.is_told()
    assert harness.asked == ["engine-dev"] * 2, "until it knew; once for both"
    [error] = harness.refusals
    assert isinstance(error, PoolError)
    assert str(error) == CANCELLED


async def test_what_became_of_a_job_is_said_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, [("engine job 2 was preempted", False), ("engine job 2 was preempted", False)])
    harness.lose(1)
    assert list(harness.lines.values()) == ["n2 unreachable", "they are replaced"]
    await harness.is_told()
    assert list(harness.lines.values()) == ["n2 unreachable", "they are replaced; engine job 2 was preempted"]
    harness.is_away.clear()
    harness.absences.on_link(harness.nodes[1], up=True)
    assert harness.lines == {}
    assert harness.refusals == []


async def test_a_rank_that_still_answers_keeps_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has ended, and it has not yet: it may have results."""
    harness = Harness(monkeypatch, [(CANCELLED, True), (CANCELLED, True)])
    harness.lose(1)
    await harness.is_told()
    assert harness.refusals == []


async def test_a_run_ends_when_its_reservation_is_released_while_no_node_can_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(monkeypatch, [("", False)], has_job=False)
    harness.ends = [None, None, pb.Ended(name="dev", ended_at=1e9, by="in the panel")]
    harness.lose(0, 1)
    await harness.is_told()
    [error] = harness.refusals
    assert isinstance(error, ReservationReleased)
    assert str(error).endswith(" in the panel: %mesh reserve dev makes a new one")


async def test_a_pool_that_heals_itself_says_so_below_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the system has noticed that the allocator is dead, which may be later than its link was lost."""
    harness = Harness(monkeypatch, [("", False)], has_job=False)
    looks = iter([False, False, True])

    def heal(say: Callable[[str], None]) -> None:
        if next(looks):
            say("the allocator of n2 died; a new one adopts its ranks")
            harness.is_away.clear()

    harness.heals = heal
    harness.lose(1)
    await harness.is_told()
    harness.absences.on_link(harness.nodes[1], up=True)
    assert list(harness.lines.values()) == ["the allocator of n2 died; a new one adopts its ranks"]


async def test_what_to_do_is_said_once_below_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, [("", False)], has_job=False)
    harness.lose(1, 0)
    assert list(harness.lines.values()) == ["n2 unreachable", "n1 unreachable", "they are replaced"]
    harness.is_away.discard(1)
    harness.absences.on_link(harness.nodes[1], up=True)
    assert list(harness.lines.values()) == ["n1 unreachable", "they are replaced"]
    harness.is_away.clear()
    await harness.is_told()
    assert harness.asked == [], "no engine, of a pool of no job"
