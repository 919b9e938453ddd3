"""Who may do what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.api import access as access_module
from monarch_nb.allocator.api.access import Access, Revoked
from monarch_nb.allocator.api.guard import SERVICE
from monarch_nb.allocator.api.rules import CONTROL_RULES, RULES, SESSION_RULES
from monarch_nb.config import SHARED_VARIABLE, TrustPaths
from monarch_nb.errors import (
    AccessDenied,
    CertificateRefused,
    MeshNotFound,
    ReservationNotFound,
    UsageError,
)
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.proto.mail_pb2 import Address, Envelope
from monarch_nb.rpc.callers import Caller
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import NODE as NODE_ROLE
from monarch_nb.trust.identity import USER
from monarch_nb.trust.identity_file import IdentityFile
from unit.allocator.api.people import ALICE, BOB, FOR_ALICE, LOCAL, MADE_THE_POOL, NODE
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, access_of, spawn_request, store_request

ADDRESS = "host1:7878"
METHODS = [method.name for method in SERVICE.methods]
FOR_EVERYBODY = {"Describe", "Revoke", "Status", "Usage"}
READ = {"ReadLogs", "WatchLog", "ReadLines", "SearchLog", "ReadMetrics"}
RUN = READ | {"Drop", "HostStore", "PutBlob", "ReadBlob", "Workspace", "ListFiles", "ReadFile", "SeeToken"}
FOR_PEOPLE = FOR_EVERYBODY | {"Probe", "Session", "Wait"}
FOR_NODES = FOR_EVERYBODY | {"Listen", "Mail"}
OWN = set(METHODS) - FOR_EVERYBODY - {"Listen", "Mail", "Shutdown"}
"""What the owner may besides what everybody may."""


@pytest.fixture
async def access(node: NodeWithoutProcesses) -> Access:
    """Of a node where alice holds a reservation with a mesh."""
    node.leases.reserve(pb.ReserveRequest(reservation_id="r", name="dev", owner="alice", procs=2))
    await node.stores.host(store_request())
    await node.forking.spawn(spawn_request())
    node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
    return access_of(node, "host1", ADDRESS)


def request_of(method: str) -> Any:
    """Return a request about alice's reservation, with whatever its message has to name it by."""
    message = SERVICE.methods_by_name[method].input_type._concrete_class()
    known = {"reservation_id": "r", "mesh_id": MESH, "python": "/home/bob/python", "kill": True}
    for name, value in known.items():
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    if method == "HostStore":
        message.mesh_id = "s" * 32  # of a script: the mesh has its store already
    return message


def may(access: Access, caller: Caller, method: str) -> bool:
    try:
        access.admit(method, caller, None if method == "Session" else request_of(method))
    except AccessDenied:
        return False
    return True


def submit_as(node: NodeWithoutProcesses, owner: str, run_id: str) -> None:
    run = run_pb2.RunSpec(run_id=run_id)
    submit = pb.Submit(mesh_id=MESH, run=run, ranks=[0], all_ranks=[0], give_number=True, owner=owner)
    node.state.submit(submit, now=1.0)


def is_denied(access: Access, method: str, caller: Caller, request: Any) -> None:
    with pytest.raises(AccessDenied):
        access.admit(method, caller, request)


class TestTables:
    def test_everything_that_can_be_asked_has_a_rule_and_nothing_else_has(self) -> None:
        assert set(RULES) == set(METHODS)
        in_sessions, of_ranks = (
            {kind.name for kind in message.DESCRIPTOR.oneofs_by_name["message"].fields}
            for message in (pb.SessionRequest, wire.ControlRequest)
        )
        assert set(SESSION_RULES) == in_sessions
        assert set(CONTROL_RULES) == of_ranks - {"interrupt", "exit"} | {"kill"}

    @pytest.mark.parametrize(
        ("caller", "right", "allowed"),
        [
            (BOB, None, FOR_PEOPLE),
            (BOB, pb.RIGHT_READ, FOR_PEOPLE | READ),
            (BOB, pb.RIGHT_RUN, FOR_PEOPLE | RUN | {"DescribeEnvironment"}),
            (ALICE, None, FOR_EVERYBODY | OWN),
            (FOR_ALICE, None, FOR_EVERYBODY | OWN | {"Mail"}),
            (MADE_THE_POOL, None, FOR_PEOPLE | {"Release", "Shutdown"}),
            (NODE, None, FOR_NODES),
            (LOCAL, None, set(METHODS)),
        ],
        ids=["stranger", "reader", "runner", "owner", "node for the owner", "who made the pool", "node", "local"],
    )
    async def test_who_may_call_what_about_alices_reservation(
        self, node: NodeWithoutProcesses, access: Access, caller: Caller, right: Any, allowed: set[str]
    ) -> None:
        if right:
            node.state.leases["r"].shares["bob"] = right
        assert {method for method in METHODS if may(access, caller, method)} == allowed


