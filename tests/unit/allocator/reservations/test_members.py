"""What a client has half made or half ended on several nodes is ended on all of them when it is gone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_nb import config
from monarch_nb.allocator.processes.processes import identify, identify_in
from monarch_nb.allocator.reservations import members
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.errors import CertificateRefused, MeshNotFound, MonarchNbError, NodeUnreachable
from monarch_nb.ground.namespaces import pid_namespace
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.files_pb2 import Peer
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, make_node, reserve, spawn_request, store_request

NODES = [Peer(node_id="node0", address="unix:/0"), Peer(node_id="node1", address="unix:/1")]


class Told:
    """What nodes are told to end."""

    def __init__(self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: asyncio.Queue[tuple[str, str, str, str]] = asyncio.Queue()
        monkeypatch.setattr(node.files.relay, "call", self._call)

    async def _call(self, peer: Peer, method: str, request: Any, timeout_s: float, *, owner: str = "") -> None:
        self.calls.put_nowait((peer.node_id, method, request.ListFields()[0][1], owner))

    async def all(self) -> set[tuple[str, str, str, str]]:
        return {await asyncio.wait_for(self.calls.get(), 10) for _ in NODES}


@pytest.fixture
async def node(tmp_path: Path) -> NodeWithoutProcesses:
    return make_node(tmp_path)


@pytest.fixture
async def told(node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(node, monkeypatch)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is gone is waited for no longer."""
    monkeypatch.setattr(config, "PROVISIONAL_LEASE_S", 0.01)


def begun(*, mesh_id: str = "", done: bool = False) -> pb.UndertakeRequest:
    return pb.UndertakeRequest(
        reservation_id="r", mesh_id=mesh_id, nodes=NODES, owner="me", client_id="client", done=done
    )


def session_of(node: NodeWithoutProcesses, pid: int = 0) -> Session:
    session = Session()
    session.client_id, session.process = "client", identify_in(pid_namespace(), pid)
    node.sessions.add(session)
    return session


def in_progress(node: NodeWithoutProcesses) -> list[str]:
    return [key for key, _ in node.records.database.read("undertaking", pb.UndertakeRequest)]


def leave(node: NodeWithoutProcesses, session: Session) -> None:
    node.sessions.discard(session)
    node.undertakings.session_left(session)


RELEASED = {("node0", "Release", "r", "me"), ("node1", "Release", "r", "me")}
STOPPED = {("node0", "StopMesh", "m", "me"), ("node1", "StopMesh", "m", "me")}


@pytest.mark.usefixtures("at_once")
async def test_a_mesh_is_stopped(node: NodeWithoutProcesses, told: Told) -> None:
    node.undertakings.take(begun(mesh_id="m"))  # its session never came
    assert await told.all() == STOPPED


@pytest.mark.usefixtures("at_once")
async def test_a_client_that_is_back_goes_on_and_one_that_stays_away_not(
    node: NodeWithoutProcesses, told: Told
) -> None:
    node.undertakings.take(begun())
    leave(node, session_of(node))
    again = session_of(node)
    await asyncio.wait(node.undertakings._waiting.values())
    assert told.calls.empty()
    leave(node, again)
    assert await told.all() == RELEASED


async def test_the_end_of_its_process_is_waited_for_no_longer(node: NodeWithoutProcesses, told: Told) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as client:  # noqa: ASYNC220
        node.undertakings.take(begun())
        session = session_of(node, client.pid)
        leave(node, session)  # its connection broke
        for _ in range(100):
            await asyncio.sleep(0)
        assert told.calls.empty(), "it lives, and may come back"
        client.kill()
        assert await told.all() == RELEASED


@pytest.mark.usefixtures("at_once")
async def test_what_is_done_stays(node: NodeWithoutProcesses, told: Told, tmp_path: Path) -> None:
    session = session_of(node)
    node.undertakings.take(begun())
    node.undertakings.take(begun(done=True))
    assert not in_progress(make_node(tmp_path)), "also when the allocator is killed at once"
    node.undertakings.take(begun(mesh_id="m"))
    node.undertakings.mesh_is_whole("m")  # as the change of nodes says that came with it; its client may have died
    leave(node, session)
    assert not node.undertakings._waiting
    assert told.calls.empty()
    node.records.flush()
    assert not in_progress(node)


@pytest.mark.usefixtures("at_once")
async def test_the_next_allocator_looks_after_it(
    node: NodeWithoutProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_of(node)
    node.undertakings.take(begun())
    again = make_node(tmp_path)
    told = Told(again, monkeypatch)
    again.undertakings.resume()
    assert await told.all() == RELEASED
    assert not in_progress(again)


def test_a_pid_of_elsewhere_is_nobodys() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert identify_in(pid_namespace(), process.pid) == identify(process.pid)
        assert identify_in("pid:[1]", process.pid) is None
        assert identify_in("", process.pid) is None
        process.kill()
    assert identify_in(pid_namespace(), process.pid) is None


async def test_a_mesh_that_was_stopped_before_it_came_does_not_come(node: NodeWithoutProcesses) -> None:
    """The call of a client that was killed may arrive after what ends the mesh."""
    reserve(node)
    node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
    await node.leases.stop_mesh(MESH, "alice")
    for start in (node.stores.host(store_request()), node.forking.spawn(spawn_request())):
        with pytest.raises(MeshNotFound, match="stopped before it was started"):
            await start
    assert (node.supervisor.stores, node.supervisor.ranks, node.records.meshes) == (set(), {}, {})


@pytest.mark.parametrize("refusal", [CertificateRefused("was revoked"), NodeUnreachable("is away")])
async def test_what_a_node_is_to_know_is_not_given_up_for_a_certificate(
    node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch, refusal: MonarchNbError
) -> None:
    """The next one that this node shows may count."""
    refusals = [refusal, refusal]
    done = asyncio.Event()

    async def call(*_: object, **__: object) -> None:
        if refusals:
            raise refusals.pop()
        done.set()

    monkeypatch.setattr(members, "TELL_AGAIN_S", 0.001)
    monkeypatch.setattr(node.files.relay, "call", call)
    node.outbox.take(pb.UndertakeRequest(reservation_id="r", nodes=NODES[:1], owner="me"))
    await asyncio.wait_for(done.wait(), 10)
    assert not refusals


def using(client: str, linger_s: float = 0.01) -> pb.UndertakeRequest:
    return pb.UndertakeRequest(
        reservation_id="r", mesh_id="m", nodes=NODES, owner="me", client_id=client, linger_s=linger_s
    )


@pytest.mark.usefixtures("at_once")
async def test_a_mesh_ends_when_its_last_user_has_been_gone_for_a_while(node: NodeWithoutProcesses, told: Told) -> None:
    session = session_of(node)
    node.undertakings.take(using("client"))
    node.undertakings.mesh_is_whole("m")  # that it was made is another thing
    node.undertakings.take(using("gone before"))
    while len(in_progress(node)) > 1:
        await asyncio.sleep(0)
    assert told.calls.empty(), "another client uses it"
    leave(node, session)
    assert await told.all() == STOPPED
    assert not in_progress(node)
