"""Who may do what: the one place that says what each request needs. What is not in the tables is refused.

People are who has a certificate of the pool that is not a node's. They own what they reserve, and may grant others
rights to it (monarch_nb.allocator.state.lease). Nodes pass on what people ask for in their names, with their rights;
by themselves they only carry mail, where they do not know whose it is. What comes over the node's Unix socket comes
from the allocator's own user, and needs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_nb.allocator.mail.mail import CLIENT
from monarch_nb.allocator.memory.records import Records
from monarch_nb.allocator.state.lease import Right, released, right_of, to_wire
from monarch_nb.allocator.state.runs import Run
from monarch_nb.allocator.state.state import Lease, NodeState
from monarch_nb.config import SHARED_VARIABLE, cadence
from monarch_nb.errors import AccessDenied, CertificateRefused, MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.callers import Caller
from monarch_nb.times import time_of_day
from monarch_nb.trust.identity import ADMIN, NODE, USER, CertificateFacts, renewal
from monarch_nb.trust.identity_file import IdentityFile
from monarch_nb.trust.revocation import Revocations


class Revoked:
    """The newest list that this node has seen.

    Args:
        certificate: the node's own, which says whom it believes.
        path: where the list lies, so that the next allocator knows it.

    Raises:
        TrustError: the list there can not be used; to go on without it would let in who was revoked.
    """

    def __init__(self, certificate: IdentityFile, path: Path) -> None:
        self._certificate, self._path = certificate, path
        self._known = Revocations.load(path, certificate.newest().authority)

    @property
    def number(self) -> int:
        """Of the list: the greater, the newer; 0 when nothing was ever revoked."""
        return self._known.number

    def take(self, pem: bytes) -> bool:
        """Take a list in that somebody brought; return whether it is newer than the one before.

        Raises:
            TrustError: it is garbled, or the pool's authority has not signed it.
        """
        brought = Revocations.verify(pem, self._certificate.newest().authority)
        if brought.number <= self._known.number:
            return False
        brought.save(self._path)
        self._known = brought
        return True

    def check(self, facts: CertificateFacts) -> None:
        """Let a certificate pass that counts.

        Raises:
            CertificateRefused: it was revoked, or has expired while its connection was open; the message says what
                helps whose it is.
        """
        if self._known.is_revoked(facts):
            raise CertificateRefused(f"{_called(facts)} was revoked: {renewal(facts)}")
        if time.time() >= facts.not_after:
            raise CertificateRefused(f"{_called(facts)} has expired ({time_of_day(facts.not_after)}): {renewal(facts)}")


def _called(facts: CertificateFacts) -> str:
    whose = "the certificate of a node of" if facts.role == NODE else f"{facts.name}'s certificate for"
    return f"{whose} the pool {facts.pool} ({facts.fingerprint[:16]})"


Check = Callable[["Access", Caller, Any], None]
"""Called with a request (of a stream, the first) that is not local; raises AccessDenied. It may correct the request."""

PEOPLE = frozenset({USER, ADMIN})
EVERYBODY = PEOPLE | {NODE}
MAX_MAILBOXES = 10_000
LOOK_AT_CLOCK_S = cadence(60.0)
SEEN = ("reservation_id", "name", "owner", "procs", "gpus", "node_rank", "nodes", "created_at", "confirmed")
LIMITS_SEEN = ("time_s", "time_left_s")
"""What everybody learns of a reservation: that slots are taken, by whom, and until when."""


@dataclass(eq=False)
class OpenStream:
    """Answers that go on.

    Attributes:
        refused: why they are to end.
        timer: until the next look whether the caller's certificate has expired.
    """

    task: asyncio.Task[Any]
    method: str
    caller: Caller
    request: Any
    refused: MonarchNbError | None = None
    timer: asyncio.TimerHandle | None = None


class Access:
    """Answers for one node who may do what there.

    Args:
        node_id: for messages.
        address: by which clients know it.
        revoked: says which certificates count no longer; None where there are none.
        owner_of_past: whose the output of a mesh is that has ended; "" when it is not known.
    """

    def __init__(
        self,
        node_id: str,
        address: str,
        state: NodeState,
        records: Records,
        revoked: Revoked | None = None,
        owner_of_past: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.node_id, self._address, self._state, self._records = node_id, address, state, records
        self._revoked, self.owner_of_past = revoked, owner_of_past
        self._mailboxes: dict[str, str] = {}
        """Whose they are, those that were opened first first."""
        self._open: set[OpenStream] = set()

    # ---- what requests are asked for ----

    def admit(self, method: str, caller: Caller, request: Any) -> None:
        """Let a request in, or raise.

        Args:
            method: of the service.
            request: of a stream, the first; of sessions, which are asked for each of their messages, None.

        Raises:
            AccessDenied: the caller may not do that.
            ReservationNotFound, MeshNotFound: it may not know that there is such a one.
        """
        rule = RULES[method]
        if caller.local:
            return
        self._check_certificate(caller)
        if caller.role not in rule.roles and not (caller.node and rule.in_names):
            raise AccessDenied(_wrong_role(method, caller, rule))
        if rule.check is not None and request is not None:
            rule.check(self, caller, request)

    def _check_certificate(self, caller: Caller) -> None:
        if self._revoked is not None and caller.certificate is not None:
            self._revoked.check(caller.certificate)

    @contextlib.contextmanager
    def watched(self, method: str, caller: Caller, request: Any) -> Iterator[None]:
        """Around the answers to a request that was let in, in their task: they end when the request would not be let in
        any more.

        Raises:
            AccessDenied: and its like, as `admit` then does.
        """
        task = asyncio.current_task()
        assert task is not None
        stream = OpenStream(task, method, caller, request)
        self._open.add(stream)
        self._end_at_expiry(stream)
        try:
            yield
        except asyncio.CancelledError:
            if stream.refused is None:
                raise
            task.uncancel()
            raise stream.refused from None
        finally:
            self._open.discard(stream)
            if stream.timer is not None:
                stream.timer.cancel()

    @property
    def revocations(self) -> int:
        """Number of the newest list of revoked certificates; 0 when none was ever revoked."""
        return self._revoked.number if self._revoked else 0

    def revoke(self, pem: bytes) -> int:
        """Take a list of revoked certificates in, if it is newer, and end what these have open; return the number of
        the newest list.

        Raises:
            TrustError: the pool's authority has not signed it.
        """
        if self._revoked is None:
            return 0
        if self._revoked.take(pem):
            self.rights_changed()
        return self._revoked.number

    def rights_changed(self) -> None:
        """End what is open and would not be let in now."""
        for stream in list(self._open):
            self._end_if_refused(stream)

    def _end_if_refused(self, stream: OpenStream) -> None:
        try:
            self.admit(stream.method, stream.caller, stream.request)
        except MonarchNbError as error:
            stream.refused = error
            stream.task.cancel()

    def _end_at_expiry(self, stream: OpenStream) -> None:
        """End a stream when its certificate expires. The time of day may be set, and machines sleep: so it is looked at
        now and then."""
        if self._revoked is None or stream.caller.certificate is None or stream.refused is not None:
            return
        left_s = max(0.0, stream.caller.certificate.not_after - time.time())

        def look() -> None:
            self._end_if_refused(stream)
            self._end_at_expiry(stream)

        stream.timer = asyncio.get_running_loop().call_later(min(left_s, LOOK_AT_CLOCK_S), look)

    def admit_message(self, caller: Caller, kind: str, message: Any) -> None:
        """Let a message of a session in, or raise as `admit` does."""
        check = SESSION_RULES[kind]
        self._check_certificate(caller)
        if not caller.local and check is not None:
            check(self, caller, message)

    def is_own_mail(self, caller: Caller, mailbox: str, envelope: Envelope) -> bool:
        """Whether a client sends in its own name, from its own mailbox, and to this node."""
        sender = envelope.sender
        ways = (sender.process, sender.node, envelope.node)
        return caller.local or (mailbox != "" and ways == (mailbox, self._address, self._address))

    def is_of_member(self, envelope: Envelope) -> bool:
        """Whether mail from a node is not that of a rank whose place one of another node has."""
        reservation_id = self.reservation_of(envelope.sender.process.rpartition("/")[0])
        lease = self._state.leases.get(reservation_id)
        return lease is None or lease.has_node(envelope.sender.node)

    def admit_mail(self, caller: Caller, envelope: Envelope) -> None:
        """Let mail of a client in, or raise as `admit` does. Clients send to ranks."""
        for process in envelope.processes if not caller.local else ():
            self.need_mesh(caller, process.rpartition("/")[0], Right.RUN, "call its actors")

    # ---- what there is a right to ----

    def need(self, caller: Caller, reservation_id: str, right: Right, doing: str) -> None:
        """Raise unless the caller has a right to a reservation, or there is no such reservation."""
        lease = self._state.leases.get(reservation_id)
        if lease is not None:
            if (has := right_of(caller.name, lease)) < right:
                raise self._denied(caller, lease, has, right, doing)
        elif self._state.owner_of(reservation_id) not in ("", caller.name):
            raise ReservationNotFound("the reservation is not held here (released, or never confirmed); reserve again")

    def owner_of(self, reservation_id: str) -> str:
        """Return whose a reservation is, or was; "" when it is not known."""
        return self._state.owner_of(reservation_id)

    def need_mesh(self, caller: Caller, mesh_id: str, right: Right, doing: str) -> None:
        """Raise unless the caller has a right to a mesh's reservation. Meshes that others had here never were."""
        reservation_id = self.reservation_of(mesh_id)
        if reservation_id in self._state.leases:
            self.need(caller, reservation_id, right, doing)
            return
        for ended in self._state.ended.values():
            if mesh_id in ended.mesh_ids and ended.owner == caller.name:
                raise released(ended)
        raise self._state.no_mesh(mesh_id)

    def need_run(self, caller: Caller, run_id: str, doing: str) -> None:
        """Raise when somebody else has submitted a run, but to the owner of the mesh that it runs on."""
        for mesh_id, run in self.runs(run_id):
            if run.submit.owner != caller.name:
                self.need(caller, self.reservation_of(mesh_id), Right.OWN, doing)

    def need_any(self, caller: Caller, doing: str) -> None:
        """Raise unless the caller may run cells here, and so may do as the allocator's user what it wants."""
        leases = sorted(self._state.leases.values(), key=lambda lease: right_of(caller.name, lease), reverse=True)
        has = right_of(caller.name, leases[0]) if leases else Right.NONE
        if has >= Right.RUN:
            return
        if has:
            raise self._denied(caller, leases[0], has, Right.RUN, doing)
        raise AccessDenied(f"only who may run cells on {self.node_id} can {doing}; {caller.name} may on nothing there")

    def need_new(self, run_id: str, mesh_id: str) -> None:
        """Raise when a run is called as one of another mesh, or as a mesh: what is asked of one is not done to two."""
        elsewhere = [other for other, _ in self.runs(run_id) if other != mesh_id]
        store = self.reservation_of(run_id)
        if elsewhere or run_id in self._state.meshes or store not in ("", self.reservation_of(mesh_id)):
            raise UsageError("the run's id is taken: every run has one of its own")

    def reservation_of(self, mesh_id: str) -> str:
        """Return the reservation that a mesh, or a script's store, belongs to; "" when it is not known."""
        if mesh := self._state.meshes.get(mesh_id):
            return mesh.spec.reservation_id
        record = self._records.meshes.get(mesh_id)
        return record.spec.reservation_id if record else ""

    def is_submitter(self, caller: Caller, run_id: str) -> bool:
        """Whether the caller has submitted a run, and so says what was shown of it and collects its results."""
        if caller.local:
            return True
        if runs := self.runs(run_id):
            return all(run.submit.owner == caller.name for _, run in runs)
        return not self.reservation_of(run_id)  # else it is a mesh

    def may_read(self, caller: Caller, reservation_id: str) -> bool:
        """Whether the caller is told what happens to a reservation."""
        lease = self._state.leases.get(reservation_id)
        return caller.local or (lease is not None and right_of(caller.name, lease) >= Right.READ)

    def claim_mailbox(self, caller: Caller, mailbox: str) -> None:
        """A client takes mail: nobody else opens its mailbox."""
        if not mailbox or caller.local:
            return
        owner = self._mailboxes.setdefault(mailbox, caller.name)
        if owner != caller.name or not mailbox.startswith(f"{CLIENT}/"):
            raise AccessDenied(f"{mailbox} is no mailbox of {caller.name}")
        if len(self._mailboxes) > MAX_MAILBOXES:
            del self._mailboxes[next(iter(self._mailboxes))]

    def runs(self, run_id: str) -> list[tuple[str, Run]]:
        """Return the runs of that id, each with its mesh's."""
        meshes = self._state.meshes.items()
        return [(mesh_id, run) for mesh_id, mesh in meshes if (run := mesh.runs.get(run_id))]

    def _denied(self, caller: Caller, lease: Lease, has: Right, needed: Right, doing: str) -> AccessDenied:
        request, owner = lease.request, lease.request.owner
        whose = f"{request.name} on {self.node_id} is {owner}'s"
        shared = ", shared with you to " + ("read" if has is Right.READ else "run cells") if has else ""
        if not has and caller.name in lease.shares:
            shared = ", no longer shared with you"
        if needed is Right.OWN:
            message = f"{whose}{shared}: only {owner} can {doing}"
        else:
            how = "--run" if needed is Right.RUN else "--read"
            message = (
                f"{whose}{shared}: {owner} can let you {doing} (%mesh share {request.name} --to {caller.name} {how})"
            )
        return AccessDenied(message, owner, request.name)

    # ---- what others see ----

    def shown(self, caller: Caller, reply: pb.StatusReply) -> pb.StatusReply:
        """Return what a caller may see of a node's status."""
        if caller.local:
            for reservation in reply.reservations:
                reservation.right = pb.RIGHT_OWN
            return reply
        seen = pb.StatusReply(node=reply.node)
        seen.readings.CopyFrom(reply.readings)
        if not reply.HasField("readings"):
            seen.ClearField("readings")
        seen.ended.extend(ended for ended in reply.ended if ended.owner == caller.name)
        seen.past_logs.extend(past for past in reply.past_logs if past.owner == caller.name)
        for reservation in reply.reservations:
            lease = self._state.leases.get(reservation.reservation_id)
            right = Right.NONE if lease is None else right_of(caller.name, lease)
            seen.reservations.append(_as_seen(reservation, right, caller))
            if lease is not None and not right and caller.name in lease.shares:
                seen.reservations[-1].shares[caller.name] = pb.RIGHT_UNSPECIFIED
        return seen

    def shown_usage(self, caller: Caller, reply: pb.UsageReply, groups: Collection[str]) -> pb.UsageReply:
        """Return what a caller may see of who holds what: a person what is theirs, who made the pool and nodes all.

        Args:
            groups: the caller's.
        """
        if caller.local or caller.role in (ADMIN, NODE):
            return reply
        own = [each for each in reply.held if each.owner == caller.name]
        del reply.held[:]
        reply.held.extend(own)
        near = [one for one in reply.standings if (one.who in groups if one.is_group else one.who == caller.name)]
        del reply.standings[:]
        reply.standings.extend(near)
        return reply


