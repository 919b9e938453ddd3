"""How a change is brought to nodes: who is asked for what, how often, and what becomes of those that fail."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from monarch_nb.client.files.transfer import Sender, Transfer
from monarch_nb.errors import FilesError, NodeUnreachable
from monarch_nb.files.chunks import hash_of
from monarch_nb.proto import files_pb2 as pb
from unit.client.files.fake_nodes import DISK_FULL, FakeNode, connections, fake_nodes

CONTENT = {b"a.py": b"a = 1\n", b"b.py": b"b = 1\n"}


def entries(content: dict[bytes, bytes]) -> list[pb.TreeEntry]:
    return [
        pb.TreeEntry(
            path=path, kind=pb.TreeEntry.KIND_FILE, size_bytes=len(data), hashes=hash_of(data), sizes_bytes=[len(data)]
        )
        for path, data in content.items()
    ]


def whole() -> pb.TreeChange:
    return pb.TreeChange(source="here:/project", version="v1", whole=True, changed=entries(CONTENT))


def send(nodes: list[FakeNode], change: pb.TreeChange | None = None, new: Iterable[bytes] = ()) -> Transfer:
    stored = {hash_of(data): data for data in CONTENT.values()}

    def read(names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        return ((name, stored[name]) for name in names)

    sender = Sender("r1", whole, read)
    return asyncio.run(sender.send(connections(nodes), change or whole(), list(new)))


def test_what_nodes_lack_is_sent_once_and_all_have_it() -> None:
    nodes = fake_nodes(3)
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0", "node1", "node2"}
    assert all(node.content() == {"a.py": b"a = 1\n", "b.py": b"b = 1\n"} for node in nodes)
    assert [len(node.asked) for node in nodes] == [2, 2, 2]
    assert nodes[0].asked[1].pending
    assert not nodes[0].asked[1].change.changed
    assert transfer.total_bytes == transfer.done_bytes == 12


def test_nodes_that_have_all_content_are_asked_once() -> None:
    nodes = fake_nodes(2)
    for node in nodes:
        node.chunks = {hash_of(data): data for data in CONTENT.values()}
    transfer = send(nodes)
    assert [len(node.asked) for node in nodes] == [1, 1]
    assert transfer.total_bytes == 0


def test_new_content_travels_with_the_change() -> None:
    (node,) = nodes = fake_nodes(1)
    node.versions[""] = "v0"
    change = pb.TreeChange(source="here:/project", version="v1", base="v0", changed=entries(CONTENT))
    send(nodes, change, [hash_of(data) for data in CONTENT.values()])
    assert len(node.asked) == 1
    assert node.content()["a.py"] == b"a = 1\n"


def test_a_node_with_another_base_gets_everything_and_the_others_only_the_change() -> None:
    nodes = fake_nodes(2)
    nodes[0].versions[""] = "v0"
    nodes[1].versions[""] = "much older"
    change = pb.TreeChange(source="here:/project", version="v1", base="v0", changed=entries({b"a.py": b"a = 1\n"}))
    transfer = send(nodes, change, [hash_of(b"a = 1\n")])
    assert set(transfer.applied) == {"node0", "node1"}
    assert nodes[0].content() == {"a.py": b"a = 1\n"}
    assert nodes[1].content() == {"a.py": b"a = 1\n", "b.py": b"b = 1\n"}
    assert [request.change.whole for request in nodes[1].asked] == [False, True, False]
    assert len(nodes[0].asked) == 1


def test_content_that_was_lost_on_the_way_is_sent_again_to_those_that_lack_it() -> None:
    nodes = fake_nodes(3)
    nodes[2].loses_chunks = 1
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0", "node1", "node2"}
    assert [len(node.asked) for node in nodes] == [2, 2, 3]


def test_a_node_that_never_keeps_content_does_not_go_on_for_ever() -> None:
    nodes = fake_nodes(2)
    nodes[1].loses_chunks = 10**6
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0"}
    error = transfer.failed["node1"]
    assert isinstance(error, FilesError)
    assert "node1 does not get all the files" in str(error)
    assert len(nodes[1].asked) < 10


def test_the_next_node_is_the_first_when_the_first_does_not_answer() -> None:
    nodes = fake_nodes(3)
    nodes[0].unreachable = True
    transfer = send(nodes)
    assert set(transfer.applied) == {"node1", "node2"}
    assert isinstance(transfer.failed["node0"], NodeUnreachable)


def test_when_nobody_answers_everyone_has_failed() -> None:
    nodes = fake_nodes(2)
    for node in nodes:
        node.unreachable = True
    transfer = send(nodes)
    assert not transfer.applied
    assert set(transfer.failed) == {"node0", "node1"}


def test_an_error_of_one_node_is_its_own() -> None:
    nodes = fake_nodes(2)
    nodes[1].error = DISK_FULL
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0"}
    assert str(transfer.failed["node1"]) == str(DISK_FULL)
    assert isinstance(transfer.failed["node1"], FilesError)


class Stubborn:
    """A node that says the same whatever it gets."""

    def __init__(self, name: str, **answer: Any) -> None:
        self.name, self.node_address, self._answer = name, f"unix:/{name}", answer

    async def unary(self, _: str, request: pb.SyncTreeRequest, timeout_s: float) -> pb.SyncTreeReply:
        others = [pb.NodeSynced(node_id=peer.node_id, **STUBBORN[peer.node_id]) for peer in request.peers]
        return pb.SyncTreeReply(nodes=[pb.NodeSynced(node_id=self.name, **self._answer), *others])

    async def send_stream(self, _: str, messages: AsyncIterator[Any], timeout_s: float) -> pb.PutChunksReply:
        async for _message in messages:
            pass
        return pb.PutChunksReply(nodes=[pb.NodeStored(node_id=self.name)])


STUBBORN: dict[str, dict[str, Any]] = {"node0": {"needs_whole": True}, "node1": {"missing": bytes(32)}}


def test_every_node_that_gets_no_end_is_named() -> None:
    change = pb.TreeChange(version="v", whole=True)
    sender = Sender("r", lambda: change, lambda names: ((name, b"x") for name in names))
    stubborn: list[Any] = [Stubborn(name, **answer) for name, answer in STUBBORN.items()]
    transfer = asyncio.run(sender.send(stubborn, change, []))
    assert not transfer.applied
    assert {name: str(error) for name, error in transfer.failed.items()} == {
        name: f"{name} does not get all the files that it needs: sync again" for name in STUBBORN
    }
