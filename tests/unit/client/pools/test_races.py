"""Clients that want the same nodes at once: one gets them, and nobody is left with a part."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from monarch_nb.allocator.state.state import NodeState
from monarch_nb.client.pools import pool as pools
from monarch_nb.client.pools.answering import asked
from monarch_nb.client.pools.facts.amounts import Amounts
from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.client.pools.facts.held import HeldReservation
from monarch_nb.client.pools.leasing import attempts
from monarch_nb.client.pools.pool import Pool, SpawnOptions, Terms
from monarch_nb.errors import CapacityError, NodeUnreachable, VersionMismatch
from monarch_nb.proto import allocator_pb2 as pb

NODES = 5
SEEDS = 10


class FakeConnection:
    """A node that takes its time."""

    def __init__(self, name: str, moments: random.Random) -> None:
        self.name, self.client_id = name, name
        self.address = self.node_address = f"unix:/{name}"
        self.identity = None  # on this machine
        self.up = True
        self.state = NodeState(4)
        self.asked: list[str] = []
        self.fails_at = ""
        self.holders = 0
        self._moments = moments

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        for _ in range(self._moments.randrange(4)):
            await asyncio.sleep(0)
        self.asked.append(method)
        if method == self.fails_at:
            raise NodeUnreachable(f"{self.name} does not answer", self.name)
        if method == "Reserve":
            self.state.reserve(request)
        elif method == "Release":
            self.state.release(request.reservation_id)
        elif method == "HostStore":
            return pb.HostStoreReply(host="127.0.0.1", port=1)
        for _ in range(self._moments.randrange(4)):
            await asyncio.sleep(0)
        return pb.ReleaseReply()

    def hold_session(self) -> None:
        self.holders += 1

    def let_go(self) -> None:
        self.holders -= 1

    def status(self) -> pb.StatusReply:
        holders = [pb.Holder(reservation=lease.request.name, procs=4) for lease in self.state.leases.values()]
        node = pb.DescribeReply(node_id=self.name, procs=4, procs_free=self.state.procs_free, holders=holders)
        return pb.StatusReply(node=node)


class FakePool(Pool):
    """A client's view of some nodes, in an order of its own."""

    def __init__(self, nodes: list[FakeConnection], moments: random.Random) -> None:
        super().__init__("fake")
        self.nodes, self._moments = nodes, moments

    async def ask(self, **_: object) -> list[tuple[Any, pb.StatusReply]]:
        told = [(node, node.status()) for node in self.nodes]
        for _ in range(self._moments.randrange(6)):
            await asyncio.sleep(0)  # it is old when it arrives
        return told

    async def held(self, reservation_id: str, name: str, *, memory: bool = False) -> Any:
        return name


def reserve(pool: Pool, name: str, nodes: int) -> Any:
    return pool.reserve(name, Shape(nodes, 4, 0), SpawnOptions("/"), Terms(), lambda _: None)