def _as_seen(reservation: pb.ReservationStatus, right: Right, caller: Caller) -> pb.ReservationStatus:
    seen = pb.ReservationStatus(right=to_wire(right))
    if right is Right.NONE:
        for name in (*SEEN, *LIMITS_SEEN):
            setattr(seen, name, getattr(reservation, name))
        return seen
    seen.MergeFrom(reservation)
    if right < Right.OWN:
        seen.shares.clear()
        seen.shares[caller.name] = to_wire(right)
    if right < Right.RUN:
        for mesh in seen.meshes:
            told = {name: value for name, value in mesh.spec.environment.items() if name == SHARED_VARIABLE}
            mesh.spec.environment.clear()  # tokens and passwords, most likely
            mesh.spec.environment.update(told)
    return seen


def _wrong_role(method: str, caller: Caller, rule: Rule) -> str:
    if caller.role == NODE:
        return f"{caller.name}'s certificate is a node's, and {method} is for people: use the one of `pool invite`"
    if ADMIN in rule.roles:
        return f"{method} is only for the person who made the pool: ask there, or end the allocator on its machine"
    return f"{method} is for nodes, not for {caller.name}"


# ---- the tables ----


@dataclass(frozen=True)
class Rule:
    """What a method needs.

    Attributes:
        roles: who may call it at all.
        check: what people need besides; None for nothing.
        in_names: nodes may call it in people's names, too.
    """

    roles: frozenset[str]
    check: Check | None = None
    in_names: bool = False


