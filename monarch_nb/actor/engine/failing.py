"""How exceptions of endpoints travel, and what a call makes of them where it was made."""

from __future__ import annotations

import os
import pickle
import re
import socket
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple

import cloudpickle

from monarch_nb.actor.engine.outside import Runs
from monarch_nb.deaths import signal_name
from monarch_nb.errors import ActorFailure
from monarch_nb.ground.code_names import code_label
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
