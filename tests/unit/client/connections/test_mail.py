"""What a client sends to one node, and what it is told when the session breaks."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.connections import bridge, mail
from monarch_nb.client.connections.mail import ConnectionMail
from monarch_nb.config import INLINE_VALUE_BYTES
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.frame_connection import FrameConnection

TIMEOUT_S = 20.0


class FakeNode:
    """A node that stores content in memory, and a receiver."""

    name, node_address, up = "node0", "unix:/node0", True

    def __init__(self) -> None:
        self.requests: list[pb.SessionRequest] = []
        self.blobs: dict[str, bytes] = {}
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.told: list[Any] = []
        self.mail = ConnectionMail(self, self.requests.append)
        self.mail.open(self)

    def ensure_session(self) -> None: ...

    def opening(self, mailbox: str = "") -> pb.Open:
        return pb.Open(mailbox=mailbox)

    async def put_blob(self, mesh_id: str, blob: str, pieces: Iterable[bytes | memoryview]) -> None:
        await self.may_store.wait()
        self.blobs[blob] = b"".join(pieces)

    async def read_blob(self, mesh_id: str, blob: str) -> bytes:
        await self.may_store.wait()
        return self.blobs[blob]

    def receive(self, sender: object, body: Any, *, call: int, answers: int) -> None:
        self.told.append(bytes(body)[:5])

    def undelivered(self, call: int, processes: Sequence[str], node: str, reason: str, death: object) -> None: ...

    def node_lost(self, node: str, reason: str) -> None:
        self.told.append((node, reason))

    @property
    def sent(self) -> list[list[Envelope]]:
        return [list(request.mail.envelopes) for request in self.requests if request.HasField("mail")]


class FakeDoor:
    """What a node of this machine has for mail."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / "socket"
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.connection = FrameConnection(self.frames.put_nowait, lambda: None)

    async def listen(self) -> None:
        await asyncio.get_running_loop().create_unix_server(lambda: self.connection, str(self.path))

    @property
    def opened(self) -> pb.Opened:
        (self.directory / ".token").touch()
        return pb.Opened(token="token", mail_directory=str(self.directory), mail_socket=str(self.path))

    async def next_body(self) -> bytes:
        return Envelope.FromString(await self.frames.get()).body


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Have a test run on the loop on which mail is sent."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        bridge.call(test(**fixtures), TIMEOUT_S)

    return run


@pytest.fixture
def node() -> FakeNode:
    async def made() -> FakeNode:
        return FakeNode()

    return bridge.call(made(), TIMEOUT_S)


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_loop
async def test_what_is_queued_in_one_turn_is_one_request(node: FakeNode) -> None:
    node.mail.on_opened(pb.Opened())
    for number in range(100):
        node.mail.send(["m/0"], [b"%d" % number])
    await turns()
    (batch,) = node.sent
    assert [envelope.body for envelope in batch] == [b"%d" % number for number in range(100)]


@on_loop
async def test_what_comes_after_large_content_waits_for_it(node: FakeNode) -> None:
    node.mail.on_opened(pb.Opened())
    node.may_store.clear()
    for body in (b"1", b"2" * (INLINE_VALUE_BYTES + 1), b"3"):
        node.mail.send(["m/0"], [body])
    await turns()
    assert [[envelope.body for envelope in batch] for batch in node.sent] == [[b"1"]]
    node.may_store.set()
    await turns()
    (_, (large,), (last,)) = node.sent
    assert (node.blobs[large.blob][:1], last.body) == (b"2", b"3")


@on_loop
async def test_large_mail_is_fetched_before_what_follows_it(node: FakeNode) -> None:
    node.mail.on_opened(pb.Opened())
    node.blobs["b"] = b"large"
    node.may_store.clear()
    node.mail.on_mail([Envelope(blob="b"), Envelope(body=b"small")])
    await turns()
    assert node.told == []
    node.may_store.set()
    await turns()
    assert node.told == [b"large", b"small"]


@on_loop
async def test_when_the_session_breaks_calls_have_failed_and_the_rest_is_sent_later(node: FakeNode) -> None:
    node.mail.send(["m/0"], [b"cast"])
    node.mail.send(["m/0"], [b"call"], call=1)
    node.mail.on_lost()
    ((address, reason),) = node.told
    assert address == node.node_address
    assert reason.startswith("node0: the connection to it broke while the call waited")
    node.mail.on_opened(pb.Opened())
    assert [[envelope.body for envelope in batch] for batch in node.sent] == [[b"cast"]]


@on_loop
async def test_mail_of_this_machine_has_a_socket_and_what_does_not_fit_waits(node: FakeNode, tmp_path: Path) -> None:
    bodies = [b"%d " % number * 1000 for number in range(500)]

    door = FakeDoor(tmp_path)
    await door.listen()
    node.mail.on_opened(door.opened)
    assert pb.Open.FromString(await door.frames.get()).mailbox == mail.own_mailbox()
    assert door.connection._transport is not None
    door.connection._transport.pause_reading()
    for body in bodies:
        node.mail.send(["m/0"], [body])
        await turns(2)
    assert node.mail._queued_bytes > 0
    door.connection._transport.resume_reading()
    assert [await door.next_body() for _ in bodies] == bodies
    door.connection.send(Envelope(body=b"reply").SerializeToString())
    await until(lambda: node.told == [b"reply"])
    assert node.requests == []
    node.mail.close()


@on_loop
async def test_mail_goes_on_the_session_when_nobody_listens_at_the_socket(node: FakeNode, tmp_path: Path) -> None:
    node.mail.on_opened(FakeDoor(tmp_path).opened)
    node.mail.send(["m/0"], [b"1"])
    await until(lambda: bool(node.sent))
    assert node.requests[0].open.mailbox == mail.own_mailbox()
    assert [[envelope.body for envelope in batch] for batch in node.sent] == [[b"1"]]


@on_loop
async def test_mail_goes_on_the_session_when_only_the_socket_breaks(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "GAP_S", 0.0)

    door = FakeDoor(tmp_path)
    await door.listen()
    node.mail.on_opened(door.opened)
    await door.frames.get()
    door.connection.close()
    await until(lambda: bool(node.requests))
    ((address, _),) = node.told
    assert address == node.node_address
    node.mail.send(["m/0"], [b"1"])
    await until(lambda: bool(node.sent))


def test_every_thread_of_a_process_has_the_same_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when two ask for it first at the same time: what is answered to one would not come to the other."""
    both = threading.Barrier(2)

    def made() -> uuid.UUID:
        both.wait(TIMEOUT_S)
        return uuid.UUID(int=threading.get_ident())

    monkeypatch.setattr(uuid, "uuid4", made)
    monkeypatch.setattr(os, "getpid", lambda: 0)  # a process that has not asked yet
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: mail.own_mailbox(), range(2))
    assert first == second
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert mail.own_mailbox() != first, "a forked one is another"