def _reservation(right: Right, doing: str) -> Check:
    return lambda access, caller, request: access.need(caller, request.reservation_id, right, doing)


def _mesh(right: Right, doing: str) -> Check:
    return lambda access, caller, request: access.need_mesh(caller, request.mesh_id, right, doing)


def _read_logs(access: Access, caller: Caller, request: pb.ReadLogsRequest) -> None:
    if access.owner_of_past(request.mesh_id) != caller.name:
        access.need_mesh(caller, request.mesh_id, Right.READ, "read its logs")


def _any(doing: str) -> Check:
    return lambda access, caller, _: access.need_any(caller, doing)


def _run(doing: str) -> Check:
    return lambda access, caller, message: access.need_run(caller, message.run_id, doing)


def _reserve(access: Access, caller: Caller, request: pb.ReserveRequest) -> None:
    request.owner = caller.name
    access.need(caller, request.reservation_id, Right.OWN, "change it")


def _wait(_: Access, caller: Caller, request: pb.WaitRequest) -> None:
    request.owner = caller.name


def _release(access: Access, caller: Caller, request: pb.ReleaseRequest) -> None:
    if caller.node:
        del request.absent[:]
    else:
        request.why = ""  # a person asks for it
    if caller.role == ADMIN:
        if request.by and access.owner_of(request.reservation_id) not in ("", caller.name):
            request.by += f" by {caller.name}"  # its owner did not
        request.owner = request.owner or caller.name
    else:
        request.owner = caller.name
        access.need(caller, request.reservation_id, Right.OWN, "release it")


