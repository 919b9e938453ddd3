"""The errors that monarch_nb raises: one class per cause, with the facts as attributes.

The classes are plain data so that they can cross processes: `to_facts` and `from_facts` are the wire form.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import indent
from typing import Any, ClassVar, TypeVar

from monarch_nb.ground import escapes
from monarch_nb.ground.callers import end_at_caller
from monarch_nb.ground.rank_sets import format_ranks, listed, name_nodes, name_ranks
from monarch_nb.ground.tracebacks import without_library
from monarch_nb.lines.spreads import fold_texts
from monarch_nb.lines.templates import FEW_RANKS
from monarch_nb.mismatches import MISMATCH, NO_CALLS, Called, explain_calls


class MonarchNbError(Exception):
    """The base class of all errors of monarch_nb. `str` of an error is a message for people: what happened, where, and
    what to do next.

    Example:
        >>> try:  # doctest: +SKIP
        ...     monarch_nb.reserve("big", nodes=2, procs=500)
        ... except monarch_nb.MonarchNbError as error:
        ...     print(error)
    """

    _registry: ClassVar[dict[str, type[MonarchNbError]]] = {}

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        MonarchNbError._registry[cls.__name__] = cls

    def to_facts(self) -> dict[str, Any]:
        """Return the name of the class and the arguments of its constructor, as a dict that JSON can hold."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "message"]
        return {"error": type(self).__name__, "message": str(self), **{name: getattr(self, name) for name in names}}

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> MonarchNbError:
        """Rebuild an error from `to_facts`. It leaves out classes and facts of newer versions that it does not know."""
        kind = MonarchNbError._registry.get(facts.get("error", ""), MonarchNbError)
        known = inspect.signature(kind).parameters
        return kind(**{name: value for name, value in facts.items() if name in known})

    def _render_traceback_(self, *_: Any) -> list[str]:
        """In IPython these errors show their message, not our stack, and `%debug` begins where we were called."""
        end_at_caller(self.__traceback__)
        return self._shown()

    def _shown(self) -> list[str]:
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


def say_too(error: BaseException, *said: str) -> None:
    """Append texts to an error's message, if there are any."""
    error.args = ("; ".join(filter(None, [str(error), *said])), *error.args[1:])


class UsageError(MonarchNbError, ValueError):
    """A request makes no sense as written: a bad flag, number or name."""


class TargetError(UsageError):
    """Targets can not be read, or name ranks that the mesh does not have."""


class NoSuchMesh(TargetError, KeyError):
    """A reservation has no mesh of that name. The message lists its meshes."""

    __str__ = Exception.__str__  # a KeyError's would be in quotes


class DimensionError(UsageError, KeyError):
    """A mesh has no such dimension. It is a ValueError and a KeyError, because Monarch raises either."""

    __str__ = Exception.__str__  # a KeyError's would be in quotes


class PoolError(MonarchNbError):
    """A pool can not be reached or started."""


class NoSuchPool(PoolError):
    """No pool has that name. The message lists the pools that exist, and the nearest name.

    Attributes:
        pool: the name.
    """

    def __init__(self, message: str, pool: str = "") -> None:
        super().__init__(message)
        self.pool = pool


class NodeUnreachable(PoolError):
    """A node's allocator does not answer.

    Attributes:
        node: the name of the node.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class TrustError(PoolError):
    """A certificate, key or list of a pool is missing, unreadable, expired, revoked or not of the pool's authority."""


class VersionMismatch(PoolError):
    """A client and an allocator speak different versions of the protocol.

    Attributes:
        client, node: the version of each.
    """

    def __init__(self, message: str, client: str = "", node: str = "") -> None:
        super().__init__(message)
        self.client, self.node = client, node


class AccessDenied(MonarchNbError):
    """Somebody else owns it, and has not allowed you to do that.

    Attributes:
        owner: the name of the owner; empty when nobody in particular owns it.
        name: of the reservation; empty when no reservation is concerned.
    """

    def __init__(self, message: str, owner: str = "", name: str = "") -> None:
        super().__init__(message)
        self.owner, self.name = owner, name


class CertificateRefused(AccessDenied):
    """The certificate that a client or node shows was revoked, or has expired. The message says what helps."""


class FilesError(MonarchNbError):
    """Files could not be synced or fetched. Earlier files are unchanged.

    Attributes:
        node: the name of the node; empty when no node is concerned.
    """

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


