"""Clients that want the same nodes at once: one gets them, and nobody is left with a part."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster import Cluster
from monarch_nb import config
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.client.pools import answering, leasing
from monarch_nb.client.pools.pool import Pool, lease
from monarch_nb.errors import CapacityError, NodeUnreachable, VersionMismatch
from monarch_nb.proto import allocator_pb2 as pb

ORDERS = 5
"""So many orders of messages are tried."""
MOMENTS = ["Reserve", "Reserve is done", "HostStore", "Spawn", "Spawn is done", "Confirm"]


class Silent:
    """A node that does not answer."""

    identity, up = None, True

    def __init__(self, name: str) -> None:
        self.name = self.node_address = self.client_id = name
        self.address = f"unix:/{name}"

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        raise NodeUnreachable(f"{self.name} does not answer", self.name)


def leases(cluster: Cluster) -> list[int]:
    return [len(node.node.state.leases) for node in cluster.nodes]


def test_of_clients_that_race_one_gets_the_nodes_and_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first try: they do not hinder each other."""
    monkeypatch.setattr(leasing, "MOST_RACES", 1)
    for seed in range(ORDERS):
        with Cluster(3, seed=seed, shuffled=True) as cluster:
            works = [(one := cluster.client(person)).does(one.reserve, nodes=3) for person in ("ann", "bob", "eve")]
            cluster.until(lambda works=works: all(work.done for work in works))
            errors = [work.error for work in works]
            assert errors.count(None) == 1, errors
            assert all(error is None or isinstance(error, CapacityError) for error in errors), errors
            assert leases(cluster) == [1, 1, 1]


def test_whoever_is_outrun_takes_other_nodes() -> None:
    for seed in range(ORDERS):
        with Cluster(4, seed=seed, shuffled=True) as cluster:
            works = [(one := cluster.client(person)).does(one.reserve, nodes=2) for person in ("ann", "bob")]
            assert all(work.result().mesh.run("rank").values == [0, 1] for work in works), "there is room for both"


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_attempt_leaves_nothing(moment: str) -> None:
    with Cluster(3) as cluster:
        ann = cluster.client()
        cluster.wire.fates[ann.life, moment] = lambda: work.interrupt()
        work = ann.does(ann.reserve, nodes=3)
        with pytest.raises(KeyboardInterrupt):
            work.result()
        assert leases(cluster) == [0, 0, 0]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_node_that_fails_lets_go_of_the_others(moment: str) -> None:
    with Cluster(3) as cluster:
        ann = cluster.client()
        cluster.wire.fates[ann.life, moment] = cluster.nodes[1].cut
        with pytest.raises(NodeUnreachable, match="node1"):
            ann.reserve(nodes=3)
        assert leases(cluster)[::2] == [0, 0], "at once"
        cluster.nodes[1].mend()
        cluster.until(lambda: leases(cluster) == [0, 0, 0])


async def test_nodes_that_are_waited_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "LATE_S", 0.0)
    answers: dict[Any, asyncio.Future[pb.StatusReply]] = {
        Silent(name): asyncio.get_running_loop().create_future() for name in ("node0", "node1")
    }
    next(iter(answers.values())).set_result(pb.StatusReply())
    said: asyncio.Queue[str] = asyncio.Queue()
    with answering.said_for_which(answers, said.put_nowait):
        assert await asyncio.wait_for(said.get(), 60.0) == "waiting for node1: no answer yet"


async def test_who_leases_hears_what_that_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "SLOW_S", 0.0)
    said: asyncio.Queue[str] = asyncio.Queue()

    class Slow(Silent):
        async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
            assert await said.get() == f"leasing 2 nodes: waits for {self.name} to answer"

    nodes: list[Any] = [Slow("node1"), Slow("node0")]
    with answering.Step("leasing 2 nodes", said.put_nowait) as step:
        assert await said.get() == "leasing 2 nodes"
        async with asyncio.timeout(60.0):
            await lease({node: pb.ReserveRequest() for node in nodes}, step)
        step.waits_for("something that takes no time")
    await asyncio.sleep(0)
    assert said.empty()


async def test_two_that_ask_at_once_hear_each_for_itself_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool("lab")

    async def discover() -> Any:
        return [Silent("host1"), Silent("host2")]

    monkeypatch.setattr(pool, "discover", discover)
    for outcome in await asyncio.gather(pool.ask(), pool.ask(), return_exceptions=True):
        assert isinstance(outcome, NodeUnreachable)
    assert pool.silent == ["host1", "host2"]


class Old(Silent):
    """A node of an older monarch_nb."""

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        return pb.StatusReply(node=pb.DescribeReply(node_id=self.name, version="0.0.1", protocol=1))


class New(Silent):
    """One of this monarch_nb."""

    def is_known_as(self, *_: str) -> None: ...

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        return pb.StatusReply(node=pb.DescribeReply(node_id=self.name, address=self.name, protocol=config.PROTOCOL))


async def test_a_node_of_another_protocol_is_left_out_and_the_others_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool("lab")
    nodes = [Old("host1"), New("host2")]

    async def discover() -> Any:
        return nodes

    monkeypatch.setattr(pool, "discover", discover)
    assert [reply.node.node_id for _, reply in await pool.ask()] == ["host2"]
    assert (await pool.why_silent())["host1"].startswith("runs monarch_nb 0.0.1 (protocol 1)")
    nodes.pop()
    with pytest.raises(VersionMismatch, match=r"host1 runs monarch_nb 0\.0\.1"):
        await pool.ask()


def test_a_lease_that_comes_after_its_release_is_none() -> None:
    """The client has given up, and its request was slower than what it sent after that."""
    state = NodeState(4)
    state.release("r")
    with pytest.raises(Exception, match="dev was given back before it was leased"):
        state.reserve(pb.ReserveRequest(reservation_id="r", name="dev", procs=1))
    assert not state.leases
