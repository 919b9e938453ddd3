"""One change of a tree on its way: staged beside the workspace piece by piece, then put in place in one burst."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from monarch_nb.allocator.files.workspace.burst import Burst
from monarch_nb.allocator.files.workspace.content import Content
from monarch_nb.allocator.files.workspace.directories import Directories, remove_directory, remove_tree
from monarch_nb.allocator.files.workspace.journal import Journal, Record
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE, Mount
from monarch_nb.allocator.files.workspace.plan import Plan, directory_mode
from monarch_nb.errors import FilesError, MonarchNbError, UsageError
from monarch_nb.files.chunks import Buffer, unpack
from monarch_nb.files.tree import chunk_hashes
from monarch_nb.ground.room import lacks_room
from monarch_nb.proto.files_pb2 import ChunkBatch, TreeApplied, TreeChange, TreeEntry

_HOLE_BYTES = 64 << 10
_ZEROS = bytes(_HOLE_BYTES)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Staged:
    """A file that is being written.

    Attributes:
        lacking: how many of its chunks are not there yet.
    """

    entry: TreeEntry
    path: bytes
    lacking: int


class Pending:
    """A change of a mount: `add` and `prepare` as often as needed, then `commit`, then `settle`.

    All but `commit` may take long and may run on any thread.

    Args:
        change: as Mount.effective made it.
        root: where the mount lies.
        staging: a directory for this change alone, on the same file system; its name is the change's number.
        overwrite: also what ranks wrote or changed.
        node: how errors name this node.
    """

    def __init__(
        self,
        mount: Mount,
        change: TreeChange,
        *,
        root: Path,
        staging: Path,
        journal: Journal,
        content: Content,
        overwrite: bool,
        node: str,
    ) -> None:
        self.mount, self.change = mount, change
        self._root, self._staging, self._journal, self._content = root, staging, journal, content
        self._plan = Plan(mount, change, overwrite)
        self._number, self._node = int(staging.name), node
        self._state: Literal["new", "staging", "ready", "committed", "over"] = (
            "committed" if change.version == mount.version else "new"
        )
        self._wanted: dict[bytes, list[tuple[_Staged, int, int]]] = {}
        self._replaced: list[tuple[bytes, TreeEntry]] = []
        self._lock = Lock()

    def add(self, batch: ChunkBatch) -> int:
        """Write chunks into the files that need them; return how many bytes of content were of use.

        Raises:
            MonarchNbError: the batch is damaged, or it can not be written: the change is over, the tree as it was.
        """
        with self._lock, self._guarded():
            self._stage()
            with Directories(self._staging) as staging:
                return sum(self._fill(name, data, staging) for name, data in unpack(batch))

    def prepare(self) -> list[bytes]:
        """Do all that can be done before the burst; return the hashes that the node lacks, in the order of the files.

        When it lacks none, `commit` may be called.

        Raises:
            MonarchNbError: it can not be written: the change is over, the tree as it was.
        """
        with self._lock, self._guarded():
            self._stage()
            with Directories(self._staging) as staging:
                for name in list(self._wanted):
                    if (data := self._content.read(name)) is not None:
                        self._fill(name, data, staging)
            if self._state == "staging" and not self._wanted:
                root, entries = os.fsencode(self._root), self.mount.entries
                leaving = (*self.change.removed, *(entry.path for entry in self.change.changed))
                self._content.forget(root, [entries[path] for path in leaving if path in entries])
                self._content.place(root, self.change.changed)
                with self._journal.lock:
                    self._journal.append(self.record())
                    self._state = "ready"
            return list(self._wanted)

    def commit(self) -> TreeApplied:
        """Rename everything into place; again, the same answer.

        Raises:
            MonarchNbError: it can not be done; what was done is undone, and the change is over.
        """
        with self._lock:
            if self._state == "committed":
                return self.mount.applied
            if self._state != "ready":
                raise MonarchNbError("this sync is not complete, or another one took its place: sync again")
            with self._guarded(), self._journal.lock:
                self._burst(recovering=False)
        return self.mount.applied

    def recover(self, skipped: TreeApplied) -> None:
        """Go on with a commit in which an allocator was killed; `skipped` is what its record says was kept.

        Raises:
            MonarchNbError: it can not be done.
        """
        self._plan.skipped, self._plan.theirs = set(skipped.kept), set(skipped.theirs)
        with self._guarded():
            self._burst(recovering=True)

    def settle(self) -> None:
        """After a commit: move what was replaced into the cache, and remove what is left over."""
        with self._lock:
            if self._state != "committed" or not self._staging.exists():
                return
            with Directories(self._staging) as staging:
                self._content.keep(staging.open(b""), self._replaced)
            remove_tree(self._staging)

    def abandon(self) -> None:
        """Forget the change, if it is not in place yet; the tree stays as it was."""
        self.settle()
        with self._lock:
            self._end()

    @property
    def is_ready(self) -> bool:
        """Whether `commit` may be called."""
        return self._state == "ready"

    @property
    def is_over(self) -> bool:
        """Whether it failed or was abandoned."""
        return self._state == "over"

    def record(self) -> Record:
        """Return what the journal has to know before the commit."""
        return Record("prepared", self._number, body=self.change.SerializeToString())

    def _end(self) -> None:
        if self._state != "committed":
            self._state = "over"
            self._wanted.clear()
            remove_tree(self._staging)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Whatever goes wrong ends the change."""
        try:
            yield
        except OSError as error:
            self._end()
            raise FilesError(self._explain(error), self._node) from error
        except MonarchNbError:
            self._end()
            raise

    def _explain(self, error: OSError) -> str:
        reason = "the disk is full" if lacks_room(error) else str(error.strerror)
        where = f" in {self.mount.name}" if self.mount.name else ""
        return f"{self._node}: {reason}: the files could not be written{where}; its copy is as it was"

    def _burst(self, *, recovering: bool) -> None:
        plan = self._plan
        burst = Burst(plan, self._root, self._staging, recovering=recovering)
        skipped = TreeApplied(kept=sorted(plan.skipped), theirs=sorted(plan.theirs))
        self._journal.append(Record("committing", self._number, plan.overwrite, skipped.SerializeToString()))
        try:
            applied = burst.run()
            done = TreeApplied(kept=sorted(burst.kept), theirs=sorted(plan.theirs - burst.kept))
            self._journal.append(Record("done", self._number, body=done.SerializeToString()))
        except OSError:
            burst.undo()
            self._end()  # before the record: it makes room on a full disk, and without it nothing is recovered
            self._journal.append(Record("undone", self._number))
            raise
        self._replaced, self._state = burst.replaced, "committed"
        self.mount.apply(self.change, done)
        self.mount.applied = applied
        if not self.change.source:
            with suppress(OSError), Directories(self._root.parent) as workspace:  # else something of a rank's is in it
                remove_directory(workspace.open(b""), os.fsencode(self._root.name))

    def _stage(self) -> None:
        """Look at the tree, and stage everything but the content that is still to come."""
        if self._state == "over":
            raise MonarchNbError("this sync failed, or another one took its place: sync again")
        if self._state != "new":
            return
        self._staging.mkdir(parents=True)
        self._root.mkdir(exist_ok=True)
        with Directories(self._root) as tree, Directories(self._staging) as staging:
            tree.open(b"")  # a rank may have put something in its place
            for path in self.change.removed:
                if (facts := tree.facts(path)) and not self._plan.is_ours(path, facts, *tree.parent(path)):
                    self._plan.look_into(path, facts, *tree.parent(path))
            waiting = [(entry, True) for entry in reversed(self._plan.tops)]
            while waiting:
                entry, look = waiting.pop()
                facts = tree.facts(entry.path) if look else None
                if facts and not self._looks_right(entry, facts, tree):
                    self._plan.skipped.add(entry.path)
                elif entry.path not in self._plan.right:
                    self._stage_entry(entry, staging)
                    inner = self._plan.below.get(entry.path, ())
                    waiting += [(item, entry.path in self._plan.merging) for item in reversed(inner)]
        self._state = "staging"

    def _looks_right(self, entry: TreeEntry, facts: os.stat_result, tree: Directories) -> bool:
        """Return whether `entry` may take the place of what is there."""
        if entry.kind == DIRECTORY and stat.S_ISDIR(facts.st_mode):
            if entry.path in self._plan.below:
                self._plan.merging.add(entry.path)
            return True
        return self._plan.look(entry, facts, *tree.parent(entry.path))

    def _stage_entry(self, entry: TreeEntry, staging: Directories) -> None:
        if entry.kind == FILE:
            file = _Staged(entry, self._plan.staged_as[entry.path], len(entry.sizes_bytes))
            if not file.lacking:
                self._write(file, 0, b"", staging)
            offset = 0
            for name, size in zip(chunk_hashes(entry), entry.sizes_bytes, strict=True):
                self._wanted.setdefault(name, []).append((file, offset, size))
                offset += size
            return
        if entry.kind == DIRECTORY and entry.path not in self._plan.below:
            return  # it is there; only its mode changes
        directory, name = staging.parent(self._plan.staged_as[entry.path])
        if entry.kind == DIRECTORY:
            os.mkdir(name, dir_fd=directory)
            os.chmod(name, directory_mode(entry), dir_fd=directory)
        else:
            os.symlink(entry.target, name, dir_fd=directory)

    def _fill(self, name: bytes, data: Buffer, staging: Directories) -> int:
        """Write a chunk to where it is wanted; return its size if it was."""
        slots = self._wanted.get(name, ())
        if any(size != len(data) for _, _, size in slots):
            raise UsageError("a chunk has another size than its tree says")
        for file, offset, _ in slots:
            self._write(file, offset, data, staging)
        return len(data) if self._wanted.pop(name, None) else 0

    def _write(self, file: _Staged, offset: int, data: Buffer, staging: Directories) -> None:
        """Write one chunk of a file; with the last one the file gets its mode and time."""
        entry, is_part = file.entry, len(data) < file.entry.size_bytes
        directory, name = staging.parent(file.path)
        descriptor = os.open(name, _WRITE, 0o600, dir_fd=directory)
        try:
            if is_part:
                _write_but_zeros(descriptor, memoryview(data), offset)
            else:
                _write_all(descriptor, memoryview(data), offset)
            file.lacking -= 1
            if file.lacking <= 0:
                if is_part:
                    os.ftruncate(descriptor, entry.size_bytes)
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(entry.modified_ns, entry.modified_ns))
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _write_but_zeros(descriptor: int, data: memoryview, offset: int) -> None:
    """Write data; blocks of zeros become holes, so that sparse files stay sparse."""
    for start in range(0, len(data), _HOLE_BYTES):
        block = data[start : start + _HOLE_BYTES]
        if bytes(block) != _ZEROS[: len(block)]:
            _write_all(descriptor, block, offset + start)
