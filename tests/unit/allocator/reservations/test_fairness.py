"""A node that counts what people hold of its pool: leases first, asks the others then, and gives back what is too
much."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.node import Node
from monarch_nb.allocator.reservations.fairness import LimitsFile
from monarch_nb.errors import LimitReached, MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from unit.allocator.idle_node import NodeWithoutProcesses, make_node

LIMIT = "[people.'*']\nnodes = 2\n"


class Wire:
    """What nodes of a machine call each other with, without a network."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes, self.away = nodes, set[str]()
        self.asked = asyncio.Event()

    async def call(self, peer: files_pb2.Peer, method: str, request: Any, timeout_s: float, *, as_node: bool) -> Any:
        assert (method, as_node) == ("Usage", True)
        self.asked.set()
        await asyncio.sleep(0)
        if peer.address in self.away:
            raise NodeUnreachable("away", peer.address)
        return self.nodes[peer.address].fairness.usage()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[dict[str, NodeWithoutProcesses]]:
    """Three nodes of a machine that have a file of limits together, which is not written yet."""
    nodes = {}
    for number in range(3):
        directory = tmp_path / f"node{number}"
        directory.mkdir()
        node = make_node(directory)
        node.limits.path = tmp_path / "limits.toml"
        nodes[node.identity.address] = node
        (directory / "node.json").write_text(json.dumps({"address": node.identity.address}))
    wire = Wire(dict(nodes))
    for node in nodes.values():
        node.fairness._relay = wire  # type: ignore[assignment]
    yield nodes
    for node in nodes.values():
        node.leases.close()
        node.watch.close()
        node.records.close()


def limits(pool: dict[str, NodeWithoutProcesses], text: str) -> None:
    path = next(iter(pool.values())).limits.path
    assert path is not None
    path.write_text(text)


async def take(node: Node, reservation_id: str, owner: str = "alice", **facts: Any) -> MonarchNbError | None:
    request = pb.ReserveRequest(reservation_id=reservation_id, name=reservation_id, owner=owner, procs=1, **facts)
    try:
        await node.leases.take(request, "ipv4:10.0.0.9:40000")
    except MonarchNbError as error:
        return error
    return None


async def test_two_nodes_at_once_do_not_pass_a_limit(pool: dict[str, NodeWithoutProcesses]) -> None:
    """Each leases before it asks: whatever the order, one of them sees both."""
    limits(pool, LIMIT)
    one, two, three = pool.values()
    await take(one, "a")
    await asyncio.gather(take(two, "b"), take(three, "c"))
    assert sum(len(node.state.leases) for node in pool.values()) <= 2


async def test_a_node_that_does_not_answer_counts_with_what_the_others_know(
    pool: dict[str, NodeWithoutProcesses],
) -> None:
    limits(pool, LIMIT)
    one, two, three = pool.values()
    assert await take(one, "a", nodes=2) is None
    assert await take(two, "a", nodes=2, node_rank=1) is None
    wire: Any = three.fairness._relay
    wire.away.add(two.identity.address)
    assert isinstance(await take(three, "c"), LimitReached)


async def test_later_nodes_count_too_but_nobody_waits_for_that(pool: dict[str, NodeWithoutProcesses]) -> None:
    """A client that says to each node that another one is the first gets no more than others."""
    limits(pool, LIMIT)
    for node in pool.values():
        assert await take(node, "a", nodes=1, node_rank=1) is None
    await asyncio.gather(*(task for node in pool.values() for task in list(node.leases._checks)))
    assert sum(len(node.state.leases) for node in pool.values()) <= 2


async def test_unix_groups_count(pool: dict[str, NodeWithoutProcesses], monkeypatch: pytest.MonkeyPatch) -> None:
    import grp

    group = grp.struct_group(("vision", "x", 4242, ["alice", "bob"]))
    monkeypatch.setattr(grp, "getgrnam", lambda name: {"vision": group}[name])
    limits(pool, "[groups.vision]\nnodes = 1\n[groups.unknown]\nnodes = 0\n")
    one, two, _ = pool.values()
    assert await take(one, "a") is None
    assert "the group vision may have 1 node at most" in str(await take(two, "b", owner="bob"))
    assert await take(two, "c", owner="carol") is None


def test_a_spoilt_file_leaves_the_limits_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    file = LimitsFile(path)
    assert file.newest() is None
    path.write_text(LIMIT)
    before = file.newest()
    assert before is not None
    path.write_text(LIMIT + "gpu = 4\n")
    assert file.newest() is before
    assert file.problems == ["line 3: there is no 'gpu': limits are nodes, gpus"]
    path.write_text(LIMIT)
    path.chmod(0o666)
    assert file.newest() is before
    assert "others can change it" in file.problems[0]
    path.unlink()
    assert file.newest() is None


def test_a_node_does_not_start_without_the_limits_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("contact = 7\n")
    with pytest.raises(UsageError, match="line 1: contact is a text"):
        LimitsFile(path).check()
    os.truncate(path, 0)
    LimitsFile(path).check()


async def test_the_audit_log_says_who_holds_what(
    pool: dict[str, NodeWithoutProcesses], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "monarch_nb.audit")
    one, *_ = pool.values()
    await take(one, "dev", owner='eve", "event": "x\n')
    await one.leases.release("dev")
    first, last = (json.loads(record.message) for record in caplog.records)
    assert (first["event"], first["owner"], first["from"]) == ("reserved", 'eve", "event": "x\n', "ipv4:10.0.0.9:40000")
    assert (last["event"], last["name"]) == ("released", "dev")
