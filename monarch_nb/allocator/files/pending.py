"""One change of a tree on its way: its content comes beside the workspace, and is put in place when all is there."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from monarch_nb.allocator.files.directories import Directories, remove_directory, remove_tree
from monarch_nb.allocator.files.mounts import DIRECTORY, FILE, Mount
from monarch_nb.allocator.files.placing import Placing, Plan
from monarch_nb.errors import FilesError, MonarchNbError
from monarch_nb.files.content import Buffer, Piece, new_hash, unpack
from monarch_nb.ground.room import lacks_room
from monarch_nb.proto.files_pb2 import ContentBatch, TreeApplied, TreeChange, TreeEntry

if TYPE_CHECKING:
    from monarch_nb.allocator.files.workspaces import Workspace

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


class Pending:
    """A change of a mount: `add` and `missing` as often as needed, then `commit`.

    Args:
        change: as Mount.effective made it.
        overwrite: also what ranks wrote or changed.
    """

    def __init__(self, workspace: Workspace, mount: Mount, change: TreeChange, *, overwrite: bool) -> None:
        self.mount, self.change, self._node, self._manifest = mount, change, workspace.node, workspace.manifest
        self._root, self._incoming = workspace.root(mount.name), workspace.incoming(mount.name)
        self._plan = Plan(mount, change, overwrite)
        self._state: Literal["new", "looked", "committed", "over"] = (
            "committed" if change.version == mount.version else "new"
        )
        self._needed: dict[bytes, TreeEntry] = {}
        self._lock = Lock()

    def add(self, batch: ContentBatch) -> None:
        """Take content in.

        Raises:
            MonarchNbError: the batch is damaged, or it can not be written: the change is over, the tree as it was.
        """
        with self._lock, self._guarded():
            self._look()
            for piece in unpack(batch):
                if entry := self._needed.get(piece.path):
                    self._incoming.add(entry, piece)

    def missing(self) -> list[bytes]:
        """Return the files whose content is still to come. When there is none, `commit` may be called.

        Raises:
            MonarchNbError: it can not be written: the change is over, the tree as it was.
        """
        with self._lock, self._guarded():
            self._look()
            return [path for path, entry in self._needed.items() if not self._incoming.has(entry)]

    def commit(self) -> TreeApplied:
        """Put everything in place; again, the same answer.

        Raises:
            MonarchNbError: it can not be done: the tree is half-way until the next sync.
        """
        with self._lock:
            if self._state != "committed":
                with self._guarded():
                    self._look()
                    self._put_in_place()
            return self.mount.applied

    def abandon(self) -> None:
        """Forget the change, if it is not in place yet."""
        with self._lock:
            if self._state != "committed":
                self._state = "over"

    @property
    def is_over(self) -> bool:
        """Whether it failed or was abandoned."""
        return self._state == "over"

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong ends the change, and makes room on a full disk."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            self._state = "over"
            self._incoming.clear()
            raise FilesError(self._explain(error), self._node) from error
        except MonarchNbError:
            self._state = "over"
            raise

    def _explain(self, error: OSError | sqlite3.Error) -> str:
        said = str(error) if isinstance(error, sqlite3.Error) else str(error.strerror)
        reason = "the disk is full" if lacks_room(error) else said
        where = f" in {self.mount.name}" if self.mount.name else ""
        left = "some of them are there, and the next sync goes on" if self.mount.coming else "its copy is as it was"
        return f"{self._node}: {reason}: the files could not be written{where}; {left}"

    def _look(self) -> None:
        """Look at the tree: what of the change is needed."""
        if self._state == "over":
            raise MonarchNbError("this sync failed, or another one took its place: sync again")
        if self._state != "new":
            return
        self._root.mkdir(exist_ok=True)
        absent: set[bytes] = set()
        with Directories(self._root) as tree:
            tree.open(b"")  # a rank may have put something in its place
            for path in self.change.removed:
                if (facts := tree.facts(path)) and not self._plan.is_ours(path, facts, *tree.parent(path)):
                    self._plan.look_into(path, facts, *tree.parent(path))
            for entry in self.change.changed:
                path, above = entry.path, entry.path.rpartition(b"/")[0]
                if above in self._plan.skipped:
                    self._plan.skipped.add(path)
                    continue
                facts = None if above in absent else tree.facts(path)
                if facts is None:
                    absent.add(path)
                is_directory = entry.kind == DIRECTORY and facts and stat.S_ISDIR(facts.st_mode)
                if facts and not is_directory and not self._plan.look(entry, facts, *tree.parent(path)):
                    self._plan.skipped.add(path)
                elif entry.kind == FILE and path not in self._plan.right:
                    self._needed[path] = entry
        self._incoming.drop_others(self._needed.values())
        for entry in self._needed.values():
            if not entry.size_bytes:
                self._incoming.add(entry, Piece(entry.path, 0, b""))
        self._state = "looked"

    def _put_in_place(self) -> None:
        mount, change, plan = self.mount, self.change, self._plan
        coming = {path: list(entries) for path, entries in mount.coming.items()}
        for path in change.removed:
            coming.setdefault(path, [])
        for entry in change.changed:
            if entry.path not in plan.skipped and entry.path not in plan.theirs:
                coming.setdefault(entry.path, []).append(entry)
        if coming:
            self._manifest.begin(mount, coming)
            mount.coming, mount.version = coming, ""
        placing = Placing(plan, self._root, self._incoming)
        applied = placing.run()
        theirs = plan.theirs - placing.kept
        self._manifest.finish(change, placing.kept, theirs)
        mount.apply(change, placing.kept, theirs)
        mount.applied, self._state = applied, "committed"
        self._incoming.clear()
        if not change.source:
            with suppress(OSError), Directories(self._root.parent) as workspace:  # else something of a rank's is in it
                remove_directory(workspace.open(b""), self._root.name.encode())
