"""A connection to one node against a scripted allocator: every break is survived, every run arrives once."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.connections import asking
from monarch_nb.client.connections import connection as connections
from monarch_nb.client.connections.asking import answers
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.connections.mail import own_mailbox
from monarch_nb.client.pools import pool as pools
from monarch_nb.config import TrustPaths
from monarch_nb.errors import (
    CertificateRefused,
    MeshNotFound,
    MonarchNbError,
    NodeUnreachable,
    PoolError,
    PreloadError,
    RunNotFound,
    TrustError,
    VersionMismatch,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.proto import run_pb2
from monarch_nb.rpc.channel import make_server
from monarch_nb.rpc.status import error_to_json, translate
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import USER, load_identity
from unit.client.connections.scripted import Listener, Scripted


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Scripted]:
    """A node that `connection` finds."""
    scripted = Scripted()
    server = make_server()
    service.add_AllocatorServicer_to_server(scripted, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{directory}/s")
    await server.start()
    yield scripted
    await server.stop(None)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Scripted]:
    async with serving(tmp_path) as scripted:
        yield scripted


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    made = Connection("node0", f"unix:{tmp_path}/s")
    yield made
    await made.close()


def submit(run_id: str = "a", *, quiet: bool = False) -> pb.Submit:
    spec = run_pb2.RunSpec(run_id=run_id)
    return pb.Submit(mesh_id="m", run=spec, ranks=[0, 1], give_number=True, quiet=quiet)


def output(rank: int, text: bytes, end: int) -> pb.Output:
    cursor = run_pb2.Cursor(stdout_bytes=end)
    return pb.Output(run_id="a", ranks=[pb.RankOutput(rank=rank, items=[pb.OutputItem(stdout=text)], cursor=cursor)])


UNKNOWN = pb.Refused(run_id="a", error_json=error_to_json(RunNotFound("who?")))


async def submitted(node: Scripted, connection: Connection) -> Listener:
    """Submit a run, which comes to the node."""
    listener = Listener()
    connection.submit(listener, submit())
    await node.next("submit")
    return listener


async def accepted(node: Scripted, connection: Connection, number: int, **queued: int) -> Listener:
    """Submit a run that the node takes in."""
    listener = await submitted(node, connection)
    node.say(queued=pb.Queued(run_id="a", number=number, **queued))
    assert await listener.until("queued") == number
    return listener


class TestTheEndOfTheProcess:
    async def test_waits_for_runs_that_the_node_has_not_taken_in(self, node: Scripted, connection: Connection) -> None:
        connection.submit(Listener(), submit())
        flush = asyncio.create_task(connection.flush())
        await node.next("submit")
        assert connection.is_submitting
        assert not flush.done()
        node.say(queued=pb.Queued(run_id="a", number=3))
        await asyncio.wait_for(flush, 20)
        connection.submit(Listener("b", done=True), submit("b"))
        await asyncio.wait_for(connection.flush(), 20)

    @pytest.mark.parametrize("given_up", [TimeoutError, KeyboardInterrupt])
    def test_says_what_may_be_lost(
        self, given_up: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def call(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
            work.close()
            raise given_up

        named = {
            name: SimpleNamespace(name=name, is_submitting=name != "node1") for name in ("node0", "node1", "node2")
        }
        monkeypatch.setattr(pools, "_pools", {"local": SimpleNamespace(connections=named)})
        monkeypatch.setattr(pools, "call", call)
        pools._flush_at_exit()
        said = "monarch_nb: the last runs may be lost on node0, node2: no answer before the end\n"
        assert capsys.readouterr().err == said


class TestBreaks:
    async def test_a_session_that_is_not_opened_is_asked_for_anew(
        self, node: Scripted, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "OPEN_S", 0.1)
        node.is_mute, listener = True, Listener()
        connection.submit(listener, submit())
        await node.next("submit")
        node.is_mute = False
        await listener.until("up")

    @pytest.mark.parametrize("refusal", [CertificateRefused("was revoked"), TrustError("is not one of the pool's")])
    async def test_who_is_let_in_no_more_is_told_why_at_once(
        self, node: Scripted, connection: Connection, refusal: MonarchNbError
    ) -> None:
        listener = await accepted(node, connection, 3)
        node.refusal = refusal
        node.hang_up()
        assert await listener.next() == ("refused", type(refusal)), "and not that the node is away"
        again = Listener("b")
        connection.submit(again, submit("b"))
        assert await again.until("refused") is type(refusal)
        node.refusal = None
        connection.submit(Listener("c"), submit("c"))
        assert (await node.next("follow")).run_id == "a", "once it lets us in, all goes on"

    async def test_who_forgot_the_run_gets_it_again_as_it_was(self, node: Scripted, connection: Connection) -> None:
        """It was killed before it wrote the run down. Output that was here is not sent again."""
        listener = await accepted(node, connection, 12, output=9)
        node.say(output=output(1, b"text", 4))
        await listener.until("output")
        node.hang_up()
        await node.next("follow")
        node.say(refused=UNKNOWN)
        again = await node.next("submit")
        assert (again.run.run_id, again.run.number, again.run.output) == ("a", 12, 9)
        assert again.cursors[1].stdout_bytes == 4
        node.say(refused=pb.Refused(run_id="a", error_json=error_to_json(MeshNotFound("released"))))
        assert await listener.until("refused") is MeshNotFound

    async def test_a_run_that_is_done_is_not_submitted_again(self, node: Scripted, connection: Connection) -> None:
        """An allocator forgets runs whose results were collected."""
        listener = await accepted(node, connection, 12, output=12)
        listener.done = True
        node.hang_up()
        await node.next("follow")
        node.say(refused=UNKNOWN)
        connection.submit(Listener("b"), submit("b"))
        assert (await node.next("submit")).run.run_id == "b"
        node.hang_up()
        assert (await node.next("submit")).run.run_id == "b", "it is followed no longer"

    async def test_an_interrupt_during_a_break_is_sent_once_later(self, node: Scripted, connection: Connection) -> None:
        listener = Listener()
        connection.submit(listener, submit())
        connection.cancel("a")  # the stream is not even open
        await node.next("submit")
        assert (await node.next("cancel")).run_id == "a"
        node.say(queued=pb.Queued(run_id="a", number=3))
        await listener.until("queued")
        node.hang_up()
        await listener.until("down")
        connection.cancel("a")
        assert (await node.next("follow")).run_id == (await node.next("cancel")).run_id == "a"
        await listener.until("up")
        node.hang_up()
        await node.next("follow")
        await listener.until("up")
        connection.send(proceed=pb.Proceed(run_id="a"))
        await node.next("proceed")

    async def test_an_interrupt_that_the_break_overtook_is_sent_again(
        self, node: Scripted, connection: Connection
    ) -> None:
        """Nobody knows whether it arrived."""
        listener = await submitted(node, connection)
        await listener.until("up")
        connection.cancel("a")
        await node.next("cancel")
        node.hang_up()
        await node.next("submit")
        assert (await node.next("cancel")).run_id == "a"
        await listener.until("up")
        connection.cancel("a")
        await node.next("cancel")
        connection.withdraw_cancel("a")
        node.hang_up()
        await node.next("submit")
        await listener.until("up")
        connection.send(proceed=pb.Proceed(run_id="a"))
        await node.next("proceed")

    async def test_an_interrupt_that_is_withdrawn_while_the_node_is_away_is_never_sent(
        self, tmp_path: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even by the stream that waits for the node all the time."""
        monkeypatch.setattr(connections, "LINK_PATIENCE_S", 0.0)
        listener = Listener()
        connection.follow(listener, "m", from_shown=True)
        await listener.until("down")
        connection.cancel("a")
        connection.withdraw_cancel("a")
        async with serving(tmp_path) as node:
            await node.next("follow")
            await listener.until("up")
            connection.send(proceed=pb.Proceed(run_id="a"))
            await node.next("proceed")

    async def test_a_run_of_another_client_is_not_submitted(self, node: Scripted, connection: Connection) -> None:
        listener = Listener()
        connection.follow(listener, "m", from_shown=True)
        assert (await node.next("follow")).from_shown
        node.say(refused=UNKNOWN)
        assert await listener.until("refused") is RunNotFound

    async def test_what_was_collected_meanwhile_is_told_later(self, node: Scripted, connection: Connection) -> None:
        listener = Listener()
        connection.submit(listener, submit(quiet=True))
        await node.next("submit")
        node.say(queued=pb.Queued(run_id="a", number=1))
        await listener.until("queued")
        node.hang_up()
        await listener.until("down")
        connection.collect("a")
        follow, collected = [await asyncio.wait_for(node.requests.get(), 20) for _ in range(2)]
        assert (follow.WhichOneof("message"), list(collected.collected)) == ("follow", ["a"])


