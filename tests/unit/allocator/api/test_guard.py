"""A node's service over TLS, called with certificates of people and nodes of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from monarch_nb import config
from monarch_nb.allocator.api import guard
from monarch_nb.allocator.api.guard import SERVICE, Guard
from monarch_nb.allocator.api.service import AllocatorService
from monarch_nb.errors import AccessDenied, MonarchNbError, UsageError, VersionMismatch
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub
from monarch_nb.rpc.channel import make_server
from monarch_nb.rpc.status import error_from_json, translate
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import Identity
from monarch_nb.trust.pools import make_paths
from unit.allocator.idle_node import (
    MESH,
    NodeWithoutProcesses,
    access_of,
    spawn_request,
    state_after_restart,
    store_request,
)

TIMEOUT_S = 60.0
Connect = Callable[[str, str], Any]


@pytest.fixture
async def connect(
    node: NodeWithoutProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Connect]:
    """Return what connects somebody, by name and role, to a node where alice holds a reservation with a mesh."""
    monkeypatch.setenv("MONARCH_NB_CONFIG", str(tmp_path / "config"))
    authority = Authority.create("lab", make_paths("lab"))
    node.leases.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="alice", procs=2))
    await node.stores.host(store_request())
    await node.forking.spawn(spawn_request())
    node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
    server, port = _serve(node, authority.issue("host1", "node"))
    await server.start()
    channels = []

    def connect(name: str, role: str) -> Any:
        identity = authority.issue(name, role)
        credentials = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
        options = (("grpc.ssl_target_name_override", identity.target_name),)
        channels.append(grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options))
        stub: Any = AllocatorStub(channels[-1])  # type: ignore[no-untyped-call, unused-ignore]
        return stub

    yield connect
    await asyncio.gather(*(channel.close() for channel in channels))
    await server.stop(grace=None)


def _serve(node: NodeWithoutProcesses, identity: Identity) -> tuple[grpc.aio.Server, int]:
    access = access_of(node, "host1", "host1:7878")
    server = make_server()
    Guard(AllocatorService(node, access), access, node.paths.directory).serve_on(server)
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.authority, require_client_auth=True
    )
    return server, server.add_secure_port("127.0.0.1:0", credentials)


async def outcome(call: Any) -> MonarchNbError | None:
    """Return what a call, or a stream of answers, is refused with."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return translate(error, "host1")
    return None


FOR_EVERYBODY = {"Describe", "Probe", "Revoke", "Session", "Status", "Usage", "Wait"}


async def test_every_method_asks_who_calls(connect: Connect) -> None:
    """A stranger gets nothing out of any method of the service, whatever kind of stream it is."""
    bob, refused = connect("bob", "user"), set()
    for method in SERVICE.methods:
        request = method.input_type._concrete_class()
        for name, value in {"reservation_id": "r", "mesh_id": MESH, "python": "/bin/true"}.items():
            if name in method.input_type.fields_by_name:
                setattr(request, name, value)
        if method.name in FOR_EVERYBODY:
            continue
        call = getattr(bob, method.name)
        error = await outcome(call(iter([request])) if method.client_streaming else call(request))
        if isinstance(error, AccessDenied):
            refused.add(method.name)
    assert refused == {method.name for method in SERVICE.methods} - FOR_EVERYBODY


class Stream:
    """A client's session."""

    def __init__(self, stub: Any) -> None:
        self._call = stub.Session()
        self._events: list[pb.SessionEvent] = []

    async def send(self, **message: Any) -> None:
        await self._call.write(pb.SessionRequest(**message))

    async def next(self) -> pb.SessionEvent:
        async with asyncio.timeout(TIMEOUT_S):
            while not self._events:
                self._events += (await self._call.read()).events
        return self._events.pop(0)

    async def opened(self) -> Stream:
        await self.send(open=pb.Open(protocol=config.PROTOCOL))
        assert (await self.next()).HasField("opened")
        return self

    async def opened_on_mesh(self) -> Stream:
        await self.opened()
        await self.send(branches=pb.Branches(mesh_id=MESH, ranks_per_node=2))
        return self


async def test_a_strangers_session_is_refused_what_it_asks_for_and_goes_on(
    connect: Connect, node: NodeWithoutProcesses
) -> None:
    session = await Stream(connect("bob", "user")).opened()
    submit = pb.Submit(mesh_id=MESH, run=run_pb2.RunSpec(run_id="his"), ranks=[0], give_number=True, owner="alice")
    for message in (
        {"submit": submit},
        {"follow": pb.Follow(mesh_id=MESH, run_id="his")},
        {"attach": pb.Attach(reservation_id="r")},
    ):
        await session.send(**message)
        refused = (await session.next()).refused
        assert isinstance(error_from_json(refused.error_json), AccessDenied)
    assert not node.state.meshes[MESH].runs
    assert not any(one.attached or one.run_ids for one in node.sessions)


async def test_a_session_of_another_version_is_refused_by_its_name(connect: Connect) -> None:
    session = Stream(connect("alice", "user"))
    await session.send(open=pb.Open(protocol=99))
    refused = error_from_json((await session.next()).refused.error_json)
    assert isinstance(refused, VersionMismatch)
    assert "protocol 99" in str(refused)