class SaveError(MonarchNbError):
    """Ranks could not save or load. A save that failed leaves the saves before it whole; a load that was refused has
    changed nothing.

    Attributes:
        problems: what does not fit, by name.
        of_others: whether another rank failed, and this one only heard of it.
    """

    def __init__(self, message: str, problems: Mapping[str, str] | None = None, of_others: bool = False) -> None:
        super().__init__(message)
        self.problems, self.of_others = dict(problems or {}), of_others


class CapacityError(MonarchNbError):
    """You asked for more than the pool has, or than is free. The message says who holds the rest.

    Attributes:
        waiting_helps: whether the pool has so much, and others hold it now.
    """

    def __init__(self, message: str, waiting_helps: bool = False) -> None:
        super().__init__(message)
        self.waiting_helps = waiting_helps


class LimitReached(MonarchNbError):
    """You, or a group of yours, would have more of the pool than whoever runs it allows. The message says who holds how
    much, and who can raise the limit. `--wait` does not wait for it.

    Attributes:
        who: a person or a group.
        limit: "nodes" or "gpus". most: how much that is. held: how much of it they have.
    """

    def __init__(self, message: str, who: str = "", limit: str = "", most: float = 0.0, held: float = 0.0) -> None:
        super().__init__(message)
        self.who, self.limit, self.most, self.held = who, limit, most, held


class ReservationNotFound(MonarchNbError):
    """There is no reservation of that name, or none at all, or it was released."""


class ReservationExpired(ReservationNotFound):
    """The reservation ended by itself: its time was up, or its idle time was.

    Attributes:
        name: of the reservation.
        why: a text such as "its time of 8 h was up".
        ended_at: seconds since the epoch.
    """

    def __init__(self, message: str, name: str = "", why: str = "", ended_at: float = 0.0) -> None:
        super().__init__(message)
        self.name, self.why, self.ended_at = name, why, ended_at

    @property
    def is_time_up(self) -> bool:
        """Whether its time was up; else nobody used it."""
        return self.why.startswith("its time ")


class ReservationReleased(ReservationNotFound):
    """Somebody released the reservation elsewhere: in the panel, in another notebook, in a terminal.

    Attributes:
        name: of the reservation.
        by: where, as in "in the panel".
        ended_at: seconds since the epoch.
    """

    def __init__(self, message: str, name: str = "", by: str = "", ended_at: float = 0.0) -> None:
        super().__init__(message)
        self.name, self.by, self.ended_at = name, by, ended_at


class ReservationConflict(MonarchNbError):
    """You hold a reservation of that name, with another shape or other options than you ask for now."""


ATTACH_USES_IT = "%mesh attach {} uses it as it is"
"""What loses nothing when a reservation is not as somebody asks for it: said before what releases it."""


class MeshNotFound(MonarchNbError):
    """A node has no such mesh (any more)."""


class RunNotFound(MonarchNbError):
    """The allocators know no such run (any more)."""


class BreakpointError(MonarchNbError):
    """A rank reached `breakpoint()` in a run for which nobody answers, so the run fails there."""


class SpawnError(MonarchNbError):
    """Ranks could not be started."""