class TestOwners:
    async def test_all_is_the_callers_whatever_the_request_says_but_on_the_unix_socket(self, access: Access) -> None:
        for method, message, caller, owner in (
            ("Reserve", pb.ReserveRequest, BOB, "bob"),
            ("Wait", pb.WaitRequest, BOB, "bob"),
            ("Reserve", pb.ReserveRequest, LOCAL, "alice"),
        ):
            request = message(owner="alice")
            access.admit(method, caller, request)
            assert request.owner == owner

    async def test_the_error_says_whose_it_is_and_what_to_ask_for(self, node: Any, access: Access) -> None:
        see = files_pb2.SeeTokenRequest()
        with pytest.raises(
            AccessDenied, match=r"^dev on host1 is alice's: only alice can restart its ranks$"
        ) as caught:
            access.admit("Restart", BOB, pb.RestartRequest(mesh_id=MESH))
        assert (caught.value.owner, caught.value.name) == ("alice", "dev")
        with pytest.raises(AccessDenied, match=r"alice can let you read its logs \(%mesh share dev --to bob --read\)$"):
            access.admit("ReadLogs", BOB, pb.ReadLogsRequest(mesh_id=MESH))
        with pytest.raises(AccessDenied, match="look for files there; bob may on nothing there"):
            access.admit("SeeToken", BOB, see)
        node.state.leases["r"].shares["bob"] = pb.RIGHT_READ
        with pytest.raises(AccessDenied, match=r"alice can let you look for files there \(%mesh share dev"):
            access.admit("SeeToken", BOB, see)

    async def test_what_is_said_of_a_release(self, access: Access) -> None:
        """Why, is for nodes to say; who made the pool is named; only people have nodes tell others, in their name."""
        for caller, why, by, absent in (
            (ALICE, "", "in the panel", 1),
            (FOR_ALICE, "its time was up", "in the panel", 0),
            (MADE_THE_POOL, "", f"in the panel by {MADE_THE_POOL.name}", 1),
        ):
            request = pb.ReleaseRequest(reservation_id="r", why="its time was up", by="in the panel", owner="bob")
            request.absent.add(node_id="host2")
            access.admit("Release", caller, request)
            assert (request.why, request.by, len(request.absent)) == (why, by, absent)
            assert request.owner == "alice" or caller is MADE_THE_POOL

    async def test_what_is_undertaken_is_so_in_the_callers_own_name(self, access: Access) -> None:
        for reservation_id in ("r", "unknown"):
            request = pb.UndertakeRequest(reservation_id=reservation_id, owner="bob")
            access.admit("Undertake", ALICE, request)
            assert request.owner == "alice"
        with pytest.raises(AccessDenied):
            access.admit("Undertake", BOB, pb.UndertakeRequest(reservation_id="r", owner="alice"))
        request = pb.UndertakeRequest(reservation_id="r", owner="alice")
        access.admit("Undertake", MADE_THE_POOL, request)
        assert request.owner == "alice", "who made the pool may release what is others'"

    async def test_how_anothers_reservation_ended_is_not_told(self, node: NodeWithoutProcesses, access: Access) -> None:
        access.admit("Extend", BOB, pb.ExtendRequest(reservation_id="unknown"))  # it is for the method to deny
        node.state.end("r", 1.0, why="its time was up")
        node.state.release("r")
        for method, request, error in (
            ("Extend", pb.ExtendRequest(reservation_id="r"), ReservationNotFound),
            ("ReadLogs", pb.ReadLogsRequest(mesh_id=MESH), MeshNotFound),
        ):
            with pytest.raises(error) as raised:
                access.admit(method, BOB, request)
            assert type(raised.value) is error

    async def test_output_of_what_has_ended_is_for_who_held_it(self, node: NodeWithoutProcesses) -> None:
        access = access_of(node, "host1", ADDRESS)
        access.owner_of_past = {"past": "alice"}.get  # type: ignore[assignment]
        request = pb.ReadLogsRequest(mesh_id="past")
        access.admit("ReadLogs", ALICE, request)
        with pytest.raises(MeshNotFound):
            access.admit("ReadLogs", BOB, request)
        told = pb.StatusReply(past_logs=[pb.PastLog(owner="alice")])
        assert [len(access.shown(caller, told).past_logs) for caller in (ALICE, BOB, LOCAL)] == [1, 0, 1]

    async def test_a_mesh_takes_no_other_ones_place(self, access: Access, node: NodeWithoutProcesses) -> None:
        node.leases.reserve(pb.ReserveRequest(reservation_id="b", name="his", owner="bob", procs=1))
        for method, message in (("Spawn", pb.SpawnRequest), ("HostStore", pb.HostStoreRequest)):
            with pytest.raises(UsageError):
                access.admit(method, BOB, message(reservation_id="b", mesh_id=MESH))
            access.admit(method, BOB, message(reservation_id="b", mesh_id="n" * 32))
        with pytest.raises(UsageError, match="in another reservation"):
            access.admit("ChangeMembers", BOB, pb.ChangeMembersRequest(reservation_id="b", makes=MESH))
        access.admit("ChangeMembers", BOB, pb.ChangeMembersRequest(reservation_id="b", makes="n" * 32))
        access.admit("ChangeMembers", ALICE, pb.ChangeMembersRequest(reservation_id="r", makes=MESH))

    async def test_what_is_the_owners_within_what_others_may(self, access: Access, node: NodeWithoutProcesses) -> None:
        """Anybody may ask what a node offers by itself, nodes bring mail, and who may run cells replaces no store."""
        access.admit("DescribeEnvironment", BOB, files_pb2.DescribeEnvironmentRequest(packages=["torch"]))
        for more in ({"python": "/home/bob/python"}, {"directories": ["/home/alice"]}):
            is_denied(access, "DescribeEnvironment", BOB, files_pb2.DescribeEnvironmentRequest(**more))
        access.admit("PutBlob", NODE, pb.BlobChunk(blob="b"))
        is_denied(access, "PutBlob", NODE, pb.BlobChunk(blob="b", mesh_id=MESH))
        node.state.leases["r"].shares["bob"] = pb.RIGHT_RUN
        is_denied(access, "HostStore", BOB, pb.HostStoreRequest(reservation_id="r", mesh_id=MESH))