async def test_only_who_may_read_hears_that_a_rank_has_died(connect: Connect, node: NodeWithoutProcesses) -> None:
    alice = await Stream(connect("alice", "user")).opened()
    bob = await Stream(connect("bob", "user")).opened()
    node.supervisor.explain_death = lambda *_: run_pb2.Death(signal=9)
    node.on_death(node.supervisor.ranks[MESH, 1], 0)
    assert (await alice.next()).rank_died.rank == 1
    await bob.send(attach=pb.Attach(reservation_id="r"))
    assert (await bob.next()).HasField("refused"), "nothing came before"


async def test_who_comes_over_the_network_is_not_told_of_doors_where_nobody_asks_for_rights(connect: Connect) -> None:
    call = connect("bob", "user").Session()
    await call.write(pb.SessionRequest(open=pb.Open(protocol=config.PROTOCOL)))
    async with asyncio.timeout(TIMEOUT_S):
        (event,) = (await call.read()).events
    assert (event.opened.mail_socket, event.opened.mail_directory) == ("", "")


def share(right: pb.Right.ValueType) -> pb.ShareRequest:
    return pb.ShareRequest(reservation_id="r", to="bob", right=right)


def submit(run_id: str) -> pb.Submit:
    run = run_pb2.RunSpec(run_id=run_id)
    return pb.Submit(mesh_id=MESH, run=run, all_ranks=[0, 1], give_number=True, title=f"{run_id}()")


class TestShares:
    async def test_a_reader_reads_logs_and_runs_nothing(self, connect: Connect) -> None:
        alice, bob = connect("alice", "user"), connect("bob", "user")
        await alice.Share(share(pb.RIGHT_READ))
        assert await outcome(bob.ReadLogs(pb.ReadLogsRequest(mesh_id=MESH))) is None
        (seen,) = (await bob.Status(pb.StatusRequest())).reservations
        assert seen.right == pb.RIGHT_READ
        session = await Stream(bob).opened_on_mesh()
        await session.send(submit=submit("his"))
        denied = error_from_json((await session.next()).refused.error_json)
        assert str(denied) == (
            "dev on host1 is alice's, shared with you to read: alice can let you run cells on it "
            "(%mesh share dev --to bob --run)"
        )

    async def test_what_somebody_has_queued_is_dropped_and_followed_no_more(
        self, connect: Connect, node: NodeWithoutProcesses
    ) -> None:
        owner = connect("alice", "user")
        await owner.Share(share(pb.RIGHT_RUN))
        alice, bob = await Stream(owner).opened_on_mesh(), await Stream(connect("bob", "user")).opened_on_mesh()
        await alice.send(submit=submit("hers"))
        assert (await alice.next()).HasField("queued")
        await bob.send(attach=pb.Attach(reservation_id="r"))
        await bob.send(submit=submit("his"))
        assert (await bob.next()).queued.ahead
        await owner.Share(share(pb.RIGHT_UNSPECIFIED))
        results = []
        while (event := await bob.next()).HasField("finished"):
            results += event.finished.results
        assert {result.outcome for result in results} == {run_pb2.OUTCOME_CANCELLED}
        refused = event.refused
        assert refused.run_id == "his"
        assert str(error_from_json(refused.error_json)) == "alice no longer shares dev with you"
        assert not any(session.attached for session in node.sessions)
        mesh = node.state.meshes[MESH]
        assert mesh.runs["his"].finished
        assert not mesh.runs["hers"].finished, "it runs"

    async def test_who_may_only_read_from_now_on_goes_on_to_follow(
        self, connect: Connect, node: NodeWithoutProcesses
    ) -> None:
        owner = connect("alice", "user")
        await owner.Share(share(pb.RIGHT_RUN))
        bob = await Stream(connect("bob", "user")).opened_on_mesh()
        await bob.send(attach=pb.Attach(reservation_id="r"))
        await bob.send(look=pb.Look(mesh_id=MESH, look_id="of none that is here", ranks=[7]))
        await bob.send(submit=submit("his"))
        assert (await bob.next()).HasField("queued")
        await owner.Share(share(pb.RIGHT_READ))
        assert not node.state.meshes[MESH].runs["his"].finished, "it runs: its owner may interrupt it"
        assert [(session.attached, "his" in session.run_ids) for session in node.sessions] == [({"r"}, True)]

    async def test_who_holds_slots_learns_who_waits_for_them_and_others_do_not(self, connect: Connect) -> None:
        alice, bob = connect("alice", "user"), connect("bob", "user")
        places = aiter(bob.Wait(pb.WaitRequest(nodes=1, procs=2, wait_id="w", owner="eve")))
        async with asyncio.timeout(TIMEOUT_S):
            assert (await anext(places)).place == 1
        (held,) = (await alice.Status(pb.StatusRequest())).reservations
        assert [(one.owner, one.procs) for one in held.waiting] == [("bob", 2)]
        (seen,) = (await bob.Status(pb.StatusRequest())).reservations
        assert not seen.waiting

    async def test_a_grant_makes_nobody_an_owner_and_survives_the_allocator(
        self, connect: Connect, node: NodeWithoutProcesses
    ) -> None:
        alice = connect("alice", "user")
        herself = pb.ShareRequest(reservation_id="r", to="alice", right=pb.RIGHT_READ)
        assert isinstance(await outcome(alice.Share(herself)), UsageError)
        await alice.Share(share(pb.RIGHT_OWN))
        assert state_after_restart(node).leases["r"].shares == {"bob": pb.RIGHT_RUN}