def _undertake(access: Access, caller: Caller, request: pb.UndertakeRequest) -> None:
    if caller.role != ADMIN or request.mesh_id:  # who made the pool may release, and nothing else
        request.owner = caller.name
        _new_mesh(Right.OWN, "change it")(access, caller, request)


def _new_mesh(right: Right, doing: str) -> Check:
    """A mesh, or a store under the id of a run: it does not take the place of another's."""

    def check(access: Access, caller: Caller, request: Any) -> None:
        access.need(caller, request.reservation_id, right, doing)
        known = access.reservation_of(request.mesh_id)
        if known and known != request.reservation_id:
            raise UsageError("a mesh of that id exists in another reservation")
        if known:
            access.need(caller, known, Right.OWN, doing)

    return check


def _control(access: Access, caller: Caller, request: pb.ControlRanksRequest) -> None:
    kind = request.WhichOneof("message") or ""
    right, doing = CONTROL_RULES.get(kind, (Right.OWN, "do that"))
    if kind == "kill" and request.run_id and access.is_submitter(caller, request.run_id):
        right = Right.RUN
    access.need_mesh(caller, request.mesh_id, right, doing)
    if request.run_id:
        for mesh_id, _ in access.runs(request.run_id):
            access.need(caller, access.reservation_of(mesh_id), right, doing)


