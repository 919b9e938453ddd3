"""The one table between gRPC statuses and the errors of monarch_nb.

An error travels as JSON facts in trailing metadata, so the client raises the very class that the allocator raised.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from monarch_nb.config import cadence, patience

from monarch_nb.rpc.channel import is_local  # isort: skip  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.errors import (
    AccessDenied,
    CapacityError,
    LimitReached,
    MeshNotFound,
    MonarchNbError,
    NodeUnreachable,
    ReservationConflict,
    ReservationNotFound,
    RunNotFound,
    TrustError,
    UsageError,
    VersionMismatch,
)

METADATA_KEY = "monarch-nb-error-bin"
DETAILS_CHARACTERS = 500
PAUSE_S = cadence(0.2)
"""Who has sent nothing for so long is not writing."""
"""What is left of an error for clients that do not know the metadata."""

_NOT_BELIEVED = "CERTIFICATE_VERIFY_FAILED"
"""gRPC's word for a node whose certificate is not of our authority, or has expired."""

_CODES: dict[type[MonarchNbError], grpc.StatusCode] = {
    UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReservationConflict: grpc.StatusCode.ALREADY_EXISTS,
    ReservationNotFound: grpc.StatusCode.NOT_FOUND,
    MeshNotFound: grpc.StatusCode.NOT_FOUND,
    RunNotFound: grpc.StatusCode.NOT_FOUND,
    AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    TrustError: grpc.StatusCode.UNAUTHENTICATED,
}


def error_to_json(error: MonarchNbError) -> str:
    """Return the wire form of an error."""
    return json.dumps(error.to_facts())


def error_from_json(text: str) -> MonarchNbError:
    """Rebuild an error from its wire form."""
    return MonarchNbError.from_facts(json.loads(text))


async def refuse(context: Any, error: MonarchNbError) -> None:
    """End a call with `error`; never returns normally."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
    await context.abort(code, str(error)[:DETAILS_CHARACTERS], ((METADATA_KEY, error_to_json(error).encode()),))


async def hear_out(requests: Any) -> None:
    """Before a call is refused: read what its client is just sending. A client whose call ends while it writes is told
    "Internal error from Core" by gRPC, and not why."""
    if isinstance(requests, AsyncIterator):
        # RuntimeError: who was passing it on is still reading it.
        with contextlib.suppress(TimeoutError, StopAsyncIteration, MonarchNbError, RuntimeError):
            async with asyncio.timeout(patience(5.0)):
                while True:
                    async with asyncio.timeout(PAUSE_S):
                        await anext(requests)


def is_refusal(error: MonarchNbError) -> bool:
    """Whether a node has heard who calls, and does not let them in: it is no use to wait for it."""
    return isinstance(error, (AccessDenied, TrustError))


def translate(error: grpc.aio.AioRpcError, node: str, address: str = "") -> MonarchNbError:
    """Return the error to raise for a failed call to `node`; of one at an `address` of this machine it is known where
    to look."""
    for key, value in error.trailing_metadata() or ():
        if key == METADATA_KEY:
            return error_from_json(value.decode() if isinstance(value, bytes) else value)
    if error.code() == grpc.StatusCode.UNAVAILABLE and _NOT_BELIEVED in (error.details() or ""):
        return NodeUnreachable(
            f"{node} shows no certificate that you believe: if the pool was made anew, ask for "
            "another invitation; if that host has an old node.pem, copy the new one there",
            node,
        )
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        here, there = "is its allocator running? (monarch-nb status)", "is its host up, and its allocator running?"
        what = here if is_local(address) else there
        return NodeUnreachable(f"{node} does not answer; {what}", node)
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return NodeUnreachable(f"{node} did not answer in time", node)
    if error.code() == grpc.StatusCode.INTERNAL:  # gRPC's own: a node that dies in the middle of a stream may end so
        return NodeUnreachable(f"the connection to {node} broke ({error.details()}); is its allocator running?", node)
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return VersionMismatch(f"{node} runs another version of monarch_nb: restart its allocator", node=node)
    return MonarchNbError(f"{node}: {error.details() or error.code().name.lower()}")
