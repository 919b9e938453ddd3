"""The service behind its rules: each request is looked at and let in before the service sees it, whatever the method.

Every request, whoever sends it, has ids that name one file, paths that can be paths, and numbers that are numbers.
Whatever the service raises becomes an answer: what no client of ours would send is no reason for a call that nobody
understands.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from monarch_nb.allocator.api.access import Access
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.room import explained
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as grpc_stubs
from monarch_nb.rpc.callers import Caller, caller_of
from monarch_nb.rpc.status import hear_out, refuse

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


SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"]
_log = logging.getLogger(__name__)


class Guard:
    """Stands in front of a service, with all methods that its description names.

    Args:
        service: does what is let in.
        access: says what is.
        directory: of the node; messages name it when its disk is full.
    """

    def __init__(self, service: grpc_stubs.AllocatorServicer, access: Access, directory: Path) -> None:
        self._service, self._access, self._directory = service, access, directory

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Answer what a server is asked."""
        methods = {method.name: self._handler(method) for method in SERVICE.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, methods),))

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        make, wrap = {
            (False, False): (grpc.unary_unary_rpc_method_handler, self._unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, self._answering_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, self._stream),
            (True, True): (grpc.stream_stream_rpc_method_handler, self._stream),
        }[method.client_streaming, method.server_streaming]
        return make(
            wrap(method.name, getattr(self._service, method.name)),
            reading(GetMessageClass(method.input_type)),
            GetMessageClass(method.output_type).SerializeToString,
        )

    def _unary(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> Any:
            async with self._refusing(name, context):
                self._admit(name, request, context)
                return await method(request, context)

        return guarded

    def _answering_stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._refusing(name, context):
                caller = self._admit(name, request, context)
                with self._access.watched(name, caller, request):
                    async with contextlib.aclosing(method(request, context)) as answers:
                        async for answer in answers:
                            yield answer

        return guarded

    def _stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(requests: Any, context: Any) -> Any:
            async with self._refusing(name, context, requests):
                caller = self._admit(name, None, context)
                with self._access.watched(name, caller, None):
                    return await method(self._checked(name, requests, context), context)

        return guarded

    async def _checked(self, name: str, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        is_first = True
        async for request in requests:
            check(request)
            if is_first:
                is_first = False
                self._admit(name, request, context)
            yield request

    def _admit(self, name: str, request: Any, context: Any) -> Caller:
        if request is not None:
            check(request)
        caller = caller_of(context)
        self._access.admit(name, caller, request)
        return caller

    @contextlib.asynccontextmanager
    async def _refusing(self, name: str, context: Any, requests: Any = None) -> AsyncIterator[None]:
        """Answer what is raised."""
        node = self._access.node_id
        try:
            yield
            return
        except grpc.aio.AbortError:  # it was answered
            raise
        except MonarchNbError as error:
            refusal = error
        except (OSError, sqlite3.Error) as error:  # a full disk, no more processes, …
            refusal = MonarchNbError(f"{node}: {explained(error, self._directory)}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            _log.exception("%s failed", name)
            what = f"{type(error).__name__}: {error}"
            refusal = MonarchNbError(f"{node} failed to answer {name} ({what}); its log says more")
        await hear_out(requests)
        await refuse(context, refusal)