class TestSession:
    async def test_a_run_that_goes_on_is_followed_however_many_come_after_it(
        self, node: Scripted, connection: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("monarch_nb.client.connections.connection.MAX_FOLLOWED", 2)
        long = Listener("long")
        connection.submit(long, submit("long"))
        await node.next("submit")
        await long.until("up")
        cells = [Listener(f"cell{number}", done=True) for number in range(4)]
        for cell in cells:
            connection.submit(cell, submit(cell.run_id))
            await node.next("submit")
            connection.collect(cell.run_id)
        for run_id in ("long", "cell0", "cell3"):
            node.say(finished=pb.Finished(run_id=run_id, results=[run_pb2.RankResult(rank=0)]))
        assert await long.until("finished") == 1
        assert await cells[3].until("finished") == 1, "late output of the newest is still wanted"
        assert cells[0].told.empty(), "nobody waits for that of older ones"

    async def test_a_listener_that_fails_costs_no_other_its_events(
        self, node: Scripted, connection: Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        listener = Listener()
        connection.mesh_deaths["m"] = lambda _: 1 // 0  # type: ignore[return-value]
        connection.submit(listener, submit())
        await node.next("submit")
        node.say(rank_died=pb.RankDied(mesh_id="m"))
        node.say(queued=pb.Queued(run_id="a", number=3))
        assert await listener.until("queued") == 3
        assert "node0 said what can not be taken in" in caplog.text

    async def test_a_version_mismatch_refuses_every_run(self, node: Scripted, connection: Connection) -> None:
        listener = await submitted(node, connection)
        node.say(refused=pb.Refused(error_json=error_to_json(VersionMismatch("protocol 2 here"))))
        assert await listener.until("refused") is VersionMismatch

    async def test_replay_asks_from_the_beginning(self, node: Scripted, connection: Connection) -> None:
        connection.replay(listener := await submitted(node, connection), "m")
        assert not (await node.next("follow")).cursors
        listener.run_id = "b"  # one that is no longer followed
        connection.replay(listener, "m")
        assert (await node.next("follow")).run_id == "b"

    async def test_replay_before_the_session_is_open(self, node: Scripted, connection: Connection) -> None:
        listener, sent = Listener(), submit(quiet=True)
        connection.submit(listener, sent)
        sent.quiet = False
        connection.replay(listener, "m")
        assert not (await node.next("submit")).quiet

    async def test_what_was_shown_is_told_soon(self, node: Scripted, connection: Connection) -> None:
        await submitted(node, connection)
        for end in (4, 8):
            node.say(output=output(0, b"text", end))
            shown = await node.next("shown")
            assert shown.cursors[0].stdout_bytes == end, "the next client begins there"

    async def test_what_nobody_was_shown_is_left_for_who_will(self, node: Scripted, connection: Connection) -> None:
        listener = Listener()
        listener.shows = False
        connection.follow(listener, "m", from_shown=True)
        await node.next("follow")
        node.say(output=output(0, b"text", 4))
        await listener.until("output")
        assert not connection._shown
        listener.shows = True
        node.say(output=output(0, b"more", 8))
        assert (await node.next("shown")).cursors[0].stdout_bytes == 8

    async def test_deaths_are_told_to_the_mesh(self, node: Scripted, connection: Connection) -> None:
        died: asyncio.Queue[int] = asyncio.Queue()
        connection.mesh_deaths["m"] = lambda message: died.put_nowait(message.rank)
        connection.ensure_session()
        node.say(rank_died=pb.RankDied(mesh_id="other", rank=1))
        node.say(rank_died=pb.RankDied(mesh_id="m", rank=3))
        assert await asyncio.wait_for(died.get(), 20) == 3


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
        connection.attach("r", SimpleNamespace())  # type: ignore[arg-type]
        assert (await node.next("attach")).reservation_id == "r"
        connection.let_go()
        connection.attach("s", SimpleNamespace())  # type: ignore[arg-type]
        assert (await node.next("attach")).reservation_id == "s", "the session goes on: a reservation is attached"
        assert node.sessions == 1

    async def test_a_session_that_was_let_go_opens_again_for_a_run_and_then_for_mail(
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
        connection.submit(Listener(), submit())
        assert (await node.next("submit")).run.run_id == "a"
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

    listener: Any = object()
    connection.attach("a-reservation", listener)
    while not node.sessions:  # the attach is on its way
        await asyncio.sleep(0)
    assert not connection.up
    connection.detach("a-reservation", listener)
    assert (await node.next("attach")).reservation_id == "a-reservation"
    assert (await node.next("detach")).reservation_id == "a-reservation"


async def test_who_has_an_expired_certificate_is_told_so_until_there_is_another(tmp_path: Path) -> None:
    authority = Authority.create("lab", TrustPaths(tmp_path))
    file = tmp_path / "bob.pem"
    authority.issue("bob", USER, 60.0, time.time() - 120.0).save(file)
    connection = Connection("host1", "127.0.0.1:1", load_identity(file, time.time() - 90.0))
    listener = Listener()
    connection.submit(listener, submit())
    assert await listener.until("refused") is TrustError
    with pytest.raises(TrustError, match=r"of bob in .*bob.pem has expired .* ago: ask .* for another invitation"):
        await connection.describe()
    (newest := authority.issue("bob", USER)).save(file)
    with pytest.raises(NodeUnreachable):
        await connection.describe()
    assert connection.identity == newest
    await connection.close()