class TestRuns:
    @pytest.fixture
    async def shared(self, node: NodeWithoutProcesses, access: Access) -> Access:
        """With a run of alice's and one of bob's, who may run cells."""
        node.state.leases["r"].shares["bob"] = pb.RIGHT_RUN
        submit_as(node, "alice", "hers")
        submit_as(node, "bob", "his")
        return access

    async def test_only_who_has_submitted_a_run_interrupts_it_and_the_owner(self, shared: Access) -> None:
        for kind, message in (("cancel", pb.Cancel), ("end_calls", pb.EndCalls)):
            shared.admit_message(BOB, kind, message(run_id="his"))
            with pytest.raises(AccessDenied):
                shared.admit_message(BOB, kind, message(run_id="hers"))
            for run_id in ("his", "hers"):
                shared.admit_message(ALICE, kind, message(run_id=run_id))
        new = pb.Submit(mesh_id=MESH, run=run_pb2.RunSpec(run_id="new"), owner="alice")
        shared.admit_message(BOB, "submit", new)
        assert new.owner == "bob", "whatever the message says"

    async def test_others_cells_are_not_dropped_nor_their_scripts_killed(self, shared: Access) -> None:
        shared.admit("Drop", BOB, pb.DropRequest(mesh_id=MESH, run_ids=["his", "not here yet"]))
        is_denied(shared, "Drop", BOB, pb.DropRequest(mesh_id=MESH, run_ids=["his", "hers"]))
        shared.admit("Control", BOB, pb.ControlRanksRequest(mesh_id=MESH, kill=True, run_id="his"))
        for run_id in ("hers", ""):
            is_denied(shared, "Control", BOB, pb.ControlRanksRequest(mesh_id=MESH, kill=True, run_id=run_id))

    async def test_results_are_collected_by_who_has_submitted_the_run(self, shared: Access) -> None:
        assert [shared.is_submitter(BOB, run_id) for run_id in ("his", "hers")] == [True, False]
        assert [shared.is_submitter(ALICE, run_id) for run_id in ("his", "hers")] == [False, True]
        assert not shared.is_submitter(BOB, MESH), "the store of a mesh is no script's"
        assert shared.is_submitter(LOCAL, "hers")

    async def test_a_run_is_not_called_as_one_of_another_mesh(self, shared: Access, node: NodeWithoutProcesses) -> None:
        node.leases.reserve(pb.ReserveRequest(reservation_id="c", name="c", owner="carol", procs=1))
        node.state.add_mesh(pb.SpawnRequest(reservation_id="c", mesh_id="c" * 32, name="main", ranks=1))
        carol = Caller("carol", "user")
        for run_id in ("hers", MESH):
            message = pb.Submit(mesh_id="c" * 32, run=run_pb2.RunSpec(run_id=run_id))
            with pytest.raises(UsageError):
                shared.admit_message(carol, "submit", message)

    async def test_a_stranger_learns_nothing_of_runs(self, shared: Access) -> None:
        carol = Caller("carol", "user")
        look = pb.Look(mesh_id=MESH, look_id="l", ranks=[0], of_run="hers")
        for kind, message in (
            ("submit", pb.Submit(mesh_id=MESH)),
            ("follow", pb.Follow(mesh_id=MESH, run_id="hers")),
            ("cancel", pb.Cancel(run_id="hers")),
            ("attach", pb.Attach(reservation_id="r")),
            ("look", look),
        ):
            with pytest.raises(AccessDenied):
                shared.admit_message(carol, kind, message)
        for caller in (ALICE, BOB):
            shared.admit_message(caller, "look", look)
        assert [shared.may_read(caller, "r") for caller in (carol, BOB, ALICE, LOCAL)] == [False, True, True, True]


