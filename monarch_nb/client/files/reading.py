"""What files hold: read to the end while nobody changes them, cut and hashed; and their pieces, read again by name."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

from monarch_nb.errors import MonarchNbError
from monarch_nb.files.chunks import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, cut, hash_of
from monarch_nb.proto.files_pb2 import TreeEntry

Progress = Callable[[int, int], None]
"""Called with bytes read so far, and bytes to read."""
_ATTEMPTS = 3
_WINDOW_BYTES = 16 << 20
_SLICE_BYTES = 4 << 20
_SLICE_FILES = 64
_THREADS = min(8, os.cpu_count() or 1)


class FileChanged(MonarchNbError):
    """A file is not what it was when it was looked at: look again. `path` is b"" when one can not tell which."""

    def __init__(self, message: str, path: bytes = b"") -> None:
        super().__init__(message)
        self.path = path


class Facts(NamedTuple):
    """What the file system says about a file; other facts, other content."""

    inode: int
    device: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    mode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Facts:
        """Take them from a stat."""
        return cls(
            status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode & 0o777
        )


class Refusal(NamedTuple):
    """Why a file could not be read."""

    why: str
    again: bool
    """Whether to try again though nothing tells that it changed."""


class Read(NamedTuple):
    """A file that was read."""

    entry: TreeEntry
    facts: Facts
    began_ns: int
    """When: it may have changed since."""


Outcome = Read | Refusal | None
"""None: no file is there any more."""


def read_files(
    root: bytes, files: Sequence[tuple[bytes, int]], progress: Progress | None = None
) -> Iterator[tuple[bytes, Outcome]]:
    """Read files of a tree, several at a time; yield what each holds.

    Args:
        root: of the tree.
        files: path below it, and size.
        progress: called now and then.
    """
    total, done = sum(size_bytes for _, size_bytes in files), 0
    slices = _slices(files)
    if len(slices) <= 1:
        yield from _read_slice(root, files)
        if progress is not None and files:
            progress(total, total)
        return
    pool = ThreadPoolExecutor(_THREADS, "monarch_nb-files")
    try:
        for some, outcomes in zip(slices, pool.map(lambda some: _read_slice(root, some), slices), strict=True):
            yield from outcomes
            done += sum(size_bytes for _, size_bytes in some)
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _slices(files: Sequence[tuple[bytes, int]]) -> list[list[tuple[bytes, int]]]:
    slices: list[list[tuple[bytes, int]]] = []
    room_bytes = 0
    for file in files:
        if room_bytes <= 0 or len(slices[-1]) == _SLICE_FILES:
            slices.append([])
            room_bytes = _SLICE_BYTES
        slices[-1].append(file)
        room_bytes -= file[1]
    return slices


def _read_slice(root: bytes, files: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, Outcome]]:
    return [(path, read_file(root, path)) for path, _ in files]


def read_file(root: bytes, path: bytes) -> Outcome:
    """Read a file; again when it changes meanwhile."""
    try:
        descriptor = open_file(root, path)
    except OSError as error:
        return _refusal(error)
    try:
        facts = os.fstat(descriptor)
        for _ in range(_ATTEMPTS):
            began_ns = time.time_ns()
            if not stat.S_ISREG(facts.st_mode):
                return None
            hashes, sizes = _chunks(descriptor, facts.st_size)
            after = os.fstat(descriptor)
            if Facts.of(after) == Facts.of(facts) and sum(sizes) == facts.st_size:
                entry = TreeEntry(
                    path=path,
                    kind=TreeEntry.KIND_FILE,
                    mode=facts.st_mode & 0o777,
                    size_bytes=facts.st_size,
                    modified_ns=facts.st_mtime_ns,
                    hashes=b"".join(hashes),
                    sizes_bytes=sizes,
                )
                return Read(entry, Facts.of(facts), began_ns)
            facts = after
        return Refusal(f"it changed each of the {_ATTEMPTS} times that it was read", again=True)
    except OSError as error:
        return _refusal(error)
    finally:
        os.close(descriptor)


def _refusal(error: OSError) -> Refusal | None:
    gone = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE)
    return None if error.errno in gone else Refusal((error.strerror or str(error)).lower(), again=False)


def open_file(root: bytes, path: bytes) -> int:
    """Open a file to read: no link, and nothing that blocks."""
    return os.open(root + b"/" + path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _chunks(descriptor: int, size_bytes: int) -> tuple[list[bytes], list[int]]:
    """Cut and hash a file, a window at a time: mapped into memory, a file that gets shorter would kill this process."""
    if size_bytes <= MIN_CHUNK_BYTES:
        data = os.pread(descriptor, size_bytes + 1, 0)
        return ([hash_of(data)], [len(data)]) if data else ([], [])
    hashes: list[bytes] = []
    sizes: list[int] = []
    at = 0
    while at < size_bytes:
        if zeros := (_next_data(descriptor, at, size_bytes) - at) // MAX_CHUNK_BYTES:
            hashes += [_hash_of_zeros()] * zeros
            sizes += [MAX_CHUNK_BYTES] * zeros
            at += zeros * MAX_CHUNK_BYTES
            continue
        window = os.pread(descriptor, min(_WINDOW_BYTES, size_bytes - at), at)
        if not window:
            break
        start = 0
        for piece in cut(window):
            # Where a chunk ends follows from its own bytes: one that may go on behind the window is cut again.
            if start + MAX_CHUNK_BYTES > len(window) and at + len(window) < size_bytes:
                break
            hashes.append(hash_of(piece))
            sizes.append(len(piece))
            start += len(piece)
        at += start
    return hashes, sizes


def _next_data(descriptor: int, at: int, size_bytes: int) -> int:
    """Return where a hole at `at` ends; `at` when there is none, or nobody knows."""
    try:
        return min(os.lseek(descriptor, at, os.SEEK_DATA), size_bytes)
    except OSError as error:
        return size_bytes if error.errno == errno.ENXIO else at


@cache
def _hash_of_zeros() -> bytes:
    """Return the hash of the chunks that zeros are cut into: as big as chunks get."""
    return hash_of(bytes(MAX_CHUNK_BYTES))
