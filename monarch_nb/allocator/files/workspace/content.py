"""Content that a node has already: in its workspaces, and in a cache of what these no longer hold.

Nothing here is believed: ranks may have changed a file since, so content counts only if its hash is right when read.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import RLock

from google.protobuf.message import DecodeError

from monarch_nb.allocator.files.workspace.journal import Journal, Record
from monarch_nb.files.chunks import HASH_BYTES, hash_of
from monarch_nb.files.tree import chunk_hashes
from monarch_nb.proto.files_pb2 import TreeEntry

_BLOCK_BYTES = 4096
_INDEX = "index"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a rank may have put a FIFO there
Place = tuple[bytes, int, int]
"""A file, and where in it: offset and size."""


class Content:
    """Chunks by their hashes. The cache is bounded: what was not asked for or put there for longest goes first.

    It survives restarts (then ordered by when things were put there). Usable from several threads.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = os.fsencode(directory)
        self._limit_bytes = limit_bytes
        self._lock = RLock()
        self._placed: dict[bytes, Place] = {}
        self._cached: dict[bytes, Place] = {}
        self._files: OrderedDict[bytes, TreeEntry] = OrderedDict()
        self._index = Journal(directory / _INDEX)
        self.cache_bytes = 0
        self._load()

    def read(self, name: bytes) -> bytes | None:
        """Return the chunk of that hash if the node has it, whole and undamaged."""
        for places in (self._placed, self._cached):
            if (place := places.get(name)) is None:
                continue
            data = _read(place)
            if len(data) == place[2] and hash_of(data) == name:
                self._used(place)
                return data
            with self._lock:
                if places is self._cached:
                    self._evict(os.path.basename(place[0]))
                elif places.get(name) == place:
                    del places[name]
        return None

    def place(self, root: bytes, entries: Iterable[TreeEntry]) -> None:
        """Say that files lie, or are about to lie, below `root`."""
        for entry in entries:
            if entry.kind == TreeEntry.KIND_FILE:
                _add_places(self._placed, b"%s/%s" % (root, entry.path), entry)

    def forget(self, root: bytes, entries: Iterable[TreeEntry]) -> None:
        """Say that files below `root` are gone."""
        for entry in entries:
            path = b"%s/%s" % (root, entry.path)
            for name in chunk_hashes(entry):
                if (place := self._placed.get(name)) and place[0] == path:
                    del self._placed[name]

    def keep(self, directory: int, files: Iterable[tuple[bytes, TreeEntry]]) -> None:
        """Move files (name in the open `directory`, and what they hold) into the cache, as far as it reaches.

        A file that can not be moved stays where it is: the cache is a help, never a must.
        """
        with self._lock:
            for name, entry in files:
                if entry.kind != TreeEntry.KIND_FILE or not 0 < _cost_bytes(entry) <= self._limit_bytes:
                    continue
                own = _name(entry)
                try:
                    os.rename(name, os.path.join(self._directory, own), src_dir_fd=directory)
                    record = TreeEntry(
                        path=own, size_bytes=entry.size_bytes, hashes=entry.hashes, sizes_bytes=entry.sizes_bytes
                    )
                    self._index.append(Record("done", 0, body=record.SerializeToString()))
                except OSError:
                    continue
                self._add(record)
            self._trim()
            if self._index.is_long:
                with suppress(OSError):  # a full disk: another time
                    self._write_index()

    def _load(self) -> None:
        with os.scandir(self._directory) as found:
            sizes = {item.name: item.stat(follow_symlinks=False).st_size for item in found}
        records = 0
        for record in self._index.read():
            records += 1
            try:
                entry = TreeEntry.FromString(record.body)
            except DecodeError:
                continue
            if entry.path == _name(entry) and sizes.get(entry.path) == entry.size_bytes:
                self._add(entry)
        for name in sizes.keys() - self._files.keys() - {_INDEX.encode()}:
            self._unlink(name)
        self._trim()
        if records > len(self._files):
            self._write_index()

    def _trim(self) -> None:
        while self.cache_bytes > self._limit_bytes:
            self._evict(next(iter(self._files)))

    def _write_index(self) -> None:
        self._index.rewrite(Record("done", 0, body=entry.SerializeToString()) for entry in self._files.values())

    def _add(self, entry: TreeEntry) -> None:
        if entry.path in self._files:
            self._files.move_to_end(entry.path)
            return
        self._files[entry.path] = entry
        self.cache_bytes += _cost_bytes(entry)
        _add_places(self._cached, os.path.join(self._directory, entry.path), entry)

    def _evict(self, name: bytes) -> None:
        if entry := self._files.pop(name, None):
            self.cache_bytes -= _cost_bytes(entry)
            path = os.path.join(self._directory, name)
            for chunk in chunk_hashes(entry):
                if (place := self._cached.get(chunk)) and place[0] == path:
                    del self._cached[chunk]
            self._unlink(name)

    def _unlink(self, name: bytes) -> None:
        try:
            os.unlink(os.path.join(self._directory, name))
        except OSError:
            pass  # gone already, or no file of ours

    def _used(self, place: Place) -> None:
        with self._lock:
            if (name := os.path.basename(place[0])) in self._files:
                self._files.move_to_end(name)


def agrees(descriptor: int, name: bytes, entry: TreeEntry) -> bool:
    """Return whether a file in an open directory holds what `entry` says; its times and mode do not matter."""
    try:
        opened = os.open(name, _READ, dir_fd=descriptor)
    except OSError:
        return False
    try:
        offset = 0
        for number, size in enumerate(entry.sizes_bytes):
            data = os.pread(opened, size, offset)
            if len(data) != size or hash_of(data) != entry.hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
                return False
            offset += size
        return os.fstat(opened).st_size == entry.size_bytes
    except OSError:
        return False
    finally:
        os.close(opened)


def _read(place: Place) -> bytes:
    path, offset, size = place
    try:
        opened = os.open(path, _READ)
    except OSError:
        return b""
    try:
        return os.pread(opened, size, offset)
    except OSError:
        return b""
    finally:
        os.close(opened)


def _add_places(places: dict[bytes, Place], path: bytes, entry: TreeEntry) -> None:
    offset = 0
    for name, size in zip(chunk_hashes(entry), entry.sizes_bytes, strict=True):
        places[name] = (path, offset, size)
        offset += size


def _name(entry: TreeEntry) -> bytes:
    return hash_of(entry.hashes).hex().encode()


def _cost_bytes(entry: TreeEntry) -> int:
    """Return what a file takes on disk, about; many small ones take more than they hold."""
    return -(-entry.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
