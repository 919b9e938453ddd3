"""Who may do what: whose certificate counts, what it lets somebody do, and what others see.

People are who has a certificate of the pool that is not a node's. They own what they reserve, and may grant others
rights to it (monarch_nb.allocator.state.lease). Nodes pass on what people ask for in their names, with their rights;
by themselves they only carry mail, where they do not know whose it is. What comes over the node's Unix socket comes
from the allocator's own user, and needs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.api.rules import RULES, SESSION_RULES, wrong_role
from monarch_nb.allocator.mail.mail import CLIENT
from monarch_nb.allocator.state.lease import Right, released, right_of
from monarch_nb.allocator.state.runs import Run
from monarch_nb.allocator.state.state import Lease
from monarch_nb.config import SHARED_VARIABLE, cadence
from monarch_nb.errors import AccessDenied, CertificateRefused, MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.rpc.callers import Caller
from monarch_nb.times import time_of_day
from monarch_nb.trust.identity import ADMIN, NODE, CertificateFacts, renewal
from monarch_nb.trust.identity_file import IdentityFile
from monarch_nb.trust.revocation import Revocations

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node


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
        revoked: says which certificates count no longer; None where there are none.
    """

    def __init__(self, node: Node, revoked: Revoked | None = None) -> None:
        self.node_id, self._address = node.identity.node_id, node.identity.address
        self._state, self._records, self._revoked = node.state, node.records, revoked
        self.owner_of_past = node.kept_logs.owner_of
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
            raise AccessDenied(wrong_role(method, caller, rule))
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
    seen = pb.ReservationStatus(right=pb.Right.ValueType(right))
    if right is Right.NONE:
        for name in (*SEEN, *LIMITS_SEEN):
            setattr(seen, name, getattr(reservation, name))
        return seen
    seen.MergeFrom(reservation)
    if right < Right.OWN:
        seen.shares.clear()
        seen.shares[caller.name] = pb.Right.ValueType(right)
    if right < Right.RUN:
        for mesh in seen.meshes:
            told = {name: value for name, value in mesh.spec.environment.items() if name == SHARED_VARIABLE}
            mesh.spec.environment.clear()  # tokens and passwords, most likely
            mesh.spec.environment.update(told)
    return seen
