"""What each request needs: the tables, by method of the service, by message of a session, by question to ranks.

What is in none of them is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.state.lease import Right
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.callers import Caller
from monarch_nb.trust.identity import ADMIN, NODE, USER

if TYPE_CHECKING:
    from monarch_nb.allocator.api.access import Access

Check = Callable[["Access", Caller, Any], None]
"""Called with a request (of a stream, the first) that is not local; raises AccessDenied. It may correct the request."""

PEOPLE = frozenset({USER, ADMIN})
EVERYBODY = PEOPLE | {NODE}


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


def wrong_role(method: str, caller: Caller, rule: Rule) -> str:
    if caller.role == NODE:
        return f"{caller.name}'s certificate is a node's, and {method} is for people: use the one of `pool invite`"
    if ADMIN in rule.roles:
        return f"{method} is only for the person who made the pool: ask there, or end the allocator on its machine"
    return f"{method} is for nodes, not for {caller.name}"


def _reservation(right: Right, doing: str) -> Check:
    return lambda access, caller, request: access.need(caller, request.reservation_id, right, doing)


def _mesh(right: Right, doing: str) -> Check:
    return lambda access, caller, request: access.need_mesh(caller, request.mesh_id, right, doing)


def _read_logs(access: Access, caller: Caller, request: pb.ReadLogsRequest | pb.ReadMetricsRequest) -> None:
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
    kind = "kill" if request.kill else request.question.WhichOneof("message") or ""
    right, doing = CONTROL_RULES.get(kind, (Right.OWN, "do that"))
    if kind == "kill" and request.run_id and access.is_submitter(caller, request.run_id):
        right = Right.RUN
    access.need_mesh(caller, request.mesh_id, right, doing)
    if request.run_id:
        for mesh_id, _ in access.runs(request.run_id):
            access.need(caller, access.reservation_of(mesh_id), right, doing)


def _look(access: Access, caller: Caller, look: pb.Look) -> None:
    where = wire.ControlRequest(where=wire.GetWhere())
    _control(access, caller, pb.ControlRanksRequest(mesh_id=look.mesh_id, question=where, run_id=look.of_run))


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
    "ReadMetrics": Rule(PEOPLE, _read_logs),
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
"""By what control threads are asked (ControlRequest.message), and "kill"; nothing else can be asked from outside."""

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
