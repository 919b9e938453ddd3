"""What travels between processes, and how it is packed: a head that says what it is, and a value, which is unpickled
only by who is to have it, because that may import modules or fail.

Small plain values travel in one pickle with their head. Others are packed pickles (monarch_nb.ground.frames) behind it,
aligned, so that large arrays are views of the memory that the message arrived in.
"""

from __future__ import annotations

import contextvars
import functools
import mmap
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FunctionType
from typing import TYPE_CHECKING, Any

from monarch_nb.ground import pickling
from monarch_nb.ground.code_names import Sources, remember_sources, sources_of
from monarch_nb.ground.frames import pack_pickle, unpack_pickle

if TYPE_CHECKING:
    from monarch_nb.actor.engine.process import Process


class Kind(IntEnum):
    """What a message is: the first item of its head; the others follow."""

    INVOKE = 0  # uid, endpoint, place, reply, caller, runs; value: arguments by place, by name
    ANSWER = 1  # rank; value: what the endpoint returned
    FAILED = 2  # rank; value: a Failed
    RAISED = 3  # rank; value: an exception, for the caller as it is (`Port.exception`)
    POST = 4  # number of a port, rank; value: what is sent
    POST_RAISED = 5  # number of a port, rank; value: an exception
    SPAWN = 6  # a Birth; value: class, arguments by place, by name
    STOP = 7  # uid, reason
    ASK = 8  # value: a function of the module that asks, its arguments
    WATCH = 9  # uid of an owner


INVOKE, ANSWER, FAILED, RAISED, POST, POST_RAISED, SPAWN, STOP, ASK, WATCH = map(int, Kind)

_PLAIN, _PACKED = b"\x00", b"\x01"
_PREFIX = struct.Struct("<cxxxI")
_ALIGNMENT_BYTES = 64
_MAX_PLAIN = 4096
_ATOMS = frozenset({bool, int, float, complex, type(None)})


Body = bytes | memoryview | mmap.mmap
Pieces = list[bytes | memoryview]

_travelling: contextvars.ContextVar[tuple[Process, str]] = contextvars.ContextVar("monarch_nb_actor_travelling")


@contextmanager
def travelling(process: Process, node: str) -> Iterator[None]:
    """Pickle or unpickle for `process`; what is pickled goes to `node` ("": nowhere)."""
    token = _travelling.set((process, node))
    try:
        yield
    finally:
        _travelling.reset(token)


def traveller() -> tuple[Process, str] | None:
    """Return whose pickling goes on in this thread, and where to."""
    return _travelling.get(None)


class Packed:
    """A value that arrived and was not unpickled yet."""

    __slots__ = ("_data", "_process", "_sources")

    def __init__(self, process: Process, data: memoryview, sources: Sources) -> None:
        self._process, self._data, self._sources = process, data, sources

    def load(self) -> Any:
        """Return the value. Raises whatever unpickling raises."""
        remember_sources(self._sources)
        data = bytearray(self._data) if self._data.readonly else self._data  # an actor may change its arrays
        with travelling(self._process, ""):
            return unpack_pickle(data)


class Plain:
    """A value that was unpickled with its head."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def load(self) -> Any:
        """Return the value."""
        return self._value


Value = Plain | Packed


def pack(process: Process, node: str, head: tuple[Any, ...], value: Any) -> Pieces:
    """Return a message of `process` to `node`, in pieces. Raises whatever pickling raises."""
    if _is_plain(value, 3):
        return [_PLAIN + pickle.dumps((head, value), 5)]
    files: dict[str, FunctionType] = {}

    def note(function: FunctionType) -> None:
        files.setdefault(function.__code__.co_filename, function)

    with travelling(process, node):
        pieces = pack_pickle(value, functools.partial(pickling.dumps, on_function=note))
        stream = pickle.dumps((head, sources_of(files)), 5)
    padding = -(_PREFIX.size + len(stream)) % _ALIGNMENT_BYTES
    return [_PREFIX.pack(_PACKED, len(stream)) + stream + bytes(padding), *pieces]


def unpack(process: Process, body: Body) -> tuple[tuple[Any, ...], Value]:
    """Return the head and the value of a message. Raises what unpickling raises where a head is none of ours."""
    view = memoryview(body)
    if view[0] == 0:
        head, value = pickle.loads(view[1:])
        return head, Plain(value)
    _, length = _PREFIX.unpack_from(view)
    end = _PREFIX.size + length
    with travelling(process, ""):
        head, sources = pickle.loads(view[_PREFIX.size : end])
    return head, Packed(process, view[end + -end % _ALIGNMENT_BYTES :], sources)


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a value is small and made of nothing but Python's own simple types."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is str or kind is bytes:
        return len(value) <= _MAX_PLAIN
    if depth and _length(kind, value) <= 32:
        items = (*value.keys(), *value.values()) if kind is dict else value
        return all(_is_plain(item, depth - 1) for item in items)
    return False


def _length(kind: type, value: Any) -> int:
    return len(value) if kind is tuple or kind is dict or kind is list else _MAX_PLAIN
