"""Evidence for shared storage: a file with a text that nobody can guess, written by one and seen by another."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from monarch_nb.errors import UsageError
from monarch_nb.proto import files_pb2 as pb

MAX_TOKEN_BYTES = 256


def handle(request: pb.SeeTokenRequest, *, shares_nothing: bool = False) -> str:
    """See, write or remove a token file; return why that can not be done, or an empty text. May block, as storage does.

    Args:
        shares_nothing: do not see what clients wrote.

    Raises:
        UsageError: a request that no client of ours makes.
    """
    token = request.token.encode()
    if not os.path.isabs(request.path) or "\0" in request.path or not 0 < len(token) <= MAX_TOKEN_BYTES:
        raise UsageError("a token file needs an absolute path and a short text")
    if shares_nothing and request.from_client:
        return "this node shares no files with clients"
    try:
        match request.action:
            case pb.SeeTokenRequest.ACTION_SEE:
                return "" if _holds(request.path, token) else "another file is there"
            case pb.SeeTokenRequest.ACTION_WRITE:
                return _write(request.path, token)
            case pb.SeeTokenRequest.ACTION_REMOVE:
                return _remove(request.path, token)
            case _:
                raise UsageError(f"no such action on a token file: {request.action}")
    except OSError as error:
        return error.strerror or str(error)


def _write(path: str, token: bytes) -> str:
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
        os.write(file, token)
    return ""


def _remove(path: str, token: bytes) -> str:
    if not _holds(path, token):
        return "another file is there"
    os.unlink(path)
    return ""


def _holds(path: str, token: bytes) -> bool:
    with _opened(path, os.O_RDONLY) as file:
        return stat.S_ISREG(os.fstat(file).st_mode) and os.read(file, MAX_TOKEN_BYTES + 1) == token


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    """A descriptor that is no link's and does not wait for the other end of a pipe."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)
