"""What every request must be like, whoever sends it: ids name one file, paths can be paths, numbers are numbers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from monarch_nb.errors import UsageError

IDS = frozenset({"reservation_id", "lease_id", "mesh_id", "makes", "run_id", "run_ids", "of_run", "collected"})
"""Fields that name directories, sockets and rows."""
MADE = {
    "ReserveRequest": "reservation_id",
    "HostStoreRequest": "mesh_id",
    "SpawnRequest": "mesh_id",
    "RunSpec": "run_id",
}
"""What makes something, and the field that names it: "" would name the directory and the rows of all."""
PATHS = frozenset({"path", "python", "directory", "directories", "root", "source", "preload", "blob"})
MAX_SLOTS = 1 << 16
"""More than any machine has."""
LIMITS = {
    "procs": MAX_SLOTS,
    "gpus": MAX_SLOTS,
    "first_rank": 1 << 24,
    "world_size": 1 << 24,
    "name": 256,
    "owner": 256,
    "blob": 128,
    "look_id": 64,
    "newest": 1 << 53,
    "last_number": 1 << 53,
}
"""The most that a number may be, and how long a text."""
_ID = re.compile(r"[A-Za-z0-9_-]{0,64}")


class Garbled:
    """Stands for a request that is no message of its kind."""


def reading(kind: Any) -> Any:
    """Return what makes a message of a kind of bytes, or Garbled."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return Garbled()

    return read


def check(request: Any) -> None:
    """Let a request pass that a client of ours could have sent.

    Raises:
        UsageError: none could; the message names the field.
    """
    if isinstance(request, Garbled):
        raise UsageError("this is no request of monarch_nb, or was cut off on its way")
    name = MADE.get(request.DESCRIPTOR.name)
    if name is not None and not getattr(request, name):
        raise UsageError(f"{name} is empty: what is made needs an id")
    for field, value in request.ListFields():
        if field.message_type is not None:
            if not field.is_repeated:
                check(value)
        elif rule := _rule_of(field):
            for one in value if field.is_repeated else (value,):
                rule(one)


@functools.cache
def _rule_of(field: FieldDescriptor) -> Callable[[Any], None] | None:
    """Return what checks one value of a field; None where every value can be, as of thousands of ranks."""
    name = field.name
    if field.enum_type is not None:
        known = frozenset(field.enum_type.values_by_number)
        return functools.partial(_check_enum, name, known)
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return functools.partial(_check_finite, name)
    if name in IDS or name in PATHS or name in LIMITS:
        return functools.partial(_check_value, name)
    return None


def _check_enum(name: str, known: frozenset[int], value: int) -> None:
    if value not in known:
        raise UsageError(f"{name} is {value}, which means nothing")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise UsageError(f"{name} is {value}: a number is needed")


def _check_value(name: str, value: Any) -> None:
    if name in IDS and not _ID.fullmatch(value):
        raise UsageError(f"{name} is {_short(value)}: an id has up to 64 letters, digits, - and _")
    if name in PATHS and (b"\0" if isinstance(value, bytes) else "\0") in value:
        raise UsageError(f"{name} is {_short(value)}: a path has no zero bytes")
    limit = LIMITS.get(name)
    if limit is not None and (len(value) if isinstance(value, str) else value) > limit:
        raise UsageError(f"{name} is {_short(value)}: at most {limit} can be")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}…"
