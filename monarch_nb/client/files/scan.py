"""What is in a tree, and what of it is not synced: kept up to date by looking at all names, or at those changed; and
how its files are read."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from monarch_nb.client.files.ignore import ENVIRONMENT_MARKS, RULE_FILES, Rules
from monarch_nb.errors import MonarchNbError
from monarch_nb.files.content import PIECE_BYTES, new_hash
from monarch_nb.files.tree import link_leaves, printable, same
from monarch_nb.proto.files_pb2 import TreeEntry

Progress = Callable[[int, int], None]
"""Called with bytes read so far, and bytes to read."""
_ATTEMPTS = 3
_SLICE_BYTES = 4 << 20
_SLICE_FILES = 64
_THREADS = min(8, os.cpu_count() or 1)


class FileChanged(MonarchNbError):
    """A file is not what it was when it was looked at: look again."""

    def __init__(self, path: bytes) -> None:
        super().__init__(f"{printable(path)} changed while it was sent")
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
            content, size_bytes = new_hash(), 0
            for data in pieces_of(descriptor, facts.st_size):
                content.update(data)
                size_bytes += len(data)
            after = os.fstat(descriptor)
            if Facts.of(after) == Facts.of(facts) and size_bytes == facts.st_size:
                entry = TreeEntry(
                    path=path,
                    kind=TreeEntry.KIND_FILE,
                    mode=facts.st_mode & 0o777,
                    size_bytes=facts.st_size,
                    modified_ns=facts.st_mtime_ns,
                    hash=content.digest(),
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


def pieces_of(descriptor: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of an open file up to a size, in pieces. It is not mapped into memory: a file that gets shorter
    would kill this process."""
    for offset in range(0, size_bytes, PIECE_BYTES):
        yield os.pread(descriptor, min(PIECE_BYTES, size_bytes - offset), offset)


_RACY_NS = 2_000_000_000
"""A file that changed so shortly before it was read may change again without looking different."""
_UNKNOWN_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True)
class _Directory:
    """A directory that is not ignored."""

    rules: Rules
    names: set[bytes]
    """All that was found in it, also what is not synced."""


