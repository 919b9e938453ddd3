"""Content of files on its way: pieces of files, hashed with BLAKE3, sent zstd-compressed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from monarch_nb.errors import MonarchNbError
from monarch_nb.proto.files_pb2 import ContentBatch, ContentPiece

HASH_BYTES = 32
PIECE_BYTES = 1 << 20
"""Files are read, sent and written in pieces of so many bytes."""
BATCH_BYTES = 1 << 20
"""About as much content goes into one batch; one piece may be as big."""
_LEVEL = 1

_codecs = threading.local()
"""Of each thread: making one costs more than a small batch."""

Buffer = bytes | bytearray | memoryview


class Piece(NamedTuple):
    """A piece of a file, and where in it."""

    path: bytes
    offset: int
    data: Buffer


def new_hash(data: Buffer = b"") -> Any:
    """Return a BLAKE3 hash of `data`, which more may be added to: `update`, `digest`."""
    from blake3 import blake3

    return blake3(data)


def pack(pieces: Sequence[Piece]) -> ContentBatch:
    """Compress pieces into one batch."""
    return ContentBatch(
        pieces=[ContentPiece(path=piece.path, offset=piece.offset, size_bytes=len(piece.data)) for piece in pieces],
        data=_codec()[0].compress(b"".join(piece.data for piece in pieces)),
    )


def _codec() -> tuple[Any, Any]:
    """Return this thread's compressor and decompressor."""
    import zstandard

    if not hasattr(_codecs, "pair"):
        _codecs.pair = zstandard.ZstdCompressor(level=_LEVEL), zstandard.ZstdDecompressor()
    pair: tuple[Any, Any] = _codecs.pair
    return pair


def unpack(batch: ContentBatch) -> Iterator[Piece]:
    """Yield a batch's pieces.

    Raises:
        MonarchNbError: the batch is damaged, or lies about its content.
    """
    import zstandard

    size_bytes = sum(piece.size_bytes for piece in batch.pieces)
    if size_bytes > BATCH_BYTES + PIECE_BYTES:
        raise MonarchNbError("content of files is damaged")
    try:
        is_bomb = zstandard.frame_content_size(batch.data) != size_bytes  # decompressing makes room for what this says
        joined = b"" if is_bomb else _codec()[1].decompress(batch.data)
    except zstandard.ZstdError as error:
        raise MonarchNbError(f"content of files is damaged: {error}") from error
    if len(joined) != size_bytes:
        raise MonarchNbError("content of files is damaged")
    view, start = memoryview(joined), 0
    for piece in batch.pieces:
        yield Piece(piece.path, piece.offset, view[start : start + piece.size_bytes])
        start += piece.size_bytes
