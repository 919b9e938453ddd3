"""Content in chunks, named by their hashes: cut where the content says, hashed with BLAKE3, sent zstd-compressed.

Boundaries depend on the content alone (FastCDC: Xia et al., USENIX ATC 2016), so a line put into a big file changes the
chunk around it and no other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from monarch_nb.errors import MonarchNbError
from monarch_nb.proto.files_pb2 import ChunkBatch

HASH_BYTES = 32
AVERAGE_CHUNK_BYTES = 256 << 10
MIN_CHUNK_BYTES = 64 << 10
MAX_CHUNK_BYTES = 1 << 20
BATCH_BYTES = 1 << 20
"""About as much content goes into one batch; one chunk may be as big."""
_LEVEL = 1

_codecs = threading.local()
"""Of each thread: making one costs more than a small batch."""

Buffer = bytes | bytearray | memoryview


def hash_of(data: Buffer) -> bytes:
    """Return the 32 bytes that name a chunk."""
    from blake3 import blake3

    return blake3(data).digest()


def cut(data: Buffer) -> list[memoryview]:
    """Cut content into chunks. What fits into one stays whole; nothing is nothing.

    Example:
        >>> [bytes(piece) for piece in cut(b"small")]
        [b'small']
    """
    view = memoryview(data)
    if len(view) <= MIN_CHUNK_BYTES:
        return [view] if len(view) else []
    return [view[chunk.offset : chunk.offset + chunk.length] for chunk in _cutter().cut_buf(view)]


@cache
def _cutter() -> Any:
    from pyfastcdc import FastCDC

    return FastCDC(avg_size=AVERAGE_CHUNK_BYTES, min_size=MIN_CHUNK_BYTES, max_size=MAX_CHUNK_BYTES)


def pack(chunks: Sequence[tuple[bytes, Buffer]]) -> ChunkBatch:
    """Compress chunks (hash, content) into one batch."""
    joined = b"".join(data for _, data in chunks)
    return ChunkBatch(
        hashes=b"".join(name for name, _ in chunks),
        sizes_bytes=[len(data) for _, data in chunks],
        data=_codec()[0].compress(joined),
    )


def _codec() -> tuple[Any, Any]:
    """Return this thread's compressor and decompressor."""
    import zstandard

    if not hasattr(_codecs, "pair"):
        _codecs.pair = zstandard.ZstdCompressor(level=_LEVEL), zstandard.ZstdDecompressor()
    pair: tuple[Any, Any] = _codecs.pair
    return pair


def unpack(batch: ChunkBatch) -> Iterator[tuple[bytes, memoryview]]:
    """Yield a batch's chunks (hash, content), each verified.

    Raises:
        MonarchNbError: the batch is damaged, or lies about its content.
    """
    import zstandard

    size_bytes = sum(batch.sizes_bytes)
    if len(batch.hashes) != HASH_BYTES * len(batch.sizes_bytes) or size_bytes > BATCH_BYTES + MAX_CHUNK_BYTES:
        raise MonarchNbError("a batch of chunks is damaged")
    try:
        is_bomb = zstandard.frame_content_size(batch.data) != size_bytes  # decompressing makes room for what this says
        joined = b"" if is_bomb else _codec()[1].decompress(batch.data)
    except zstandard.ZstdError as error:
        raise MonarchNbError(f"a batch of chunks is damaged: {error}") from error
    if len(joined) != size_bytes:
        raise MonarchNbError("a batch of chunks is damaged")
    view, start = memoryview(joined), 0
    for number, size in enumerate(batch.sizes_bytes):
        name, data = batch.hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES], view[start : start + size]
        if hash_of(data) != name:
            raise MonarchNbError("a chunk is not what its name says: it was damaged on its way")
        yield name, data
        start += size
