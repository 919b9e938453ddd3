"""How exceptions of endpoints travel, and what a call makes of them where it was made."""

from __future__ import annotations

import os
import pickle
import re
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import cloudpickle

from monarch_nb.actor.engine.outside import Outside, Runs
from monarch_nb.config import cadence
from monarch_nb.deaths import signal_name
from monarch_nb.errors import ActorFailure
from monarch_nb.ground.code_names import code_label
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto.run_pb2 import Death
from monarch_nb.shape import Extent, Point

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_NO_RUNS: Runs = {}
_DIED = re.compile(r"(?P<rank>rank \d+(?: of .+)?) on (?P<host>\S+) (?:has )?died: (?P<why>.*)", re.DOTALL)
_CODE_FILE = re.compile(r'File "([^"\n]+)"')


class Failed(NamedTuple):
    """What travels of a failure.

    Attributes:
        kind: as in ActorFailure.
        host: where it happened; empty when unknown.
        pickled: the exception; None when it can not travel.
        name, text: its class and message, for that case.
        traceback: as text.
        title: in what it failed: "trainers.step", with "(broadcast)"; empty when in none.
        runs: in whose name that was called.
    """

    kind: str
    host: str
    pickled: bytes | None
    name: str
    text: str
    traceback: str
    title: str = ""
    runs: Runs = _NO_RUNS

    @property
    def line(self) -> str:
        """What was raised, in one line."""
        first = (self.text.splitlines() or [""])[0]
        return f"{self.name}: {first}".removesuffix(": ") if self.name else first

    @property
    def is_interrupt(self) -> bool:
        """Whether an interrupt ended it, also while the actor was being made."""
        return self.kind == "interrupted" or self.name == KeyboardInterrupt.__name__

    def is_of_another(self, name: str) -> bool:
        """Whether an actor of that name only failed because another one had, whose failure is told by itself."""
        return self.title != "" and self.title.rpartition(".")[0] != name

    def earlier(self) -> Failed:
        """Return it as who calls later is told."""
        if self.title.endswith(".__init__"):
            what = "the actor was never made"
        else:
            what = (
                f"the actor has ended: it had failed before, in {self.title}" if self.title else "the actor has ended"
            )
        return self._replace(traceback=f"{what}:\n{self.traceback}")

    def exception(self) -> BaseException:
        """Return the exception, or one that says the same where its class is not known."""
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:  # noqa: BLE001 -- a class that is defined only there, or that can not be made anew
                error = None
            if isinstance(error, BaseException):
                return error
        return RuntimeError(f"{self.name}: {self.text}" if self.name else self.text)

    def at(self, rank: int, extent: Extent) -> ActorFailure:
        """Return it as the failure of a rank."""
        place: Mapping[str, int] = dict(Point(rank, extent)) if rank < extent.size else {}
        return ActorFailure(rank, place, self.host, self.kind, self.of_rank(rank).exception(), self.traceback)

    def of_rank(self, rank: int) -> Failed:
        """Return it as told behind the name of that rank, which its process may have as well."""
        same = f"rank {rank} died:"
        return self._replace(text=f"its process died:{self.text[len(same) :]}") if self.text.startswith(same) else self


def describe(kind: str, error: BaseException) -> Failed:
    """Return what travels of an exception that was caught in an actor of this process."""
    trimmed = error.with_traceback(_trimmed(error.__traceback__))
    text = _text(error)
    try:
        lines = _CODE_FILE.sub(_labelled, "".join(traceback.format_exception(trimmed)))
    except Exception:  # noqa: BLE001 -- a message or a source that can not be shown
        lines = f"{type(error).__name__}: {text}\n"
    return Failed(kind, socket.gethostname(), _pickled(error), type(error).__name__, text, lines)


def stopped(reason: str) -> Failed:
    """Return why an actor of this process does not answer: it was stopped, or never was."""
    return Failed("stopped", socket.gethostname(), None, "", reason, "")


WITHDRAWN = Failed("interrupted", "", None, "", "it was interrupted before its turn had come", "")
"""What waited is answered so when who called it was interrupted."""


def gone(reason: str) -> Failed:
    """Return why a process does not answer that was released, stopped or restarted, or never was."""
    return Failed("stopped", "", None, "", reason, "")


def died(reason: str, death: Death | None) -> Failed:
    """Return why a process does not answer that died, or whose node is lost."""
    host = ""
    if told := _DIED.match(reason):  # whoever tells it says of which rank, and on which host
        host, reason = told["host"], f"{told['rank']} died: {told['why']}"
    text = "\n    ".join([_died(reason, death), *(death.stderr_tail if death else ())])
    return Failed("died", host, None, "", text, "")


def _died(reason: str, death: Death | None) -> str:
    if death is None:
        return reason
    facts = []
    if death.HasField("signal"):
        facts.append(f"killed by signal {death.signal} ({signal_name(death.signal)})")
    elif death.HasField("exit_code"):
        facts.append(f"exit code {death.exit_code}")
    facts += [death.likely_cause] if death.likely_cause else []
    return f"{reason} ({'; '.join(facts)})" if facts and facts[0] not in reason else reason


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:  # noqa: BLE001 -- the user's __str__
        return f"<its message can not be shown: {type(problem).__name__}>"


def _pickled(error: BaseException) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # an __init__ of two arguments, say, can be pickled but not made anew
    except Exception:  # noqa: BLE001 -- whatever pickling of the user's class raises
        return None
    return data


