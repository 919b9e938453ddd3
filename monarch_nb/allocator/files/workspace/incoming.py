"""Files of one mount that have come and are not in place yet: written beside the tree, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.allocator.files.workspace.directories import remove_tree
from monarch_nb.files.content import Buffer, Piece, new_hash
from monarch_nb.proto.files_pb2 import TreeEntry

_HOLE_BYTES = 64 << 10
_ZEROS = bytes(_HOLE_BYTES)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
Key = tuple[bytes, bytes, int, int]


@dataclass
class _Part:
    """A file of which the beginning is there."""

    name: bytes
    content: Any = field(default_factory=new_hash)
    size_bytes: int = 0


class Incoming:
    """Outlives a change: what has come of one that was interrupted need not be sent again for the next.

    Args:
        path: of a directory for these files alone, on the file system of the tree.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory = -1
        self._whole: dict[Key, bytes] = {}
        self._parts: dict[Key, _Part] = {}
        self._number = 0

    def has(self, entry: TreeEntry) -> bool:
        """Return whether the whole file is there."""
        return _key(entry) in self._whole

    def add(self, entry: TreeEntry, piece: Piece) -> None:
        """Write a piece of a file; with the last one it gets its mode and time. One that does not follow what is there
        is dropped, and so is a file with another hash than its entry says.

        Raises:
            OSError: it can not be written.
        """
        key = _key(entry)
        part = self._parts.get(key)
        if not piece.offset and key not in self._whole:
            part = self._parts[key] = _Part(part.name if part else self._new_name())
        end = piece.offset + len(piece.data)
        if part is None or piece.offset != part.size_bytes or end > entry.size_bytes:
            return
        part.content.update(piece.data)
        part.size_bytes = end
        flags = _WRITE if piece.offset else _WRITE | os.O_TRUNC
        descriptor = os.open(part.name, flags, 0o600, dir_fd=self._directory)
        try:
            _write_but_zeros(descriptor, memoryview(piece.data), piece.offset)
            if end == entry.size_bytes:
                os.ftruncate(descriptor, end)
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(entry.modified_ns, entry.modified_ns))
        finally:
            os.close(descriptor)
        if end == entry.size_bytes:
            del self._parts[key]
            if part.content.digest() == entry.hash:
                self._whole[key] = part.name
            else:
                os.unlink(part.name, dir_fd=self._directory)

    def move(self, entry: TreeEntry, directory: int, name: bytes) -> None:
        """Move a whole file, or a link, into an open directory, over what is there.

        Raises:
            OSError: it can not be moved.
        """
        if entry.kind == TreeEntry.KIND_SYMLINK:
            place = self._new_name()
            os.symlink(entry.target, place, dir_fd=self._directory)
        else:
            place = self._whole.pop(_key(entry))
        os.rename(place, name, src_dir_fd=self._directory, dst_dir_fd=directory)

    def drop_others(self, entries: Iterable[TreeEntry]) -> None:
        """Remove all files but those of `entries`."""
        wanted = {_key(entry) for entry in entries}
        for key in self._whole.keys() - wanted:
            os.unlink(self._whole.pop(key), dir_fd=self._directory)
        for key in self._parts.keys() - wanted:
            os.unlink(self._parts.pop(key).name, dir_fd=self._directory)

    def clear(self) -> None:
        """Remove all files."""
        self._whole.clear()
        self._parts.clear()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
            remove_tree(self._path)

    def _new_name(self) -> bytes:
        if self._directory < 0:
            self._path.mkdir(parents=True, exist_ok=True)
            self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._number += 1
        return b"%d" % self._number


def _key(entry: TreeEntry) -> Key:
    return entry.path, entry.hash, entry.mode, entry.modified_ns


def _write_but_zeros(descriptor: int, data: Buffer, offset: int) -> None:
    """Write data; blocks of zeros become holes, so that sparse files stay sparse."""
    for start in range(0, len(data), _HOLE_BYTES):
        block = data[start : start + _HOLE_BYTES]
        if len(data) <= _HOLE_BYTES or bytes(block) != _ZEROS[: len(block)]:
            _write_all(descriptor, memoryview(block), offset + start)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