class PreloadError(SpawnError):
    """A module of the preload list failed to import, started a thread or initialised CUDA.

    Attributes:
        module: its name. traceback: of the failed import, as text.
    """

    def __init__(self, message: str, module: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.module, self.traceback = module, traceback


class SharedStorageError(MonarchNbError):
    """The directory of `--shared` is not the same storage on all nodes of the reservation.

    Attributes:
        nodes: the names of the nodes that do not see it.
    """

    def __init__(self, message: str, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nodes = list(nodes)


class PickleError(MonarchNbError):
    """A value could not be pickled. The message names it.

    Attributes:
        name: of the value. ranks: where it is.
        run: the Run. Its `kept_values` has the values of the other ranks. None when there is no run.
    """

    def __init__(self, message: str, name: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.name, self.ranks = name, list(ranks)
        self.run: Any = None


class RankUnresponsive(MonarchNbError):
    """Ranks did not answer in time.

    Attributes:
        ranks: the ranks.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


GROUP_ABORTED = (
    "process group aborted, call `dist.init_process_group()` again; models wrapped in DistributedDataParallel must be "
    "wrapped again"
)
"""What is said wherever a process group was broken."""


class ProcessGroupAborted(MonarchNbError, RuntimeError):
    """An interrupt freed a collective by aborting its process group. It is raised on a rank.

    The rank keeps its variables, and can form a new group.

    Attributes:
        collective: "all_reduce", "init_process_group" and so on; empty when unknown.
        reason: "interrupted", or what happened to the group.
    """

    def __init__(self, message: str = "", collective: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.collective, self.reason = collective, reason


class NoProcessGroup(MonarchNbError, ValueError):
    """torch.distributed was called before a group was made. It is raised on a rank, in place of torch's own error."""

    def __init__(self, message: str = "there is no process group: call dist.init_process_group() first") -> None:
        super().__init__(message)


class NotFinite(MonarchNbError, ArithmeticError):
    """With `--watch nan`, a rank has found a gradient, loss or parameter that is not finite. It is raised on the rank,
    at the line of the backward pass or the step, where nobody can answer a debugger."""


class MeshMismatch(MonarchNbError, ValueError):
    """The arguments of a library contradict the mesh on which it runs. It is raised on a rank."""


class RankDead(MonarchNbError):
    """You asked for a run on ranks whose processes have ended. Nothing was run.

    Attributes:
        ranks: the dead ranks.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)


@dataclass(frozen=True)
class RankFailure:
    """Why a run failed on one rank.

    Attributes:
        kind: "error" (user code raised), "interrupted", "died" or "cancelled".
        name: the exception's class, or the signal's name.
        message: the exception's message, or what the death report says.
        rendered: the traceback as IPython rendered it on the rank, with ANSI colours; empty for deaths.
        where: "train.py:41", the innermost line of user code; empty when unknown.
        exit_code, signal: of a process that died; both None when unknown.
        stderr_tail: of a process that died: the last lines of stderr or, after a crash, where the cell was.
        of_node: a command of the node failed, which its first rank ran.
        called: the collective in which it lost its group; None when that is not so, or not known.
    """

    rank: int
    host: str
    kind: str
    name: str
    message: str
    rendered: str = field(default="", repr=False)
    where: str = ""
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: tuple[str, ...] = field(default_factory=tuple)
    of_node: bool = False
    called: Called | None = None

    @property
    def is_consequence(self) -> bool:
        """Whether it failed because other ranks did, or because somebody interrupted it."""
        return self.kind in ("interrupted", "cancelled") or self.name == ProcessGroupAborted.__name__

    @property
    def died_of_mismatch(self) -> bool:
        """Whether Gloo has ended it, because ranks have called collectives that do not match, and it is not said yet
        who has called what."""
        return self.kind == "died" and f"{MISMATCH}: Gloo" in self.message

    @property
    def is_own_error(self) -> bool:
        """Whether its own code raised, somewhere where a debugger can look and may find more than the message says:
        what a cell's own line knows, the next cell knows, too."""
        if self.kind != "error" or self.is_consequence or not self.where or self.name in _PLAIN:
            return False
        return len(_FRAME.findall(self.traceback)) != 1

    @property
    def traceback(self) -> str:
        """The traceback as plain text."""
        return escapes.strip(self.rendered)

    @property
    def line(self) -> str:
        """What happened, in one line: "failed: ValueError: bad batch (train.py:41)"."""
        what = {"error": "failed: ", "died": "died: "}.get(self.kind, "")
        said = self.message if self.kind == "died" else f"{self.name}: {self.message}".rstrip(": ")
        return f"{what}{said.partition(chr(10))[0]}{self.place}"

    @property
    def place(self) -> str:
        """Where user code raised, to append to the message: " (train.py:41)". Empty when unknown or said already."""
        place = where_besides(self.message, self.where) if self.kind == "error" else ""
        return f" ({place})" if place else ""


def name_failed(failures: Iterable[RankFailure]) -> str:
    """Return where a run failed: "ranks 0,4", or for a command of nodes "nodes host1, host2"."""
    failures = list(failures)
    if all(failure.of_node for failure in failures):
        return name_nodes(failure.host for failure in failures)
    return name_ranks(failure.rank for failure in failures)


_FRAME = re.compile("^(?:Cell In|File )", re.MULTILINE)
_PLAIN = (
    *("SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError"),
    *("SystemExit", "StdinNotImplementedError", NoProcessGroup.__name__, MeshMismatch.__name__),
)
"""Those of which the message says everything."""


def where_besides(message: str, where: str) -> str:
    """Return where a run failed, or "" when the message says it, as a SyntaxError's does: "(train.py, line 41)"."""
    file, _, line = where.rpartition(":")
    return "" if f"({file}, line {line})" in message else where


class RunFailed(MonarchNbError):
    """A run failed on some ranks. `run` has the results of the other ranks.

    The message is one line that says which ranks failed and why, and then the tracebacks, equal ones once.

    Attributes:
        failures: one RankFailure for each failed rank, by rank (given as a list of them, or of their facts).
        run: the Run, with the values of the good ranks; None when there is no run.
        kept_in: the notebook's variable that has the values already.
        remedy: what to type, where the notebook knows that better than the ranks; the last line.
        is_held: the ranks live on, and hold what they raised.

    Example:
        >>> try:  # doctest: +SKIP
        ...     mesh.run("1 / rank")
        ... except monarch_nb.errors.RunFailed as failed:
        ...     print(failed.failures[0].where, failed.run.values)
    """

    def __init__(
        self, message: str = "", failures: Iterable[RankFailure | Mapping[str, Any]] = (), run: Any = None
    ) -> None:
        rebuilt = [failure if isinstance(failure, RankFailure) else _failure(failure) for failure in failures]
        self.failures = {failure.rank: failure for failure in explained(rebuilt)}
        self.run = run
        self.kept_in, self.remedy, self.is_held = "", "", False
        super().__init__(message)

    def __str__(self) -> str:
        if message := str(self.args[0]):
            return message
        more = [self._describe(group) for group in self.groups() if _says_more(group[1])]
        return escapes.strip("\n\n".join([self._summary(), *more]))

    def to_facts(self) -> dict[str, Any]:
        """Like that of every error, without the run."""
        failures = [asdict(failure) for failure in self.failures.values()]
        return {"error": type(self).__name__, "message": str(self), "failures": failures}

    def groups(self, *, fold: bool = True) -> list[tuple[list[int], RankFailure]]:
        """Return the failures, equal ones once, each with its ranks. Failures that differ only in rank and host are
        equal. Tracebacks that differ only in numbers are one as well, and their texts have ranges, as in
        `shard 0-127 is empty`; on many ranks so are failures without tracebacks. Ranks that failed by themselves come
        first. Ranks that failed because of their peers follow, without tracebacks.

        Args:
            fold: False to group only equal failures.
        """
        groups: dict[tuple[Any, ...], tuple[list[int], RankFailure]] = {}
        has_cause = not all(failure.is_consequence for failure in self.failures.values())
        for rank, failure in sorted(self.failures.items()):
            told = replace(failure, rendered="") if has_cause and failure.is_consequence else failure
            key = (told.kind, told.name, told.message, told.rendered, told.place, told.stderr_tail)
            groups.setdefault(key, ([], told))[0].append(rank)
        told_of = list(groups.values())
        if fold:
            few = len(self.failures) <= FEW_RANKS

            def kind_of(failure: RankFailure) -> Hashable:
                own = (failure.message, failure.where) if few and not failure.rendered else ()
                return failure.kind, failure.name, failure.stderr_tail, own

            told_of = _folded(told_of, kind_of, "message", "rendered", "where")
        return sorted(told_of, key=lambda group: group[1].is_consequence)

    def _summary(self) -> str:
        return "; ".join(
            f"{self._named(ranks)}{'' if _says_more(f) else self._where(ranks, f)}: {f.name}: {f.message}".rstrip(": ")
            for ranks, f in self.groups()
        )

    def _named(self, ranks: Iterable[int]) -> str:
        return name_failed(self.failures[rank] for rank in ranks)

    def _where(self, ranks: Iterable[int], failure: RankFailure) -> str:
        return "" if failure.of_node else f" ({listed(self.failures[rank].host for rank in ranks)})"

    def _describe(self, group: tuple[list[int], RankFailure], *, whole: bool = True) -> str:
        ranks, failure = group
        head = f"\x1b[1m{self._named(ranks)}\x1b[0m{self._where(ranks, failure)}"  # red is hard to read on dark red
        if failure.name == NoProcessGroup.__name__:
            head += f": {failure.message}"
        rendered = failure.rendered if whole or not failure.rendered else without_library(failure.rendered, self._logs)
        cause = (rendered or f"{failure.name}: {failure.message}{failure.place}").rstrip("\n")
        return "\n".join([head, cause, *(f"    {line}" for line in failure.stderr_tail)])

    @property
    def _logs(self) -> str:
        return f"%mesh logs{self.run.mesh.flag} --run {self.run.number}" if self.run is not None else "%mesh logs"

    def _shown(self) -> list[str]:
        lines = "\n\n".join(self._describe(group, whole=False) for group in self.groups()).splitlines()
        if dead := [rank for rank, failure in self.failures.items() if failure.name == "RankDied"]:
            them = "it" if len(dead) == 1 else "them"
            flag = self.run.mesh.flag if self.run is not None else ""
            lines.append(f"%mesh restart{flag} -t {format_ranks(sorted(dead))} starts {them} again")
        total = len(self.run.ranks) if self.run is not None else None
        if total and total > len(self.failures):
            noun = "nodes" if all(failure.of_node for failure in self.failures.values()) else "ranks"
            kept = f"are in {self.kept_in}" if self.kept_in else "are kept (-o NAME, or run.values)"
            lines.append(f"{len(self.failures)} of {total} {noun} failed; results of the others {kept}")
        raised = [failure for failure in self.failures.values() if failure.is_own_error]
        if self.remedy:
            lines.append(self.remedy)
        elif self.run is not None and self.is_held and raised:
            flag = f"{self.run.mesh.flag} --post-mortem -t {format_ranks(f.rank for f in raised)}"
            lines.append(f"%mesh debug{flag} shows where it was, with all variables")
        return lines


def _says_more(failure: RankFailure) -> bool:
    """Whether a failure has more to say than fits a line."""
    return bool(failure.rendered or failure.stderr_tail)


def _failure(facts: Mapping[str, Any]) -> RankFailure:
    called = Called(**facts["called"]) if facts.get("called") else None
    return RankFailure(**{**facts, "stderr_tail": tuple(facts["stderr_tail"]), "called": called})


def explained(failures: Sequence[RankFailure], ended: Mapping[int, Called] = NO_CALLS) -> list[RankFailure]:
    """Return failures; where ranks died of collectives that do not match, they say who has called what.

    Args:
        ended: the last calls of ranks that ended the run well.
    """
    dead = {failure.rank: failure.stderr_tail for failure in failures if failure.died_of_mismatch}
    calls = {failure.rank: failure.called for failure in failures if failure.called is not None} | dict(ended)
    said = explain_calls(calls, dead) if dead else ""
    if not said:
        return list(failures)
    return [
        replace(failure, message=f"{failure.message.partition(MISMATCH)[0]}{MISMATCH}: {said}")
        if failure.rank in dead
        else failure
        for failure in failures
    ]


@dataclass(frozen=True)
class ActorFailure:
    """Why a call failed on one rank.

    Attributes:
        rank: its number in the mesh that was called.
        coordinates: of the rank in that mesh.
        host: the name of its host; empty when unknown.
        kind: "error" (the endpoint raised), "interrupted", "died" (the process) or "stopped" (the actor was stopped, or
            failed before, for example in `__init__`).
        exception: the exception that was raised, or one that says what happened.
        traceback: of the endpoint's exception, as text; empty when the process died.
    """

    rank: int
    coordinates: Mapping[str, int]
    host: str
    kind: str
    exception: BaseException = field(compare=False)
    traceback: str = field(default="", repr=False)


class ActorError(MonarchNbError):
    """A call of actors failed on some ranks. The message says on which, and has the tracebacks, equal ones once.

    Attributes:
        message: the first line: "Actor call trainers.step failed on ranks 1,3 of 8."
        endpoint: "trainers.step".
        failures: one ActorFailure for each failed rank, by rank (given as a list of them).
        values: the values that the other ranks returned, by rank.

    Example:
        >>> try:
        ...     counters.fail.call().get()
        ... except ActorError as error:
        ...     print(sorted(error.failures), sorted(error.values), error.exception, error.exception_formatted)
    """

    def __init__(
        self,
        message: str = "",
        endpoint: str = "",
        failures: Iterable[ActorFailure] = (),
        values: Mapping[int, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.endpoint, self.values = message, endpoint, dict(values or {})
        self.failures = {failure.rank: failure for failure in failures}

    @property
    def exception(self) -> BaseException:
        """The exception of the first rank that failed by itself."""
        return self._first.exception if self.failures else self

    @property
    def exception_formatted(self) -> str:
        """The traceback of that rank, as text."""
        return self._first.traceback if self.failures else ""

    @property
    def _first(self) -> ActorFailure:
        return min(self.failures.values(), key=lambda failure: (failure.kind != "error", failure.rank))

    def __str__(self) -> str:
        return escapes.strip("\n".join([self.message, *(indent(self._describe(each), "  ") for each in self.groups())]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.endpoint, list(self.failures.values()), self.values)

    def to_facts(self) -> dict[str, Any]:
        """Like that of every error, without values and exceptions."""
        return {"error": type(self).__name__, "message": str(self), "endpoint": self.endpoint}

    def groups(self) -> list[tuple[list[int], ActorFailure]]:
        """Return the failures, equal ones once, each with its ranks."""
        groups: dict[tuple[str, str, str], tuple[list[int], ActorFailure]] = {}
        for rank, failure in sorted(self.failures.items()):
            said = failure.traceback or str(failure.exception)
            groups.setdefault((failure.kind, type(failure.exception).__name__, said), ([], failure))[0].append(rank)
        told_of = list(groups.values())
        if all(failure.traceback for _, failure in told_of):
            told_of = _folded(told_of, lambda f: (f.kind, type(f.exception)), "traceback")
        return sorted(told_of, key=lambda group: group[1].kind != "error")

    def _describe(self, group: tuple[list[int], ActorFailure]) -> str:
        ranks, failure = group
        hosts = ", ".join(dict.fromkeys(host for rank in ranks if (host := self.failures[rank].host)))
        head = f"\x1b[1m{name_ranks(ranks)}\x1b[0m{hosts and f' ({hosts})'}: "
        said = failure.traceback.rstrip("\n") or f"{failure.exception}"
        return head + said.replace(_TRACEBACK, f"Traceback of where the remote call failed{_TRACEBACK[9:]}")

    def _shown(self) -> list[str]:
        head = f"\x1b[31m{type(self).__name__}\x1b[39m: {self.message}"
        lines = "\n".join([head, *map(self._describe, self.groups())])
        if self.values and self.failures:
            lines += f"\nranks {format_ranks(self.values)} answered: `.values` of the error has what they returned"
        return lines.splitlines()


_TRACEBACK = "Traceback (most recent call last):"

_F = TypeVar("_F", bound=RankFailure | ActorFailure)


def _folded(
    groups: Iterable[tuple[list[int], _F]], kind_of: Callable[[_F], Hashable], *fields: str
) -> list[tuple[list[int], _F]]:
    """Return groups of failures of one kind that differ only in numbers as one; `fields` say what happened."""
    alike: dict[Hashable, dict[int, tuple[list[int], _F, list[str]]]] = {}
    for ranks, failure in groups:
        texts = [getattr(failure, field).split("\n") for field in fields]
        key = (kind_of(failure), *map(len, texts))
        alike.setdefault(key, {})[ranks[0]] = ranks, failure, [line for text in texts for line in text]
    folded: list[tuple[list[int], _F]] = []
    for group in alike.values():
        for bits, lines in fold_texts((sum(1 << rank for rank in ranks), told) for ranks, _, told in group.values()):
            ranks = [rank for rank in range(bits.bit_length()) if bits >> rank & 1]
            failure, left = group[ranks[0]][1], iter(lines)
            said: dict[str, Any] = {
                field: "\n".join(itertools.islice(left, getattr(failure, field).count("\n") + 1)) for field in fields
            }
            folded.append((ranks, replace(failure, **said)))
    return folded


class SupervisionError(ActorError, RuntimeError):
    """Actors no longer answer: they were stopped, have failed, or their process died.

    Example:
        >>> counters.stop().get()
        >>> try:
        ...     counters.add.call(1).get()
        ... except SupervisionError as error:
        ...     print("spawn them again:", error)
    """


class BufferFailed(MonarchNbError, RuntimeError):
    """A read or a write of an RDMABuffer failed: its owner died, was restarted, or dropped it.

    Attributes:
        transfer: "read of 64 MB from rank 3 on node0".
        owner: whose memory it is: "rank 3 on node0".
        reason: why it failed.
    """

    def __init__(self, message: str = "", transfer: str = "", owner: str = "", reason: str = "") -> None:
        super().__init__(message or f"the {transfer} failed: {reason}")
        self.transfer, self.owner, self.reason = transfer, owner, reason