def _labelled(file: re.Match[str]) -> str:
    """Return what people call a cell: "Cell In[7]"."""
    label = code_label(file[1])
    return " ".join(label) if label else file[0]


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames at its beginning: nothing of what did not come to the user's code."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        first = first.tb_next
    return first


NAME, ENDPOINT = "bootstrap", "run"
"""What the actor that does it is called, and its only endpoint."""

_NEVER_MADE = "the actor was never made, because the bootstrap of its process did not succeed"


class SettingUp:
    """The setting up of a process, which one actor does. From any thread."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._failed: Failed | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over.is_set()

    def end(self, failed: Failed | None = None) -> None:
        """It has ended; only the first call counts.

        Args:
            failed: why the process is not set up; None if it is.
        """
        if not self._over.is_set():
            self._failed = failed
            self._over.set()

    def wait(self) -> Failed | None:
        """Wait until it has ended; return why the other actors of the process are not made, or None."""
        self._over.wait()
        if self._failed is None:
            return None
        what = self._failed.traceback or self._failed.text
        return self._failed._replace(traceback=f"{_NEVER_MADE}:\n{what}")


class Told(NamedTuple):
    """The texts that people get about a failure.

    Attributes:
        title: what failed: "trainers.step (broadcast)".
        line: why, in one line.
        details: the traceback, as text.
        runs: in whose name it was called (engine.outside.Runs).
    """

    title: str
    line: str
    details: str
    runs: Mapping[str, tuple[str, int, int]]


class MeshFailure:
    """The failure of actors of a mesh. It is no exception.

    `__supervise__` of the actor that spawned the mesh gets it. If nobody handles it, `unhandled_fault_hook` gets it.

    Attributes:
        mesh: the mesh of actors.
        mesh_name: the identifier of the mesh: its name and some characters.
        crashed_ranks: the ranks that failed.
        event: what happened, with the traceback.

    Example:
        >>> class Parent(Actor):
        ...     def __supervise__(self, failure):
        ...         print(failure.report(), failure.crashed_ranks)
        ...         return True  # handled: nobody else is told
    """

    def __init__(self, mesh: Any, mesh_name: str, crashed_ranks: Sequence[int], event: str, told: Told) -> None:
        self.mesh, self.mesh_name, self.crashed_ranks, self.event = mesh, mesh_name, list(crashed_ranks), event
        self._told = told

    def report(self) -> str:
        """Return what happened, for people."""
        return self.event

    def told(self) -> Told:
        """Return the texts for people who did not ask."""
        return self._told

    def __str__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks={self.crashed_ranks}, event={self.event})"

    __repr__ = __str__


_TOGETHER_S = cadence(0.2)
"""Failures of a mesh that come this soon after the first are told together."""


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called when no actor handles a failure. To change what happens, assign another function to
    `monarch_nb.actor.unhandled_fault_hook`.

    This function only shows what happened, in a cell. Monarch's ends the program.

    Args:
        failure: the actors that failed, and why.

    Example:
        >>> def record(failure):
        ...     print(failure.report())
        >>> monarch_nb.actor.unhandled_fault_hook = record
    """
    sys.stderr.write(f"{described([failure])}\n")


class Faults:
    """Tells the failures that nobody handles: to the hook that the program has set, else to people.

    Args:
        outside: knows people.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._lock = threading.Lock()
        self._waiting: dict[str, list[MeshFailure]] = {}

    def report(self, failure: MeshFailure) -> None:
        """Tell a failure; it never raises."""
        hook = vars(sys.modules["monarch_nb.actor"]).get("unhandled_fault_hook", unhandled_fault_hook)
        if hook is unhandled_fault_hook:
            self._tell_soon(failure)
            return
        try:
            hook(failure)
        except BaseException as error:  # noqa: BLE001 -- raised to say that it is not handled: nothing ends for that here
            said = f"unhandled_fault_hook raised {type(error).__name__}: {error}"
            self._outside.tell(f"{described([failure])}\n{said}", failure.told().runs)

    def _tell_soon(self, failure: MeshFailure) -> None:
        with self._lock:
            others = self._waiting.setdefault(failure.mesh_name, [])
            others.append(failure)
        if len(others) == 1:
            timer = threading.Timer(_TOGETHER_S, self._tell, [failure.mesh_name])
            timer.daemon = True
            timer.start()

    def _tell(self, mesh_name: str) -> None:
        with self._lock:
            failures = self._waiting.pop(mesh_name)
        self._outside.tell(described(failures), failures[0].told().runs)


def described(failures: Sequence[MeshFailure]) -> str:
    """Return what people are told of failures of a mesh that nobody handled; equal ones once."""
    groups: dict[tuple[str, str], list[MeshFailure]] = {}
    for failure in failures:
        groups.setdefault((failure.told().title, failure.told().line), []).append(failure)
    return "\n".join(_paragraph(title, line, alike) for (title, line), alike in groups.items())


def _paragraph(title: str, line: str, failures: Sequence[MeshFailure]) -> str:
    ranks = sorted({rank for failure in failures for rank in failure.crashed_ranks})
    if title == f"{NAME}.{ENDPOINT}":
        over = "no actor can be made there: stop() the processes, and start others"
    else:
        over = "the actor has ended: spawn it again" if len(ranks) == 1 else "the actors have ended: spawn them again"
    lines = [f"{title} failed on {name_ranks(ranks)}: {line}; {over}"]
    details = failures[0].told().details.rstrip("\n")
    if details != line:
        lines += [f"  {each}" for each in details.splitlines()]
    return "\n".join(lines)
