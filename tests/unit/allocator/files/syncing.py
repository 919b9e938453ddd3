"""The client's part of a sync, played against a node's Workspaces in the test's own process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_nb.allocator.files.pending import Pending
from monarch_nb.allocator.files.workspaces import Workspaces
from monarch_nb.config import NodePaths
from monarch_nb.files.content import PIECE_BYTES, Piece, new_hash, pack
from monarch_nb.files.tree import difference
from monarch_nb.proto.files_pb2 import MountStatus, TreeApplied, TreeChange, TreeEntry


@dataclass
class Made:
    """An entry without its path, and its content."""

    entry: TreeEntry
    data: bytes = b""


def file(data: bytes, mode: int = 0o644, modified_ns: int = 1_600_000_000_000_000_000) -> Made:
    entry = TreeEntry(
        kind=TreeEntry.KIND_FILE,
        mode=mode,
        size_bytes=len(data),
        modified_ns=modified_ns,
        hash=new_hash(data).digest(),
    )
    return Made(entry, data)


def directory(mode: int = 0o755) -> Made:
    return Made(TreeEntry(kind=TreeEntry.KIND_DIRECTORY, mode=mode))


def link(target: bytes) -> Made:
    return Made(TreeEntry(kind=TreeEntry.KIND_SYMLINK, mode=0o777, target=target))


def node_paths(home: Path) -> NodePaths:
    return NodePaths(home / "node0")


def open_workspaces(home: Path) -> Workspaces:
    """Return the workspaces of a node below `home`, as an allocator that starts there would have them."""
    paths = node_paths(home)
    paths.directory.mkdir(exist_ok=True)
    return Workspaces(paths, node=paths.directory.name)


class Client:
    """Sends trees to one mount.

    Attributes:
        asked_for: for each sync: how many files the node lacked.
    """

    def __init__(
        self,
        workspaces: Workspaces,
        reservation_id: str,
        mount: str = "",
        source: str = "host:/project",
        like: Client | None = None,
    ) -> None:
        self.workspaces, self.reservation_id, self.mount, self.source = workspaces, reservation_id, mount, source
        workspaces.directory(reservation_id)
        self.version = like.version if like else ""
        self.tree: dict[bytes, TreeEntry] = dict(like.tree) if like else {}
        self.asked_for: list[int] = []

    def change(
        self, entries: Mapping[bytes, TreeEntry], removed: Iterable[bytes], *, whole: bool = False
    ) -> TreeChange:
        """Return a change of this mount; the entries get their paths."""
        for path, entry in entries.items():
            entry.path = path
        return TreeChange(
            mount=self.mount,
            source=self.source,
            version=uuid.uuid4().hex,
            base=self.version,
            whole=whole,
            changed=entries.values(),
            removed=removed,
        )

    def prepare(self, tree: Mapping[bytes, Made], *, whole: bool = False, overwrite: bool = False) -> Pending:
        """Do all of a sync but the commit; `tree` is all that is to be there."""
        entries = {path: made.entry for path, made in tree.items()}
        for path, entry in entries.items():
            entry.path = path
        changed, removed = (list(entries.values()), []) if whole else difference(self.tree, entries)
        change = self.change({entry.path: entry for entry in changed}, removed, whole=whole)
        pending = self.workspaces.begin(self.reservation_id, change, overwrite)
        assert pending, "the node has another base"
        missing = pending.missing()
        self.asked_for.append(len(missing))
        for path in missing:
            data = tree[path].data
            for offset in range(0, len(data), PIECE_BYTES):
                pending.add(pack([Piece(path, offset, data[offset : offset + PIECE_BYTES])]))
        assert pending.missing() == []
        self.tree, self.version = entries, change.version
        return pending

    def sync(self, tree: Mapping[bytes, Made], *, whole: bool = False, overwrite: bool = False) -> TreeApplied:
        """Make the mount hold `tree`."""
        before = self.tree, self.version
        try:
            return self.prepare(tree, whole=whole, overwrite=overwrite).commit()
        except BaseException:
            self.tree, self.version = before
            raise

    def status(self, coming: Mapping[bytes, Made] | None = None) -> MountStatus:
        """Return what the node has, looking at its disk; `coming` would be sent."""
        entries = {path: made.entry for path, made in (coming or {}).items()}
        change = self.change(entries, [])
        status = self.workspaces.status(self.reservation_id, look=True, coming=[change])
        (found,) = [mount for mount in status.mounts if mount.mount == self.mount]
        return found
