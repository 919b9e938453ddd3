"""A connection to one node against a scripted allocator: calls, and the session that somebody holds."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import asking
from monarch_nb.client.connections import connection as connections
from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.connection import ALLOCATOR_DOWN, Connection
from monarch_nb.client.connections.mail import own_mailbox
from monarch_nb.config import TrustPaths
from monarch_nb.errors import (
    NodeUnreachable,
    PoolError,
    PreloadError,
    RunNotFound,
    TrustError,
    VersionMismatch,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.status import translate
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import USER, load_identity
from unit.client.connections.scripted import Scripted

USER_OF_IT: Any = SimpleNamespace(notebook="")


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    made = Connection("node0", f"unix:{tmp_path}/s")
    yield made
    await made.close()


async def test_a_session_that_is_not_opened_is_asked_for_anew(
    node: Scripted, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "OPEN_S", 0.1)
    node.is_mute = True
    connection.attach("r", USER_OF_IT)
    await node.next("attach")
    node.is_mute = False
    await asyncio.wait_for(connection._opened.wait(), 20)


async def test_a_node_whose_pool_was_taken_down_does_not_come_back(connection: Connection, tmp_path: Path) -> None:
    gone = Connection("node0", f"unix:{tmp_path}/local/node0/s/allocator")
    assert connection.absence == f"node0 {ALLOCATOR_DOWN}"
    assert gone.absence == "the pool was taken down; its ranks are gone: %mesh reserve makes new ones"
    await gone.close()


class TestCalls:
    async def test_the_allocators_error_is_raised_here(self, node: Scripted, connection: Connection) -> None:
        node.error = error = PreloadError("× broken", "mod", "Traceback… ☃")
        with pytest.raises(PreloadError, match=r"^× broken") as raised:
            await connection.describe()
        assert vars(raised.value) == vars(error)
        longer_than_metadata = "\n".join(f"File 'x{number}.py', line {number}" for number in range(20_000))
        node.error = PreloadError("× broken", "mod", longer_than_metadata)
        with pytest.raises(PreloadError, match=r"^× broken"):
            await connection.describe()

    async def test_since_when_is_said_only_of_what_is_away_now(self, node: Scripted, connection: Connection) -> None:
        connection.ensure_session()
        await connection._opened.wait()
        connection.address = "127.0.0.1:1"  # as if it were on another machine
        assert connection.absence == "node0 unreachable"
        connection._set_up(False)
        assert connection.absence.startswith("node0 unreachable since ")

    @pytest.mark.parametrize("left_a_socket", [False, True])
    async def test_a_dead_node_is_not_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_a_socket: bool
    ) -> None:
        if left_a_socket:
            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(tmp_path / "s"))
        connection = Connection("node7", f"unix:{tmp_path}/s")
        with pytest.raises(NodeUnreachable):
            await connection.describe()

        def wait(_: object) -> None:
            raise AssertionError("nobody listens: nothing will change")

        monkeypatch.setattr(connection._channel.channel, "wait_for_state_change", wait)
        with pytest.raises(NodeUnreachable, match="node7 does not answer"):
            await connection.describe()
        await connection.close()

    async def test_a_session_stays_that_something_else_needs(
        self, node: Scripted, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("monarch_nb.client.connections.connection.LINGER_S", 0)
        connection.hold_session()
        connection.hold_session()
        await asyncio.wait_for(connection._opened.wait(), 20)
        connection.let_go()
        connection.attach("r", SimpleNamespace(notebook=""))  # type: ignore[arg-type]
        assert (await node.next("attach")).reservation_id == "r"
        connection.let_go()
        connection.attach("s", SimpleNamespace(notebook=""))  # type: ignore[arg-type]
        assert (await node.next("attach")).reservation_id == "s", "the session goes on: a reservation is attached"
        assert node.sessions == 1

    async def test_a_session_that_was_let_go_opens_again_for_a_reservation_and_then_for_mail(
        self, node: Scripted, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("monarch_nb.client.connections.connection.LINGER_S", 0)
        connection.hold_session()
        await asyncio.wait_for(connection._opened.wait(), 20)
        connection.let_go()
        await asyncio.wait_for(node.left.wait(), 20)
        assert not connection.up
        assert node.sessions == 1
        assert await node.mailboxes.get() == ""
        connection.attach("r", USER_OF_IT)
        assert (await node.next("attach")).reservation_id == "r"
        assert node.sessions == 2
        connection.mail.open(SimpleNamespace(node_lost=lambda *_: None))  # type: ignore[arg-type]
        opened = [await asyncio.wait_for(node.mailboxes.get(), 20) for _ in range(2)]
        assert opened == ["", own_mailbox()], "a session takes no mail before it is said whose"

    async def test_blobs_there_and_back(self, node: Scripted, connection: Connection) -> None:
        data = bytes(range(256)) * 20_000
        await connection.put_blob("m", "b", [b"head", memoryview(data), b""])
        assert await connection.read_blob("m", "b") == b"head" + data
        node.blob = b""
        with pytest.raises(RunNotFound, match="not kept"):
            await connection.read_blob("m", "b")
        with pytest.raises(VersionMismatch, match="another version"):
            await connection.unary("Status", pb.StatusRequest())  # which this node does not have


async def test_who_is_silent_long_after_others_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "STRAGGLER_S", 0.01)
    quick, slow, hung, refusing = (Connection(name, f"unix:/nowhere/{name}") for name in ("a", "b", "c", "d"))
    may_answer = asyncio.Event()

    async def answer(text: str, after: asyncio.Event | None = None) -> str:
        if after is not None:
            await after.wait()
        return text

    async def refuse() -> str:
        raise PoolError("no")

    given_up = await answers({quick: answer("a"), hung: answer("c", asyncio.Event()), refusing: refuse()})
    assert given_up[quick] == "a"
    assert str(given_up[hung]).startswith("c does not answer, although others did")
    assert isinstance(given_up[hung], NodeUnreachable)
    assert isinstance(given_up[refusing], PoolError)

    waiting = asyncio.ensure_future(answers({slow: answer("b", may_answer), refusing: refuse()}))
    assert not (await asyncio.wait({waiting}, timeout=0.1))[0], "nobody has answered yet"
    may_answer.set()
    assert (await waiting)[slow] == "b"
    for connection in (quick, slow, hung, refusing):
        await connection.close()


def test_a_stream_that_gives_up_in_the_middle_is_a_node_that_does_not_answer() -> None:
    import grpc

    nothing = grpc.aio.Metadata()
    broken = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core")
    error = translate(broken, "node3")
    assert isinstance(error, NodeUnreachable)
    assert error.node == "node3"


async def test_who_attaches_only_for_a_moment_is_not_attached_for_ever(node: Scripted, connection: Connection) -> None:
    """The session is still being opened when it detaches."""

    listener: Any = SimpleNamespace(notebook="/a.ipynb")
    connection.attach("a-reservation", listener)
    while not node.sessions:  # the attach is on its way
        await asyncio.sleep(0)
    assert not connection.up
    connection.detach("a-reservation", listener)
    attached = await node.next("attach")
    assert (attached.reservation_id, attached.notebook) == ("a-reservation", "/a.ipynb")
    assert (await node.next("detach")).reservation_id == "a-reservation"


async def test_who_has_an_expired_certificate_is_told_so_until_there_is_another(tmp_path: Path) -> None:
    authority = Authority.create("lab", TrustPaths(tmp_path))
    file = tmp_path / "bob.pem"
    authority.issue("bob", USER, 60.0, time.time() - 120.0).save(file)
    connection = Connection("host1", "127.0.0.1:1", load_identity(file, time.time() - 90.0))
    with pytest.raises(TrustError, match=r"of bob in .*bob.pem has expired .* ago: ask .* for another invitation"):
        await connection.describe()
    (newest := authority.issue("bob", USER)).save(file)
    with pytest.raises(NodeUnreachable):
        await connection.describe()
    assert connection.identity == newest
    await connection.close()