class Scan:
    """All that is known about a tree, by path.

    Every name that is known is either in `entries`, `ignored`, `too_large` or `refused`, or it is to be read.

    Args:
        root: absolute.
        rules: that come from outside of the tree.
        max_file_bytes: bigger files are left out; None for no limit.
    """

    def __init__(self, root: bytes, rules: Rules, max_file_bytes: int | None) -> None:
        self.root = root
        self.rules = rules
        self.max_file_bytes = max_file_bytes
        self.entries: dict[bytes, TreeEntry] = {}
        self.directories: dict[bytes, _Directory] = {}
        self.ignored: dict[bytes, str] = {}
        self.too_large: dict[bytes, int] = {}
        self.refused: dict[bytes, str] = {}
        self.touched: set[bytes] = set()
        """Paths whose entry changed, came or went."""
        self.replaced: set[bytes] = set()
        """Directories that went, or may be others than before."""
        self.suspects: set[bytes] = set()
        """Paths to look at again though nothing tells that they changed."""
        self._facts: dict[bytes, Facts] = {}
        self._racy: set[bytes] = set()
        self._to_read: dict[bytes, int] = {}

    # ---- looking ----

    def look_everywhere(self, distrusted: Iterable[bytes] = ()) -> None:
        """Look at all names, and at the content of those `distrusted` also when it seems to be the same."""
        for path in distrusted:
            self._distrust(path)
        self._walk(b"", self.rules)

    def look_below(self, directories: Iterable[bytes]) -> None:
        """Look at all names below some directories."""
        for directory in _topmost(directories):
            if not directory:
                self.look_everywhere()
            elif (parent := self.directories.get(_parent(directory))) is not None:
                self._walk(directory, parent.rules)

    def look_at(self, paths: Iterable[bytes]) -> None:
        """Look at names that changed: also at content that seems to be the same."""
        for path in sorted(paths):
            parent, _, name = path.rpartition(b"/")
            directory = self.directories.get(parent)
            if not path or directory is None:
                if not path:
                    self.look_everywhere()
                continue  # of a directory that is ignored, or that is looked at itself
            self._distrust(path)
            if name in RULE_FILES or name in ENVIRONMENT_MARKS:
                self.look_below([parent])
                continue
            try:
                status = os.lstat(self._full(path))
            except OSError:
                directory.names.discard(name)
                self._forget(path)
                continue
            directory.names.add(name)
            if stat.S_ISDIR(status.st_mode):
                self.replaced.update(below for below in self.directories if _is_below(below, path))
                self._walk(path, directory.rules)
            else:
                self._note(path, status, directory.rules)

    def read(self, progress: Progress | None) -> None:
        """Read the files that are new or changed."""
        to_read, self._to_read = self._to_read, {}
        for path, outcome in read_files(self.root, list(to_read.items()), progress):
            if isinstance(outcome, Read):
                self._put(path, outcome.entry)
                self._facts[path] = outcome.facts
                if outcome.facts.changed_ns > outcome.began_ns - _RACY_NS:
                    self._racy.add(path)
                continue
            self._forget(path)
            if isinstance(outcome, Refusal):
                self.refused[path] = outcome.why
                if outcome.again:
                    self.suspects.add(path)

    # ---- one name ----

    def _walk(self, top: bytes, rules: Rules) -> None:
        """Look at a directory that has just been found, and at all below it."""
        waiting = [(top, rules)]
        while waiting:
            path, rules = waiting.pop()
            if path and (why := rules.ignored_by(path, is_directory=True)):
                self._set_aside(self.ignored, path, why)
                continue
            try:
                with os.scandir(self._full(path)) as listing:
                    found = {entry.name: entry.stat(follow_symlinks=False) for entry in _present(listing)}
                mode = os.lstat(self._full(path)).st_mode & 0o777
            except (FileNotFoundError, NotADirectoryError):
                self._forget(path)  # an event tells if something else came
                continue
            except OSError as error:
                self._set_aside(self.refused, path, (error.strerror or str(error)).lower())
                continue
            if path and ENVIRONMENT_MARKS & found.keys() and not rules.insists_on(path):
                self._set_aside(self.ignored, path, "virtual environments")
                continue
            self._enter(path, mode, rules.inside(self.root, path, found), set(found))
            inside = self.directories[path].rules
            prefix = path + b"/" if path else b""
            for name, status in found.items():
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((prefix + name, inside))
                else:
                    self._note(prefix + name, status, inside)

    def _enter(self, path: bytes, mode: int, rules: Rules, names: set[bytes]) -> None:
        before = self.directories.get(path)
        if before is None:
            self._forget(path)
        else:
            for name in before.names - names:
                self._forget(path + b"/" + name if path else name)
        self.directories[path] = _Directory(rules, names)
        if path:
            self._put(path, TreeEntry(path=path, kind=TreeEntry.KIND_DIRECTORY, mode=mode))

    def _note(self, path: bytes, status: os.stat_result, rules: Rules) -> None:
        """Take in what is no directory."""
        kind = stat.S_IFMT(status.st_mode)
        if path in self.directories:
            self._forget(path)
        if why := rules.ignored_by(path, is_directory=False):
            self._set_aside(self.ignored, path, why)
        elif kind == stat.S_IFLNK:
            self._note_link(path)
        elif kind != stat.S_IFREG:
            self._set_aside(self.refused, path, f"it is {_UNKNOWN_KINDS.get(kind, 'no file')}")
        elif self.max_file_bytes is not None and status.st_size > self.max_file_bytes:
            self._set_aside(self.too_large, path, status.st_size)
        elif path in self._racy or self._facts.get(path) != Facts.of(status):
            self._to_read[path] = status.st_size

    def _note_link(self, path: bytes) -> None:
        try:
            target = os.readlink(self._full(path))
        except OSError:
            self._forget(path)
            return
        if link_leaves(path, target):
            self._set_aside(self.refused, path, f"a link that leaves the tree, to {printable(target)}")
        else:
            self._facts.pop(path, None)
            self._put(path, TreeEntry(path=path, kind=TreeEntry.KIND_SYMLINK, mode=0o777, target=target))

    # ---- what is known ----

    def _put(self, path: bytes, entry: TreeEntry) -> None:
        self.ignored.pop(path, None)
        self.too_large.pop(path, None)
        self.refused.pop(path, None)
        self._racy.discard(path)
        before = self.entries.get(path)
        if before is not None and same(before, entry):
            return
        self.entries[path] = entry
        self.touched.add(path)

    def _set_aside(self, where: dict[bytes, str] | dict[bytes, int], path: bytes, why: object) -> None:
        self._forget(path)
        where[path] = why  # type: ignore[assignment]

    def _forget(self, path: bytes) -> None:
        """Know nothing of a path any more, nor of what is below it."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            directory = self.directories.pop(path, None)
            if directory is not None:
                self.replaced.add(path)
                waiting += [path + b"/" + name if path else name for name in directory.names]
            if self.entries.pop(path, None) is not None:
                self.touched.add(path)
            for known in (self._facts, self._to_read, self.ignored, self.too_large, self.refused):
                known.pop(path, None)
            self._racy.discard(path)

    def _distrust(self, path: bytes) -> None:
        """Read a file again whatever it looks like."""
        self._facts.pop(path, None)

    def _full(self, path: bytes) -> bytes:
        return self.root + b"/" + path if path else self.root


def _present(listing: Iterator[os.DirEntry[bytes]]) -> Iterator[os.DirEntry[bytes]]:
    """Leave out what vanished since it was listed."""
    for entry in listing:
        try:
            entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield entry


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _is_below(path: bytes, directory: bytes) -> bool:
    return not directory or path == directory or path.startswith(directory + b"/")


def _topmost(directories: Iterable[bytes]) -> list[bytes]:
    """Leave out directories that are below others."""
    top: list[bytes] = []
    for directory in sorted(directories, key=lambda path: path.split(b"/") if path else []):
        if not top or not _is_below(directory, top[-1]):
            top.append(directory)
    return top