@pytest.fixture(autouse=True)
def all_see_files(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seeing(connections: list[Any], _: str) -> list[bool]:
        return [True] * len(connections)

    monkeypatch.setattr(pools, "nodes_seeing", seeing)


async def test_of_clients_that_race_one_gets_the_nodes_and_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first try: they do not hinder each other."""
    monkeypatch.setattr(attempts, "MOST_RACES", 1)
    for moments in map(random.Random, range(SEEDS)):
        nodes = [FakeConnection(f"node{index}", moments) for index in range(NODES)]
        wanted = [moments.randrange(2, NODES + 1) for _ in range(4)]
        clients = [FakePool(moments.sample(nodes, NODES), moments) for _ in wanted]
        calls = [reserve(client, f"r{number}", wanted[number]) for number, client in enumerate(clients)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        have = [number for number, outcome in enumerate(outcomes) if outcome == f"r{number}"]
        assert have, outcomes
        assert all(isinstance(outcome, (str, CapacityError)) for outcome in outcomes), outcomes
        leased = [lease.request.name for node in nodes for lease in node.state.leases.values()]
        assert sorted(leased) == sorted(f"r{number}" for number in have for _ in range(wanted[number]))


async def test_whoever_is_outrun_takes_other_nodes() -> None:
    for moments in map(random.Random, range(SEEDS)):
        nodes = [FakeConnection(f"node{index}", moments) for index in range(4)]
        both = (reserve(FakePool(nodes, moments), name, 2) for name in ("r0", "r1"))
        assert await asyncio.gather(*both) == ["r0", "r1"], "there is room for both"


async def test_an_interrupted_attempt_leaves_nothing() -> None:
    for turns in range(40):
        moments = random.Random(turns)
        nodes = [FakeConnection(f"node{index}", moments) for index in range(3)]
        attempt = asyncio.ensure_future(reserve(FakePool(nodes, moments), "dev", 3))
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait({attempt})
        if attempt.cancelled():
            assert not any(node.state.leases for node in nodes)
        else:
            assert all(node.state.leases for node in nodes), "it was complete already"


async def test_a_node_that_fails_lets_go_of_the_others() -> None:
    for method in ("Reserve", "HostStore", "Spawn", "Confirm"):
        for index in (0,) if method == "HostStore" else range(3):
            moments = random.Random(0)
            nodes = [FakeConnection(f"node{each}", moments) for each in range(3)]
            nodes[index].fails_at = method
            with pytest.raises(NodeUnreachable):
                await reserve(FakePool(nodes, moments), "dev", 3)
            assert not any(node.holders for node in nodes), "sessions end that nobody needs"
            assert not any(node.state.leases for node in nodes)
            assert all("Release" in node.asked for node in nodes)


async def test_nodes_are_leased_in_the_same_order_by_all() -> None:
    order: list[str] = []

    class Noting(FakeConnection):
        async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
            if method == "Reserve":
                order.append(self.name)
            return await super().unary(method, request, timeout_s)

    moments = random.Random(0)
    nodes: list[FakeConnection] = [Noting(name, moments) for name in ("c", "a", "d", "b")]
    await reserve(FakePool(nodes, moments), "dev", 4)
    assert order == ["a", "b", "c", "d"]
    assert not any(node.holders for node in nodes)
    assert [node.state.leases.popitem()[1].request.node_rank for node in nodes] == [0, 1, 2, 3], "as the pool has them"


async def test_nodes_that_are_waited_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "LATE_S", 0.0)
    moments = random.Random(0)
    answers: dict[Any, asyncio.Future[pb.StatusReply]] = {
        FakeConnection(name, moments): asyncio.get_running_loop().create_future() for name in ("node0", "node1")
    }
    next(iter(answers.values())).set_result(pb.StatusReply())
    said: asyncio.Queue[str] = asyncio.Queue()
    with asked.said_for_which(answers, said.put_nowait):
        assert await asyncio.wait_for(said.get(), 60.0) == "waiting for node1: no answer yet"


async def test_two_that_ask_at_once_hear_each_for_itself_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = random.Random(0)
    nodes = [FakeConnection(name, moments) for name in ("host1", "host2")]
    for node in nodes:
        node.fails_at = "Status"
    pool = Pool("lab")

    async def discover() -> Any:
        return nodes

    monkeypatch.setattr(pool, "discover", discover)
    for outcome in await asyncio.gather(pool.ask(), pool.ask(), return_exceptions=True):
        assert isinstance(outcome, NodeUnreachable)
    assert pool.silent == ["host1", "host2"]


async def test_a_lease_that_comes_after_its_release_is_none() -> None:
    """The client has given up, and its request was slower than what it sent after that."""
    state = NodeState(4)
    state.release("r")
    with pytest.raises(Exception, match="dev was given back before it was leased"):
        state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", procs=1))
    assert not state.leases


async def test_a_node_that_knows_of_no_amounts_is_given_back() -> None:
    class Older(FakePool):
        async def held(self, reservation_id: str, name: str, *, memory: bool = False) -> Any:
            return HeldReservation(reservation_id, {0: (nodes[0], pb.ReservationStatus(name=name))})  # type: ignore[dict-item]

    moments = random.Random(0)
    nodes = [FakeConnection("host1", moments)]
    terms = Terms(amounts=Amounts(cpus=8.0))
    with pytest.raises(VersionMismatch, match="host1 runs an older monarch_nb, which can not limit memory or CPUs"):
        await Older(nodes, moments).reserve("dev", Shape(1, 4, 0), SpawnOptions("/"), terms, lambda _: None)
    assert not nodes[0].state.leases
