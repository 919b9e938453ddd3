"""Content arrives as it left or not at all."""

from __future__ import annotations

import random

import pytest
import zstandard

from monarch_nb.errors import MonarchNbError
from monarch_nb.files.content import Piece, pack, unpack
from monarch_nb.proto.files_pb2 import ContentBatch, ContentPiece


def test_arrives_as_it_left() -> None:
    pieces = [Piece(b"a", 0, b"one"), Piece(b"b", 1 << 40, random.Random(0).randbytes(1000)), Piece(b"c", 0, b"")]
    batch = ContentBatch.FromString(pack(pieces).SerializeToString())
    assert [Piece(piece.path, piece.offset, bytes(piece.data)) for piece in unpack(batch)] == pieces


def test_what_is_damaged_is_refused() -> None:
    short = pack([Piece(b"a", 0, b"one")])
    short.data = short.data[:-2]
    for batch in (short, ContentBatch(pieces=[ContentPiece(path=b"a", size_bytes=1 << 31)], data=b"")):
        with pytest.raises(MonarchNbError, match="damaged"):
            list(unpack(batch))


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    batch = ContentBatch(pieces=[ContentPiece(path=b"a", size_bytes=100)], data=bomb)
    monkeypatch.delattr(zstandard, "ZstdDecompressor")  # it makes room for all before it looks at any limit
    with pytest.raises(MonarchNbError, match="damaged"):
        list(unpack(batch))