class TestMail:
    def mail(self, process: str = f"{MESH}/0", sender: str = "client/b", node: str = ADDRESS) -> Envelope:
        return Envelope(node=node, processes=[process], sender=Address(node=ADDRESS, process=sender))

    async def test_a_client_sends_from_its_own_mailbox_to_this_node(self, access: Access) -> None:
        assert access.is_own_mail(BOB, "client/b", self.mail())
        assert not access.is_own_mail(BOB, "client/b", self.mail(sender="client/a"))
        assert not access.is_own_mail(BOB, "", self.mail(sender=""))
        assert not access.is_own_mail(BOB, "client/b", self.mail(node="host2:7878")), "it would pass as a node's"
        assert access.is_own_mail(LOCAL, "client/b", self.mail(sender="client/a"))
        for _ in range(2):
            access.admit_message(ALICE, "open", pb.Open(mailbox="client/a"))
        for mailbox in ("client/a", f"{MESH}/0"):
            with pytest.raises(AccessDenied):
                access.admit_message(BOB, "open", pb.Open(mailbox=mailbox))

    async def test_it_reaches_ranks_where_one_may_run_cells(self, access: Access, node: NodeWithoutProcesses) -> None:
        access.admit_mail(ALICE, self.mail())
        for process in (f"{MESH}/0", "client/a", "unknown/0"):
            with pytest.raises((AccessDenied, MeshNotFound)):
                access.admit_mail(BOB, self.mail(process))
        node.state.leases["r"].shares["bob"] = pb.RIGHT_READ
        with pytest.raises(AccessDenied):
            access.admit_mail(BOB, self.mail())
        node.state.leases["r"].shares["bob"] = pb.RIGHT_RUN
        access.admit_mail(BOB, self.mail())


class TestExpiry:
    """A certificate counts until its end, also where a stream is open already."""

    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority.create("lab", TrustPaths(tmp_path))

    @pytest.fixture
    def guarded(self, node: NodeWithoutProcesses, authority: Authority, tmp_path: Path) -> Access:
        authority.issue("node", NODE_ROLE).save(tmp_path / "node.pem")
        revoked = Revoked(IdentityFile(tmp_path / "node.pem"), tmp_path / "revoked.pem")
        return access_of(node, "host1", ADDRESS, revoked)

    async def test_an_open_stream_ends_then(
        self, guarded: Access, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        facts = authority.issue("bob", USER, 3600.0).facts
        bob, ends = Caller("bob", USER, facts), asyncio.Event()
        with guarded.watched("Session", bob, None):
            [ended] = guarded._open
        assert ended.timer is not None
        assert ended.timer.cancelled(), "one that has ended is looked at no more"
        monkeypatch.setattr(access_module, "LOOK_AT_CLOCK_S", 0.001)

        async def stream() -> None:
            with guarded.watched("Session", bob, None):
                ends.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stream())
        await ends.wait()
        guarded.admit_message(bob, "unfollow", None)
        monkeypatch.setattr(time, "time", lambda: facts.not_after + 1.0)
        with pytest.raises(CertificateRefused, match=r"bob's certificate .* has expired .*: ask the person who"):
            await asyncio.wait_for(task, 20)
        with pytest.raises(CertificateRefused, match="has expired"):
            guarded.admit_message(bob, "unfollow", None)


