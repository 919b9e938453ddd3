"""How a change of a mount meets what lies there: what goes together, what ranks changed, what is right already."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from monarch_nb.allocator.files.workspace.content import agrees
from monarch_nb.allocator.files.workspace.directories import join
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE, Mount
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry

Stamp = tuple[int, int, int]


class Plan:
    """The steps of an effective change.

    Attributes:
        tops: entries that are put in place by themselves; new directories take along what lies in them.
        below: of each new directory: the entries in it.
        staged_as: where in the staging directory an entry waits.
        again: paths that were kept before, and are tried again.
        skipped: paths where ranks were first: nothing is staged for them.
        merging: new directories that ranks have made already.
        right: files and links that hold what they should: no more than mode and time are to be set.
        theirs: those of them that ranks wrote.
    """

    def __init__(self, mount: Mount, change: TreeChange, overwrite: bool) -> None:
        self.mount, self.change, self.overwrite = mount, change, overwrite
        self.again = frozenset(mount.kept | mount.unsure)
        self.below: dict[bytes, list[TreeEntry]] = {}
        self.staged_as: dict[bytes, bytes] = {}
        self.skipped: set[bytes] = set()
        self.merging: set[bytes] = set()
        self.right: set[bytes] = set()
        self.theirs: set[bytes] = set()
        self._looked_into: dict[bytes, Stamp] = {}
        self.tops = list(self._lay_out())

    def old(self, path: bytes) -> TreeEntry | None:
        """Return what was put at `path` last; None when ranks were there first."""
        return None if path in self.again or path in self.mount.theirs else self.mount.entries.get(path)

    def look(self, new: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether `new` may replace what lies in its place. Reads the file where its facts do not tell.

        Notes a file that holds what `new` says as `right`.
        """
        old = self.old(new.path)
        untouched = old is not None and is_as_applied(old, facts, directory, name)
        if new.kind == FILE and untouched and old is not None:
            is_right = old.kind == FILE and old.hashes == new.hashes
        elif new.kind == FILE:
            is_right = facts.st_size == new.size_bytes and stat.S_ISREG(facts.st_mode) and agrees(directory, name, new)
        else:
            is_right = is_as_applied(new, facts, directory, name)
        if is_right:
            self.right.add(new.path)
            if old is None and not self.overwrite and not self.mount.forgot and new.path not in self.mount.unsure:
                self.theirs.add(new.path)
            self._looked_into[new.path] = _stamp(facts)
            return True
        return untouched or self.look_into(new.path, facts, directory, name) or self.overwrite

    def look_into(self, path: bytes, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether a file of another time still holds what was applied: touched, or its time was rounded."""
        old = self.old(path)
        if old is None or old.kind != FILE or not stat.S_ISREG(facts.st_mode) or facts.st_size != old.size_bytes:
            return False
        if not agrees(directory, name, old):
            return False
        self._looked_into[path] = _stamp(facts)
        return True

    def is_ours(self, path: bytes, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether what lies at `path` is as it was applied, or as it was when looked into. Reads no content."""
        if self._looked_into.get(path) == _stamp(facts):
            return True
        old = self.old(path)
        return old is not None and is_as_applied(old, facts, directory, name)

    def all_below(self, path: bytes) -> Iterator[bytes]:
        """Yield the paths of what a new directory takes along."""
        waiting = [path]
        while waiting:
            for entry in self.below.get(waiting.pop(), ()):
                yield entry.path
                waiting.append(entry.path)

    def _lay_out(self) -> Iterator[TreeEntry]:
        for number, entry in enumerate(self.change.changed):  # sorted: a directory comes before what it holds
            above, _, name = entry.path.rpartition(b"/")
            if above in self.below:
                self.below[above].append(entry)
                self.staged_as[entry.path] = join(self.staged_as[above], name)
            else:
                self.staged_as[entry.path] = b"%d" % number
                yield entry
            old = self.old(entry.path)
            if entry.kind == DIRECTORY and (old is None or old.kind != DIRECTORY):
                self.below[entry.path] = []


def is_as_applied(entry: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> bool:
    """Return whether the facts of a name in an open directory are those of an entry."""
    if entry.kind == FILE:
        return (
            stat.S_ISREG(facts.st_mode) and facts.st_size == entry.size_bytes and facts.st_mtime_ns == entry.modified_ns
        )
    if entry.kind == DIRECTORY:
        return stat.S_ISDIR(facts.st_mode)
    return stat.S_ISLNK(facts.st_mode) and os.readlink(name, dir_fd=directory) == entry.target


def directory_mode(entry: TreeEntry) -> int:
    """Return a directory's mode on a node, which must be able to change what is in it."""
    return entry.mode | 0o700


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