def _look(access: Access, caller: Caller, look: pb.Look) -> None:
    _control(access, caller, pb.ControlRanksRequest(mesh_id=look.mesh_id, where=True, run_id=look.of_run))


def _drop(access: Access, caller: Caller, request: pb.DropRequest) -> None:
    access.need_mesh(caller, request.mesh_id, Right.RUN, "drop cells")
    for run_id in request.run_ids:
        access.need_run(caller, run_id, "drop others' cells")


def _blob(doing: str) -> Check:
    """Content of mail goes by a name that nobody guesses, and values of runs lie with their mesh."""

    def check(access: Access, caller: Caller, request: pb.BlobChunk | pb.ReadBlobRequest) -> None:
        if request.mesh_id:
            access.need_mesh(caller, request.mesh_id, Right.RUN, doing)
        elif caller.role != NODE:
            access.need_any(caller, doing)

    return check


def _environment(access: Access, caller: Caller, request: Any) -> None:
    if request.python or request.directories:  # another program would be started, and the node's disks be looked at
        access.need_any(caller, "have another python described")


def _submit(access: Access, caller: Caller, message: pb.Submit) -> None:
    message.owner = caller.name
    access.need_mesh(caller, message.mesh_id, Right.RUN, "run cells on it")
    access.need_new(message.run.run_id, message.mesh_id)


def _open(access: Access, caller: Caller, message: pb.Open) -> None:
    access.claim_mailbox(caller, message.mailbox)


def _change_members(access: Access, caller: Caller, request: pb.ChangeMembersRequest) -> None:
    access.need(caller, request.reservation_id, Right.OWN, "change its nodes")
    if access.reservation_of(request.makes) not in ("", request.reservation_id):
        raise UsageError("a mesh of that id exists in another reservation")


_WRITE_FILES = _reservation(Right.OWN, "change its files")

