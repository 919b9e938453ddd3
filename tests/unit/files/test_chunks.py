"""Content is cut by what it says, and arrives as it left or not at all."""

from __future__ import annotations

import random

import pytest
import zstandard

from monarch_nb.errors import MonarchNbError
from monarch_nb.files.chunks import (
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    cut,
    hash_of,
    pack,
    unpack,
)
from monarch_nb.proto.files_pb2 import ChunkBatch


def content(size_bytes: int) -> bytes:
    return random.Random(0).randbytes(size_bytes)


class TestCut:
    def test_small_content_is_one_chunk_and_nothing_is_none(self) -> None:
        assert [bytes(piece) for piece in cut(b"x" * MIN_CHUNK_BYTES)] == [b"x" * MIN_CHUNK_BYTES]
        assert cut(b"") == []

    @pytest.mark.parametrize("data", [content(8 << 20), bytes(8 << 20)], ids=["noise", "zeros"])
    def test_chunks_are_the_content_and_of_bounded_size(self, data: bytes) -> None:
        pieces = cut(data)
        assert b"".join(pieces) == data
        assert all(0 < len(piece) <= MAX_CHUNK_BYTES for piece in pieces)

    def test_a_line_put_in_changes_few_chunks(self) -> None:
        data = content(16 << 20)
        before = {hash_of(piece) for piece in cut(data)}
        after = cut(data[: 5 << 20] + b"one more line\n" + data[5 << 20 :])
        assert sum(len(piece) for piece in after if hash_of(piece) not in before) <= 2 * MAX_CHUNK_BYTES


class TestBatch:
    def test_arrives_as_it_left(self) -> None:
        chunks = [(hash_of(data), data) for data in (b"one", b"two" * 1000, content(1000))]
        batch = ChunkBatch.FromString(pack(chunks).SerializeToString())
        assert [(name, bytes(data)) for name, data in unpack(batch)] == chunks

    def test_what_is_damaged_is_refused(self) -> None:
        short = pack([(hash_of(b"one"), b"one")])
        short.data = short.data[:-2]
        more = ChunkBatch(hashes=bytes(32), sizes_bytes=[1 << 31], data=b"")
        other = pack([(hash_of(b"one"), b"two")])
        for batch, said in ((short, "damaged"), (more, "damaged"), (other, "not what its name says")):
            with pytest.raises(MonarchNbError, match=said):
                list(unpack(batch))

    def test_a_bomb_is_not_unpacked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
        batch = ChunkBatch(hashes=hash_of(b""), sizes_bytes=[100], data=bomb)
        monkeypatch.delattr(zstandard, "ZstdDecompressor")  # it makes room for all before it looks at any limit
        with pytest.raises(MonarchNbError, match="damaged"):
            list(unpack(batch))
