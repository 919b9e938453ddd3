"""Holding nodes for longer, on all or on none."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.reservations import jobs
from monarch_nb.errors import NodeUnreachable, PoolError, ReservationExpired
from monarch_nb.proto import allocator_pb2 as pb


class Node:
    name = "node"

    def __init__(self, *, fails: bool = False) -> None:
        self.name, self.fails, self.limits_s = "host2", fails, list[float]()

    async def unary(self, method: str, request: pb.ExtendRequest) -> pb.ExtendReply:
        assert method == "Extend"
        if self.fails:
            raise NodeUnreachable("host2 does not answer", "host2")
        self.limits_s.append(request.time_s)
        return pb.ExtendReply()


async def test_once_the_time_is_up_nothing_is_asked_of_nodes_or_a_job() -> None:
    class Pool:
        name = "lab"

        async def held(self, *_: object) -> HeldReservation:
            status = pb.ReservationStatus(name="dev", nodes=2, time_s=60.0, time_left_s=0.0)
            return HeldReservation("r", {1: (Node(), status)})  # type: ignore[dict-item]

    pool: Any = Pool()
    with pytest.raises(ReservationExpired, match="dev is being released: its time of 1 min was up"):
        await jobs._limit_and_left_s(pool, "r", "dev")


async def test_a_limit_that_a_node_does_not_take_is_taken_back() -> None:
    nodes: list[Any] = [Node(), Node(fails=True)]

    class Pool:
        async def held(self, *_: object) -> HeldReservation:
            status = pb.ReservationStatus(name="dev", time_s=60.0)
            return HeldReservation("r", {number: (node, status) for number, node in enumerate(nodes)})

    pool: Any = Pool()
    with pytest.raises(NodeUnreachable):
        await jobs._set_limit(pool, "r", "dev", 90.0)
    assert nodes[0].limits_s == [90.0, 60.0]
    nodes[1].fails = False
    await jobs._set_limit(pool, "r", "dev", 90.0)
    assert nodes[0].limits_s[-1] == nodes[1].limits_s[-1] == 90.0


@pytest.mark.parametrize(
    ("time_s", "left_s", "job_s", "limit_s"),
    [(7200.0, 7000.0, 1200.0, [1400.0]), (7200.0, 1230.0, 1200.0, []), (7200.0, 7000.0, None, [])],
    ids=["sooner than before", "with it", "no job ends"],
)
def test_a_reservation_ends_with_the_first_of_its_jobs(
    time_s: float, left_s: float, job_s: float | None, limit_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    node: Any = Node()
    status = pb.ReservationStatus(name="dev", time_s=time_s, time_left_s=left_s)
    held = HeldReservation("r", {0: (node, status)})

    class Pool:
        name = "slurm-dev"

        async def held(self, *_: object) -> HeldReservation:
            return held

    pool: Any = Pool()
    monkeypatch.setattr(jobs.jobs, "title_of", lambda job: f"Slurm job {job}")
    monkeypatch.setattr(jobs.jobs, "ends_first", lambda _: None if job_s is None else (13, job_s))
    said = jobs.end_with_first_job(pool, held)
    assert node.limits_s == limit_s
    assert said.startswith("Slurm job 13 ends first, and dev with it: it is held for 20 min now") == bool(limit_s)

    def busy(_: object) -> None:
        raise PoolError("slurm does not answer")

    monkeypatch.setattr(jobs.jobs, "ends_first", busy)
    assert "although its jobs may end sooner: slurm does not answer" in jobs.end_with_first_job(pool, held)
