"""How a change is brought to nodes: who is asked for what, how often, and what becomes of those that fail."""

import asyncio
from collections.abc import Iterable, Iterator

from monarch_nb.client.files.transfer import Sender, Transfer
from monarch_nb.errors import FilesError
from monarch_nb.files.content import Piece, new_hash
from monarch_nb.proto import files_pb2 as pb
from unit.client.files.fake_nodes import FakeNode, connections, fake_nodes

CONTENT = {b"a.py": b"a = 1\n", b"b.py": b"b = 1\n"}


def entries(content: dict[bytes, bytes]) -> list[pb.TreeEntry]:
    return [
        pb.TreeEntry(path=path, kind=pb.TreeEntry.KIND_FILE, size_bytes=len(data), hash=new_hash(data).digest())
        for path, data in content.items()
    ]


def whole() -> pb.TreeChange:
    return pb.TreeChange(source="here:/project", version="v1", whole=True, changed=entries(CONTENT))


def send(nodes: list[FakeNode]) -> Transfer:
    def read(entries: Iterable[pb.TreeEntry]) -> Iterator[Piece]:
        return (Piece(entry.path, 0, CONTENT[entry.path]) for entry in entries)

    sender = Sender("r1", whole, read)
    return asyncio.run(sender.send(connections(nodes), whole(), []))


def test_content_that_was_lost_on_the_way_is_sent_again_to_those_that_lack_it() -> None:
    nodes = fake_nodes(3)
    nodes[2].loses_content = 1
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0", "node1", "node2"}
    assert [len(node.asked) for node in nodes] == [1, 1, 2]


def test_a_node_that_never_keeps_content_does_not_go_on_for_ever() -> None:
    nodes = fake_nodes(2)
    nodes[1].loses_content = 10**6
    transfer = send(nodes)
    assert set(transfer.applied) == {"node0"}
    error = transfer.failed["node1"]
    assert isinstance(error, FilesError)
    assert "node1 does not get all the files" in str(error)
    assert len(nodes[1].asked) < 10
