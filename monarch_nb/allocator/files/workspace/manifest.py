"""What we put into a workspace, on disk: enough to know it again after a restart, killed or not."""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from pathlib import Path

from monarch_nb.allocator.files.workspace.mounts import Mount
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry

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