@pytest.mark.parametrize(("mesh", "why"), [(MESH, "No such file or directory"), ("f" * 32, "does not exist")])
async def test_who_is_still_sending_learns_why_it_is_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, mesh: str, why: str
) -> None:
    """gRPC says "Internal error from Core" to clients whose call ends while they write: so all is read before."""
    sent: list[int] = []

    async def chunks() -> AsyncIterator[pb.BlobChunk]:
        yield pb.BlobChunk(mesh_id=mesh, blob="0" * 32)
        for number in range(50):
            yield pb.BlobChunk(data=bytes(1 << 16))
            sent.append(number)

    monkeypatch.setattr(AllocatorService, "_blob_path", lambda *_: Path("/nowhere/at/all"))
    alice = connect("alice", "user")
    assert why in str(await outcome(alice.PutBlob(chunks())))
    assert sent == list(range(50))


async def test_who_writes_while_a_stream_is_refused_hears_why(connect: Connect) -> None:
    """As a client does that has runs to follow: gRPC would tell it of an internal error, again and again."""
    stub = connect("host2", "node")

    async def code_of_a_session() -> grpc.StatusCode:
        stream = stub.Session()
        try:
            for _ in range(5):
                await stream.write(pb.SessionRequest(unfollow=pb.Unfollow(run_id="run")))
            await stream.read()
        except grpc.aio.AioRpcError as error:
            return error.code()
        raise AssertionError("it was let in")

    async with asyncio.timeout(TIMEOUT_S):
        codes = await asyncio.gather(*(code_of_a_session() for _ in range(20)))
    assert set(codes) == {grpc.StatusCode.PERMISSION_DENIED}


class TestClaims:
    async def test_one_caller_at_a_time_has_a_name_of_a_reservation(
        self, connect: Connect, node: NodeWithoutProcesses
    ) -> None:
        alice, request = connect("alice", "user"), pb.ClaimRequest(reservation_id="r", name="monarch")
        async with asyncio.timeout(TIMEOUT_S):
            first = alice.Claim(request)
            await anext(aiter(first))
            second, other = alice.Claim(request), alice.Claim(pb.ClaimRequest(reservation_id="r", name="judges"))
            waiting = asyncio.ensure_future(anext(aiter(second)))
            await anext(aiter(other))
            await alice.Status(pb.StatusRequest())  # by now it would have been answered
            assert not waiting.done()
            first.cancel()
            await waiting
        second.cancel()
        other.cancel()
        refused = aiter(connect("bob", "user").Claim(request))
        assert isinstance(await outcome(refused), AccessDenied)


@pytest.mark.parametrize(
    "request_",
    [
        pb.SpawnRequest(mesh_id="../../.ssh"),
        pb.ReserveRequest(reservation_id="a/b"),
        pb.ReserveRequest(name="dev"),
        pb.HostStoreRequest(reservation_id="a"),
        pb.SpawnRequest(reservation_id="a"),
        pb.SessionRequest(submit=pb.Submit(mesh_id="a", run=run_pb2.RunSpec(number=1))),
        pb.ChangeMembersRequest(makes="../x"),
        pb.DropRequest(run_ids=["fine", "x" * 65]),
        pb.SessionRequest(submit=pb.Submit(run=run_pb2.RunSpec(run_id="."))),
        pb.ExtendRequest(time_s=float("nan")),
        pb.ReserveRequest(reservation_id="a", idle_s=float("inf")),
        pb.ReserveRequest(reservation_id="a", procs=2**32 - 1),
        pb.ReserveRequest(reservation_id="a", name="y" * 100_000),
        pb.ShareRequest(right=-1),  # type: ignore[arg-type]
        files_pb2.ReadFileRequest(path=b"/etc/host\0name"),
        guard.Garbled(),
    ],
    ids=lambda request: str(request)[:40].strip() or type(request).__name__,
)
def test_what_is_refused(request_: Any) -> None:
    with pytest.raises(UsageError) as refused:
        guard.check(request_)
    assert len(str(refused.value)) < 300


def test_what_is_let_in() -> None:
    run = run_pb2.RunSpec(run_id="0f" * 16, cell=run_pb2.Cell(code="print('\\0../..')" * 1000))
    guard.check(pb.SessionRequest(submit=pb.Submit(mesh_id="0e" * 16, run=run, title="x / y")))
    read = guard.reading(pb.ReserveRequest)
    assert read(b"") == pb.ReserveRequest()
    assert isinstance(read(b"\xff\xff"), guard.Garbled), "no message"