class TestWhatOthersSee:
    def status(self) -> pb.StatusReply:
        spec = pb.SpawnRequest(
            mesh_id=MESH,
            name="main",
            environment={"HF_TOKEN": "hf_secret", SHARED_VARIABLE: "/data"},
            directory="/home/alice",
        )
        run = pb.RunStatus(run_id="hers", title="secret_sauce()", notebook="/home/alice/plans.ipynb")
        held = pb.ReservationStatus(
            reservation_id="r", name="dev", owner="alice", procs=2, nodes=1, confirmed=True, time_s=60.0, idle_s=30.0
        )
        held.time_left_s, held.notebook = 50.0, "/home/alice/plans.ipynb"
        held.shares["bob"] = held.shares["carol"] = pb.RIGHT_READ
        held.files.added.add(name="data", source="host:/home/alice/data")
        held.meshes.add(mesh_id=MESH, spec=spec, runs=[run], ranks=[pb.Rank(rank=0, pid=7)])
        ended = [pb.Ended(name=name, owner=name, why="its time was up") for name in ("alice", "bob")]
        return pb.StatusReply(node=pb.DescribeReply(node_id="host1"), reservations=[held], ended=ended)

    async def test_the_owner_sees_everything_and_a_stranger_who_holds_how_much_until_when(self, access: Access) -> None:
        seen, (told,) = access.shown(BOB, self.status()), self.status().reservations
        facts = {"reservation_id": "r", "name": "dev", "owner": "alice", "procs": 2, "nodes": 1, "confirmed": True}
        assert list(seen.reservations) == [pb.ReservationStatus(**facts, time_s=60.0, time_left_s=50.0)]
        assert access.shown(MADE_THE_POOL, self.status()).reservations == seen.reservations, "no more than others"
        assert ([ended.owner for ended in seen.ended], seen.node.node_id) == (["bob"], "host1")
        assert not seen.HasField("readings")
        told.right = pb.RIGHT_OWN
        assert list(access.shown(ALICE, self.status()).reservations) == [told]

    async def test_a_reader_sees_runs_but_no_variables_of_the_environment_nor_who_else_reads(
        self, node: NodeWithoutProcesses, access: Access
    ) -> None:
        node.state.leases["r"].shares["bob"] = pb.RIGHT_READ
        (seen,) = access.shown(BOB, self.status()).reservations
        assert seen.meshes[0].runs[0].title == "secret_sauce()"
        assert seen.meshes[0].spec.environment == {SHARED_VARIABLE: "/data"}, "which doctor asks for"
        assert dict(seen.shares) == {"bob": pb.RIGHT_READ}
        assert seen.right == pb.RIGHT_READ

    def usage(self) -> pb.UsageReply:
        people = ("alice", "bob")
        near = [pb.Standing(who=who, is_group=who != "bob", kind="gpus") for who in ("bob", "vision", "staff")]
        return pb.UsageReply(
            node_id="host1",
            held=[pb.Held(name="dev", owner=name) for name in people],
            standings=[*near, pb.Standing(who="alice", kind="gpus"), pb.Standing(who="bob", is_group=True)],
        )

    async def test_a_person_sees_what_they_hold_and_their_limits(self, access: Access) -> None:
        seen = access.shown_usage(BOB, self.usage(), {"vision"})
        assert [one.owner for one in seen.held] == ["bob"]
        assert [(one.who, one.is_group) for one in seen.standings] == [("bob", False), ("vision", True)]
        for_alice = access.shown_usage(FOR_ALICE, self.usage(), ())
        assert [one.owner for one in for_alice.held] == ["alice"]
