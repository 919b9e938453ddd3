"""What a client tells the ranks of a run beside its code, which tracebacks show, and people keep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(repr=False)
class _OfRun:
    text: str = ""


_of_run = _OfRun()


def begin_run(text: str) -> None:
    """A run begins that was told this, as JSON; empty when it was told nothing."""
    _of_run.text = text


def told() -> dict[str, Any]:
    """Return what this run was told."""
    found: dict[str, Any] = json.loads(_of_run.text)
    return found
