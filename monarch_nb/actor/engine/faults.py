"""Failures of actors that the program does not handle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from monarch_nb.actor.engine.outside import Outside
from monarch_nb.actor.engine.setting_up import ENDPOINT, NAME
from monarch_nb.actor.supervision import MeshFailure
from monarch_nb.config import cadence
from monarch_nb.ground.rank_sets import name_ranks

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
    sys.stderr.write(f"{describe([failure])}\n")


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
            self._outside.tell(f"{describe([failure])}\n{said}", failure.told().runs)

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
        self._outside.tell(describe(failures), failures[0].told().runs)


def describe(failures: Sequence[MeshFailure]) -> str:
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