RULES: dict[str, Rule] = {
    "Describe": Rule(EVERYBODY),
    "Probe": Rule(PEOPLE),
    "Listen": Rule(frozenset({NODE})),
    "Revoke": Rule(EVERYBODY),  # what the authority has signed may come from anybody
    "Status": Rule(EVERYBODY),  # `Access.shown` leaves out what the caller may not see
    "Usage": Rule(EVERYBODY),  # `Access.shown_usage` leaves out what is others'
    "Reserve": Rule(PEOPLE, _reserve),
    "Wait": Rule(PEOPLE, _wait),
    "Confirm": Rule(PEOPLE, _reservation(Right.OWN, "confirm it")),
    "Release": Rule(PEOPLE, _release),
    "ChangeMembers": Rule(PEOPLE, _change_members),
    "Undertake": Rule(PEOPLE, _undertake),
    "Claim": Rule(PEOPLE, _reservation(Right.OWN, "start processes on it")),
    "Extend": Rule(PEOPLE, _reservation(Right.OWN, "extend it")),
    "Share": Rule(PEOPLE, _reservation(Right.OWN, "share it")),
    "Idle": Rule(PEOPLE, _reservation(Right.OWN, "ask for its use")),
    "HostStore": Rule(PEOPLE, _new_mesh(Right.RUN, "run scripts on it")),
    "FindStore": Rule(PEOPLE, _mesh(Right.OWN, "move its store")),  # nodes, in the owner's name
    "MoveStore": Rule(PEOPLE, _mesh(Right.OWN, "move its store")),
    "Spawn": Rule(PEOPLE, _new_mesh(Right.OWN, "start processes on it")),
    "Restart": Rule(PEOPLE, _mesh(Right.OWN, "restart its ranks")),
    "StopMesh": Rule(PEOPLE, _mesh(Right.OWN, "stop its processes")),
    "Control": Rule(PEOPLE, _control),
    "Drop": Rule(PEOPLE, _drop),
    "Session": Rule(PEOPLE),  # each message by itself: SESSION_RULES
    "Mail": Rule(frozenset({NODE}), in_names=True),
    "ReadLogs": Rule(PEOPLE, _read_logs),
    "WatchLog": Rule(PEOPLE, _mesh(Right.READ, "read its logs")),
    "ReadLines": Rule(PEOPLE, _mesh(Right.READ, "read its logs")),
    "SearchLog": Rule(PEOPLE, _mesh(Right.READ, "search its logs")),
    "ReadMetrics": Rule(PEOPLE, _mesh(Right.READ, "read its logs")),
    "PutBlob": Rule(EVERYBODY, _blob("send values there")),
    "ReadBlob": Rule(PEOPLE, _blob("read its values")),
    "SyncTree": Rule(PEOPLE, _WRITE_FILES),
    "PutFiles": Rule(PEOPLE, _WRITE_FILES),
    "ChangeFiles": Rule(PEOPLE, _WRITE_FILES),
    "Workspace": Rule(PEOPLE, _reservation(Right.RUN, "see its files")),
    "ListFiles": Rule(PEOPLE, _reservation(Right.RUN, "see its files")),
    "ReadFile": Rule(PEOPLE, _any("read files there")),
    "SeeToken": Rule(PEOPLE, _any("look for files there")),
    "DescribeEnvironment": Rule(PEOPLE, _environment),
    "Shutdown": Rule(frozenset({ADMIN})),
}
"""By method of the service."""

CONTROL_RULES: dict[str, tuple[Right, str]] = {
    "where": (Right.READ, "see where its ranks are"),
    "stack": (Right.READ, "see where its ranks are"),
    "actors": (Right.READ, "see its actors"),
    "stops": (Right.READ, "see where its ranks have stopped"),
    "complete": (Right.RUN, "look into its variables"),
    "inspect": (Right.RUN, "look into its variables"),
    "debug": (Right.RUN, "debug its ranks"),
    "abort_groups": (Right.RUN, "free its ranks"),
    "interrupt_actors": (Right.OWN, "interrupt its actors"),
    "kill": (Right.OWN, "kill its ranks"),
    "arm_saves": (Right.RUN, "save what its ranks hold"),
    "save_now": (Right.RUN, "save what its ranks hold"),
    "saves": (Right.READ, "see what it saves"),
    "looks": (Right.READ, "see where its ranks are"),
}
"""By what control threads are asked (ControlRanksRequest.message)."""

SESSION_RULES: dict[str, Check | None] = {
    "open": _open,
    "branches": _mesh(Right.READ, "see what runs on it"),
    "submit": _submit,
    "follow": _mesh(Right.READ, "see what runs on it"),
    "cancel": _run("interrupt others' cells"),
    "end_calls": _run("end others' calls"),
    "look": _look,
    "shown": None,  # noted of those who submitted the run: `Access.is_submitter`
    "unfollow": None,
    "attach": _reservation(Right.READ, "attach to it"),
    "detach": None,
    "mail": None,  # each envelope by itself: `is_own_mail` and `admit_mail`
}
"""By message of a session (SessionRequest.message)."""
