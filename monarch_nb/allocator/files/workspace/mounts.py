"""What one tree of a workspace is to hold: pure bookkeeping, brought forward by changes, never read from the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from monarch_nb.errors import UsageError
from monarch_nb.files.tree import apply_change, difference, printable
from monarch_nb.proto.files_pb2 import MountStatus, TreeApplied, TreeChange, TreeEntry

DIRECTORY = TreeEntry.KIND_DIRECTORY
FILE = TreeEntry.KIND_FILE


@dataclass
class Mount:
    """A tree: "" is the workspace's root, another name a directory below it.

    Attributes:
        entries: what was applied last, also where ranks have put something else.
        kept: paths where the disk is not what the tree says: ranks wrote there.
        theirs: paths that ranks wrote just as the tree came to say: these stay when they leave the tree.
        unsure: paths where nobody knows what lies there: something failed. Not remembered over a restart.
        forgot: nothing is known at all: the journal was damaged.
        applied: the answer to the change that led to `version`.
    """

    name: str
    source: str = ""
    version: str = ""
    entries: dict[bytes, TreeEntry] = field(default_factory=dict)
    kept: set[bytes] = field(default_factory=set)
    theirs: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)
    forgot: bool = False
    applied: TreeApplied = field(default_factory=TreeApplied)
    files: int = 0
    size_bytes: int = 0
    _children: Counter[bytes] = field(default_factory=Counter)

    def effective(self, change: TreeChange, extra: Iterable[bytes]) -> TreeChange:
        """Return what `change` comes to here: each path once, only what differs, `extra` paths as they are to be.

        Raises:
            UsageError: the tree would contradict itself.
        """
        changed = {entry.path: entry for entry in change.changed}
        removed = {path for path in change.removed if path not in changed}
        if change.whole:
            different, gone = difference(self.entries, changed)
            changed, removed = {entry.path: entry for entry in different}, set(gone)
        removed &= self.entries.keys()
        for path in extra:
            if path in changed or path in removed:
                continue
            if (entry := self.entries.get(path)) is None:
                removed.add(path)
            else:
                changed[path] = entry
        self._check(changed, removed)
        return TreeChange(
            mount=self.name,
            source=change.source,
            version=change.version,
            base=self.version,
            changed=[changed[path] for path in sorted(changed)],
            removed=sorted(removed, reverse=True),  # what lies in a directory before the directory
        )

    def apply(self, change: TreeChange, done: TreeApplied) -> None:
        """Make this what it is after an effective change. `done.kept` is all that the mount keeps from now on."""
        touched = {*change.removed, *(entry.path for entry in change.changed)}
        for path in touched:
            if (old := self.entries.get(path)) is not None:
                self._count(old, -1)
        apply_change(self.entries, change)
        for entry in change.changed:
            self._count(entry, 1)
        self.source, self.version, self.applied = change.source, change.version, done
        self.kept = set(done.kept)
        self.theirs = (self.theirs - touched) | set(done.theirs)
        self.unsure.clear()
        self.forgot = False

    def whole(self) -> TreeChange:
        """Return the change that makes all of this out of nothing."""
        return TreeChange(
            mount=self.name,
            source=self.source,
            version=self.version,
            whole=True,
            changed=[self.entries[path] for path in sorted(self.entries)],
        )

    def status(self) -> MountStatus:
        return MountStatus(
            mount=self.name,
            source=self.source,
            version=self.version,
            files=self.files,
            size_bytes=self.size_bytes,
        )

    def _count(self, entry: TreeEntry, sign: int) -> None:
        if entry.kind != DIRECTORY:
            self.files += sign
            self.size_bytes += sign * entry.size_bytes
        self._children[_above(entry.path)] += sign
        if not self._children[_above(entry.path)]:
            del self._children[_above(entry.path)]

    def _check(self, changed: dict[bytes, TreeEntry], removed: set[bytes]) -> None:
        """Refuse a tree in which something lies in what is no directory. Costs no more than the change is big."""
        for path in changed:
            above = _above(path)
            holder = changed.get(above) or (None if above in removed else self.entries.get(above))
            if above and (holder is None or holder.kind != DIRECTORY):
                raise UsageError(f"bad tree: {printable(path)!r} lies in no directory of it")
        leaving = Counter(_above(path) for path in removed if path in self.entries)
        ending = {path for path, entry in changed.items() if entry.kind != DIRECTORY} | removed
        for path in ending:
            if self._children[path] > leaving[path]:
                raise UsageError(f"bad tree: {printable(path)!r} ends, and what lies in it does not")


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]
