"""What one tree of a workspace is to hold: brought forward by changes, never read from the tree, and kept on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from monarch_nb.files.tree import apply_change, difference
from monarch_nb.proto.files_pb2 import MountStatus, TreeApplied, TreeChange, TreeEntry

DIRECTORY = TreeEntry.KIND_DIRECTORY
FILE = TreeEntry.KIND_FILE


@dataclass
class Mount:
    """A tree: "" is the workspace's root, another name a directory below it.

    Attributes:
        version: of `entries`; "" while a change is being put in place, or when that failed half-way.
        entries: what was applied last, also where ranks have put something else.
        kept: paths where the disk is not what the tree says: ranks wrote there.
        theirs: paths that ranks wrote just as the tree came to say: these stay when they leave the tree.
        coming: paths of the change that is being put in place, and what may lie there already; several entries of those
            that failed half-way before.
        applied: the answer to the change that led to `version`.
    """

    name: str
    source: str = ""
    version: str = ""
    entries: dict[bytes, TreeEntry] = field(default_factory=dict)
    kept: set[bytes] = field(default_factory=set)
    theirs: set[bytes] = field(default_factory=set)
    coming: dict[bytes, list[TreeEntry]] = field(default_factory=dict)
    applied: TreeApplied = field(default_factory=TreeApplied)

    def ours(self, path: bytes) -> list[TreeEntry]:
        """Return what we may have put at `path`; nothing where ranks were first."""
        coming = self.coming.get(path, [])
        if path in self.kept or path in self.theirs or path not in self.entries:
            return coming
        return [*coming, self.entries[path]]

    def effective(self, change: TreeChange, extra: Iterable[bytes]) -> TreeChange:
        """Return what `change` comes to here: each path once, only what differs. `extra` paths, and those of which
        nobody is sure, are in it as they are to be."""
        changed = {entry.path: entry for entry in change.changed}
        removed = {path for path in change.removed if path not in changed}
        if change.whole:
            different, gone = difference(self.entries, changed)
            changed, removed = {entry.path: entry for entry in different}, set(gone)
        removed &= self.entries.keys()
        for path in {*self.kept, *self.coming, *extra} - changed.keys() - removed:
            if (entry := self.entries.get(path)) is None:
                removed.add(path)
            else:
                changed[path] = entry
        return TreeChange(
            mount=self.name,
            source=change.source,
            version=change.version,
            changed=[changed[path] for path in sorted(changed)],  # a directory comes before what it holds
            removed=sorted(removed, reverse=True),  # and goes after it
        )

    def apply(self, change: TreeChange, kept: Collection[bytes], theirs: Collection[bytes]) -> None:
        """Make this what it is after an effective change; `kept` is all that the mount keeps from now on."""
        touched = {*change.removed, *(entry.path for entry in change.changed)}
        apply_change(self.entries, change)
        self.source, self.version = change.source, change.version
        self.kept = set(kept)
        self.theirs = (self.theirs - touched) | set(theirs)
        self.coming = {}

    def status(self) -> MountStatus:
        files = [entry for entry in list(self.entries.values()) if entry.kind != DIRECTORY]
        return MountStatus(
            mount=self.name,
            source=self.source,
            version=self.version,
            files=len(files),
            size_bytes=sum(entry.size_bytes for entry in files),
        )


_TABLES = """
CREATE TABLE IF NOT EXISTS mount (name TEXT PRIMARY KEY, source TEXT, version TEXT, coming BLOB);
CREATE TABLE IF NOT EXISTS entry (
    mount TEXT, path BLOB, body BLOB, mark TEXT, PRIMARY KEY (mount, path)
) WITHOUT ROWID;
"""
_KEPT, _THEIRS = "kept", "theirs"


class Manifest:
    """The mounts of one workspace. As the allocator's database, it is safe against the end of this process, not against
    a power cut (which ends the ranks as well).

    Raises:
        sqlite3.Error: it can not be read or written; all methods may raise it.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False)  # syncs of a workspace take turns
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.executescript(_TABLES)

    def read(self) -> dict[str, Mount]:
        """Return the mounts by name."""
        mounts = {}
        for name, source, version, coming in self._connection.execute("SELECT * FROM mount"):
            mounts[name] = mount = Mount(name, source, version)
            change = TreeChange.FromString(coming)
            mount.coming = {path: [] for path in change.removed}
            for entry in change.changed:
                mount.coming.setdefault(entry.path, []).append(entry)
        for name, path, body, mark in self._connection.execute("SELECT * FROM entry"):
            mount = mounts[name]
            mount.entries[path] = TreeEntry.FromString(body)
            if mark:
                (mount.kept if mark == _KEPT else mount.theirs).add(path)
        return mounts

    def begin(self, mount: Mount, coming: dict[bytes, list[TreeEntry]]) -> None:
        """Write down what is about to be put in place; until `finish` the mount has no version."""
        change = TreeChange(changed=[entry for entries in coming.values() for entry in entries], removed=coming)
        with self._connection:
            self._write_mount(mount.name, mount.source, "", change)

    def finish(self, change: TreeChange, kept: Container[bytes], theirs: Container[bytes]) -> None:
        """Write down that an effective change is in place, but for what ranks keep."""
        rows = [
            (
                change.mount,
                entry.path,
                entry.SerializeToString(),
                _KEPT if entry.path in kept else _THEIRS if entry.path in theirs else "",
            )
            for entry in change.changed
        ]
        with self._connection:
            removed = [(change.mount, path) for path in change.removed]
            self._connection.executemany("DELETE FROM entry WHERE mount = ? AND path = ?", removed)
            self._connection.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", rows)
            self._write_mount(change.mount, change.source, change.version, TreeChange())

    def _write_mount(self, name: str, source: str, version: str, coming: TreeChange) -> None:
        row = (name, source, version, coming.SerializeToString())
        self._connection.execute("INSERT OR REPLACE INTO mount VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        self._connection.close()
