"""What torch's flight recorders have written down of this rank's calls. There is one of NCCL, and one of the others."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

_MODULE = "torch._C._distributed_c10d"


class _State:
    """
    Attributes:
        first: the first record of NCCL that is of today's groups.
    """

    first = 0


_state = _State()


def recorded() -> list[dict[str, Any]]:
    """Return all that is written down; nothing where the recorders are off, or are not in this torch."""
    return [*_dumped("_dump_nccl_trace_json"), *_dumped("_dump_fr_trace_json")]


def open_on_gpu() -> list[dict[str, Any]]:
    """Return NCCL's calls in today's groups that are not over on the GPU."""
    return [each for each in _open() if each.get("record_id", 0) >= _state.first]


def begin() -> None:
    """A default group is about to be made. What is open now is of others: a call of an aborted group stays open."""
    _state.first = 1 + max((int(each.get("record_id", -1)) for each in _open()), default=-1)


def _open() -> list[dict[str, Any]]:
    return _dumped("_dump_nccl_trace_json", includeCollectives=True, onlyActive=True)


def _dumped(function: str, **options: bool) -> list[dict[str, Any]]:
    dump = getattr(sys.modules.get(_MODULE), function, None)
    if dump is None:
        return []
    with contextlib.suppress(RuntimeError, TypeError, ValueError):
        entries: list[dict[str, Any]] = json.loads(dump(**options)).get("entries", [])
        return entries
    return []
