"""The actors of ranks: ranks without any are hardly ever asked, and one that is stuck keeps what it said."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.readings import asking
from monarch_nb.allocator.readings.actors import MAX_ACTORS, MAX_FAILURE_CHARACTERS, RankActors
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire


@dataclass
class Link:
    """A rank's control thread, and when it got mail. `stuck`: it does not answer."""

    actors: list[run_pb2.ActorStatus] = field(default_factory=list)
    asked: int = 0
    stuck: bool = False
    mail: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(sent_s=-math.inf))

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> wire.ControlReply | None:
        self.asked += 1
        assert request.HasField("actors")
        return None if self.stuck else wire.ControlReply(actors=self.actors)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    monkeypatch.setattr(asking, "INTERVAL_S", 0.0)
    return Link()


def readings_of(link: Link, **facts: Any) -> RankActors:
    """Of one rank, pid 10."""
    record = state_pb2.RankRecord(mesh_id="m", process=state_pb2.ProcessIdentity(pid=10), **facts)
    return RankActors({("m", 0): RankProcess("m", 0, record, link, watch=None, oom_kills_before=0)})  # type: ignore[arg-type]


async def test_a_rank_with_actors_is_asked_each_time_and_scripts_never(link: Link) -> None:
    await readings_of(link, script_of="m").refresh()
    assert link.asked == 0
    link.actors = [run_pb2.ActorStatus(name="trainers")]
    readings = readings_of(link)
    await readings.refresh()
    link.actors[0].waiting = 3
    await readings.refresh()
    (actor,), more = readings.of(10)
    assert (actor.name, actor.waiting, more, link.asked) == ("trainers", 3, 0, 2)


async def test_a_rank_without_is_not_asked_again_until_it_gets_mail(link: Link) -> None:
    readings = readings_of(link)
    await readings.refresh()
    await readings.refresh()
    assert link.asked == 1
    link.mail.sent_s = time.monotonic()
    await readings.refresh()
    assert link.asked == 2


async def test_a_rank_that_is_stuck_keeps_what_it_said_for_a_while(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    link.actors = [run_pb2.ActorStatus(name="trainers", running="step", running_s=5.0)]
    readings = readings_of(link)
    await readings.refresh()
    link.stuck = True
    await readings.refresh()
    (actor,), _ = readings.of(10)
    assert actor.running == "step"
    assert actor.running_s > 5.0, "its time goes on"
    monkeypatch.setattr(asking, "FORGOTTEN_S", -1.0)
    assert readings.of(10) == ((), 0)


async def test_of_many_the_failed_and_the_busy_are_told(link: Link) -> None:
    link.actors = [run_pb2.ActorStatus(name=str(number)) for number in range(MAX_ACTORS + 5)]
    link.actors[-1].failure = "Traceback\n" + "x" * 1000
    link.actors[-2].running = "step"
    readings = readings_of(link)
    await readings.refresh()
    told, more = readings.of(10)
    assert ([actor.name for actor in told[:3]], len(told), more) == (["36", "35", "0"], MAX_ACTORS, 5)
    assert told[0].failure == "x" * MAX_FAILURE_CHARACTERS
