"""Failures that nobody in the program handles."""

from __future__ import annotations

import sys

from monarch_nb.actor.engine.outside import Outside
from monarch_nb.actor.supervision import MeshFailure


def report(outside: Outside, failure: MeshFailure) -> None:
    """Tell the program's fault hook: the one that its user set, or else people."""
    hook = vars(sys.modules["monarch_nb.actor"]).get("unhandled_fault_hook")
    if hook is None:
        outside.tell(describe(failure))
        return
    try:
        hook(failure)
    except BaseException as error:  # noqa: BLE001 -- raised to say that it is not handled; nothing ends for it here
        outside.tell(f"{describe(failure)}\nunhandled_fault_hook raised {type(error).__name__}: {error}")


def describe(failure: MeshFailure) -> str:
    """Return what people are told of a failure that nobody handled."""
    return f"{failure.report()}\n  Nobody handles this (`__supervise__` of an actor that spawns others would)."
