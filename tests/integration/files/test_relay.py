"""Files reach many nodes through one another: the client sends them once; who dies on the way costs itself only."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from integration.files.file_nodes import Content, FileNode, file_nodes, missing, send
from monarch_nb.allocator.files.relay import split
from monarch_nb.proto import files_pb2 as pb


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name leaves room for sockets."""
    return tmp_path_factory.mktemp("n")


class TestSixteenNodes:
    async def test_the_client_sends_each_byte_once(self, short: Path) -> None:
        content = Content(big=noise(3 << 20), small=b"x = 1\n")
        async with file_nodes(short, 16) as nodes:
            transfer = await send(nodes, content, "v1")
            assert not transfer.failed
            assert len(transfer.applied) == 16
            assert [missing(content, node) for node in nodes] == [[]] * 16
            assert (3 << 20) < nodes[0].from_client_bytes < 1.1 * (3 << 20)


class TestDeath:
    @pytest.mark.parametrize("victim", [0, 3])
    async def test_a_node_that_dies_in_the_middle_costs_only_itself(self, short: Path, victim: int) -> None:
        content = Content(**{f"part{number}": noise(1 << 20, number) for number in range(8)})
        async with file_nodes(short, 7) as nodes:
            _die_after(nodes[victim], batches=3)
            transfer = await send(nodes, content, "v1")
            assert set(transfer.failed) == {nodes[victim].name}
            assert set(transfer.applied) == {node.name for node in nodes} - {nodes[victim].name}
            assert all(not missing(content, node) for node in nodes if node is not nodes[victim])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8])
def test_split_serves_everybody_once(count: int) -> None:
    peers = [pb.Peer(node_id=str(number)) for number in range(count)]
    parts = split(peers)
    assert sorted(peer.node_id for head, rest in parts for peer in (head, *rest)) == sorted(map(str, range(count)))
    assert max((len(rest) for _, rest in parts), default=0) <= count // 2


def _die_after(node: FileNode, batches: int) -> None:
    """Have a node die when it has received so many batches."""
    open_streams, received = node.files.relay.open_streams, 0

    class Dying:
        async def send(self, _: object) -> None:
            nonlocal received
            received += 1
            if received == batches:
                dying.append(asyncio.ensure_future(node.die()))
                await asyncio.Event().wait()

        async def finish(self) -> list[pb.NodeSynced]:
            return []

        def cancel(self) -> None:
            pass

    dying: list[object] = []
    node.files.relay.open_streams = lambda first: [*open_streams(first), Dying()]  # type: ignore[method-assign,list-item]
