"""Writing a file of pieces, none of which is copied into another buffer before."""

import os
from collections.abc import Sequence
from pathlib import Path

_MOST_PIECES = 1000
"""The kernel takes 1024 at once."""


def write_pieces(path: Path, pieces: Sequence[bytes | memoryview]) -> int:
    """Write a new file of `pieces`; return its size in bytes.

    Raises:
        OSError: it can not be written; nothing is left behind.
    """
    left = [view for piece in pieces if (view := memoryview(piece).cast("B")).nbytes]
    size_bytes = sum(view.nbytes for view in left)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while left:
            left = without_first(left, os.writev(descriptor, left[:_MOST_PIECES]))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return size_bytes


def without_first(pieces: list[memoryview], size_bytes: int) -> list[memoryview]:
    """Return what is left of `pieces` when so many bytes are written."""
    for position, piece in enumerate(pieces):
        if size_bytes < piece.nbytes:
            return [piece[size_bytes:], *pieces[position + 1 :]]
        size_bytes -= piece.nbytes
    return []
