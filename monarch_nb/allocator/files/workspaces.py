"""The copies of trees that a node's ranks work in: one directory per reservation, brought forward by changes.

    workspaces/RESERVATION/tree      what ranks see; mount "" is its root, mount "data" is tree/data
                           incoming  content that is not in place yet, a directory per mount
                           manifest  what we put into the tree, and what we are about to

Nothing here knows of asyncio. While a tree is half-way from one version to another, and when that failed, no run may
start: `check_whole`.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from time import strftime

from google.protobuf.message import DecodeError

from monarch_nb.allocator.files.directories import (
    Directories,
    facts_at,
    holds_compiled,
    remove_compiled,
    remove_directory,
    remove_tree,
)
from monarch_nb.allocator.files.mounts import DIRECTORY, FILE, Manifest, Mount
from monarch_nb.allocator.files.pending import Incoming, Pending
from monarch_nb.allocator.files.placing import agrees, is_as_applied
from monarch_nb.config import NodePaths
from monarch_nb.errors import FilesError, ReservationNotFound, UsageError
from monarch_nb.files.tree import check_change, printable
from monarch_nb.proto.allocator_pb2 import KeptFiles
from monarch_nb.proto.files_pb2 import MountStatus, TreeChange, TreeEntry, WorkspaceReply

_log = logging.getLogger(__name__)
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ENDING = ".released"
MAX_ADDED_NAMED = 1000
"""Of files that ranks wrote, in a status."""


class Workspaces:
    """All workspaces of a node. Made anew on the same directories it knows them again, killed or not.

    Args:
        node: how errors name this node.
        later: does what nobody has to wait for.
    """

    def __init__(
        self, paths: NodePaths, *, node: str, later: Callable[[Callable[[], object]], object] = lambda work: work()
    ) -> None:
        self._paths, self._node, self._later = paths, node, later
        self._lock = RLock()
        self._known: dict[str, Workspace] = {}
        paths.workspaces.mkdir(mode=0o700, exist_ok=True)
        for directory in sorted(paths.workspaces.iterdir()):
            if directory.name.endswith(_ENDING):
                try:
                    self._finish_release(directory, directory.name.removesuffix(_ENDING))
                except OSError as error:  # a full disk: at the next start
                    _log.warning("%s can not be removed: %s", directory, error)
            elif _ID.fullmatch(directory.name):
                self._known[directory.name] = Workspace(directory, node)

    def reservations(self) -> list[str]:
        """Return the ids of the reservations that have a workspace."""
        return sorted(self._known)

    def directory(self, reservation_id: str) -> Path:
        """Return where a reservation's ranks work, made if it is missing; nothing else makes a workspace."""
        with self._lock:
            if (workspace := self._known.get(reservation_id)) is None:
                if not _ID.fullmatch(reservation_id):
                    raise UsageError(f"bad reservation id {reservation_id!r}")
                directory = self._paths.workspaces / reservation_id
                workspace = self._known[reservation_id] = Workspace(directory, self._node)
            return workspace.tree

    def begin(self, reservation_id: str, change: TreeChange, overwrite: bool = False) -> Pending | None:
        """Return the change on its way, or None when the mount has another base: send the whole tree.

        A change that has begun already goes on where it was; one that is in place needs no more than `commit` to say
        so. An earlier change of the same mount that is not in place yet is abandoned.

        Raises:
            UsageError: the change could touch what it must not, contradicts itself, or meets another notebook's files.
            ReservationNotFound: the reservation has no workspace, or was released.
        """
        check_change(change)
        return self._workspace(reservation_id).begin(change, overwrite)

    def resume(self, reservation_id: str, mount: str, version: str) -> Pending | None:
        """Return the change of `mount` to `version` that has begun; None when there is none (any more)."""
        workspace = self._known.get(reservation_id)
        return workspace.resume(mount, version) if workspace else None

    def check_whole(self, reservation_id: str) -> None:
        """Refuse to let anything run on half a sync.

        Raises:
            FilesError: one is under way, or was interrupted.
        """
        workspace = self._known.get(reservation_id)
        if workspace and workspace.is_half_way():
            told = "some files are of the version before, as a sync was interrupted or is under way: %mesh sync goes on"
            raise FilesError(f"{self._node}: {told}", self._node)

    def status(self, reservation_id: str, *, look: bool = False, coming: Iterable[TreeChange] = ()) -> WorkspaceReply:
        """Return what a workspace holds.

        Args:
            look: at the disk too: what is not as it was applied.
            coming: what a client would send, to look also at names that only these changes have.

        Raises:
            ReservationNotFound: the reservation has none, or was released.
        """
        workspace = self._workspace(reservation_id)
        return WorkspaceReply(
            directory=str(workspace.tree),
            mounts=workspace.statuses(look, {change.mount: change.changed for change in coming}),
        )

    def release(self, reservation_id: str, name: str = "") -> KeptFiles | None:
        """Remove a workspace whose ranks have ended; what they wrote is moved to `kept/NAME-TIME`, and returned."""
        with self._lock:
            if (workspace := self._known.pop(reservation_id, None)) is None:
                return None
        workspace.close()
        ending = workspace.directory.with_name(reservation_id + _ENDING)
        workspace.directory.rename(ending)  # whoever is killed from here on finishes at the next start
        return self._finish_release(ending, name if _ID.fullmatch(name) else reservation_id)

    def _workspace(self, reservation_id: str) -> Workspace:
        if (workspace := self._known.get(reservation_id)) is None:
            raise ReservationNotFound(f"{self._node} has no workspace of that reservation: it was released")
        return workspace

    def _finish_release(self, directory: Path, label: str) -> KeptFiles | None:
        """What ranks wrote is told; where they wrote nothing, nobody has to wait."""
        workspace = Workspace(directory, self._node)
        if workspace.is_as_applied():
            self._later(partial(self._clear, workspace, label))
            return None
        return self._clear(workspace, label)

    def _clear(self, workspace: Workspace, label: str) -> KeptFiles | None:
        files, size_bytes = workspace.clear()
        kept = None
        if files:
            self._paths.kept.mkdir(mode=0o700, exist_ok=True)
            target = _unused(self._paths.kept / f"{label}-{strftime('%Y%m%d-%H%M%S')}")
            workspace.tree.rename(target)
            kept = KeptFiles(directory=str(target), files=files, size_bytes=size_bytes)
            _log.info("what ranks wrote is kept in %s: %d files, %d bytes", target, files, size_bytes)
        workspace.close()
        remove_tree(workspace.directory)
        return kept


class Workspace:
    """One reservation's directory and the trees in it."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory, self.tree = directory, directory / "tree"
        self.node = node
        self._lock = RLock()
        self._incoming: dict[str, Incoming] = {}
        self._pending: dict[str, Pending] = {}
        self.tree.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_tree(directory / "incoming")
        self.manifest, self._mounts = self._read()

    def _read(self) -> tuple[Manifest, dict[str, Mount]]:
        try:
            manifest = Manifest(path := self.directory / "manifest")
            return manifest, manifest.read()
        except (sqlite3.DatabaseError, DecodeError) as error:
            if isinstance(error, sqlite3.OperationalError):  # a full disk
                raise
            _log.warning("%s is damaged (%s): what lies in the workspace counts as written by ranks", path, error)
            for path in self.directory.glob("manifest*"):
                path.unlink()
            return Manifest(self.directory / "manifest"), {}

    def is_half_way(self) -> bool:
        """Whether a change is being put in place, or that was interrupted."""
        return any(mount.coming for mount in list(self._mounts.values()))

    def begin(self, change: TreeChange, overwrite: bool) -> Pending | None:
        """See Workspaces.begin."""
        with self._lock:
            mount = self._mounts.get(change.mount) or Mount(change.mount)
            self._refuse(mount, change, overwrite)
            if same := self.resume(mount.name, change.version):
                return same
            if change.version == mount.version:  # it is in place, from before a restart
                return Pending(self, mount, TreeChange(version=change.version), overwrite=overwrite)
            if not change.whole and change.base != mount.version:
                return None
            extra = mount.theirs | self._differing(mount, mount.entries).keys() if overwrite else set[bytes]()
            effective = mount.effective(change, extra)
            if earlier := self._pending.pop(mount.name, None):
                earlier.abandon()
            self._mounts[mount.name] = mount
            pending = self._pending[mount.name] = Pending(self, mount, effective, overwrite=overwrite)
            return pending

    def resume(self, mount: str, version: str) -> Pending | None:
        """See Workspaces.resume."""
        with self._lock:
            pending = self._pending.get(mount)
            return pending if pending and not pending.is_over and pending.change.version == version else None

    def statuses(self, look: bool, coming: Mapping[str, Iterable[TreeEntry]]) -> Iterator[MountStatus]:
        """See Workspaces.status."""
        added = self._added() if look else {}
        for mount in list(self._mounts.values()):
            if mount.version and mount.source:  # else it never came, or was ended
                status = mount.status()
                if look:
                    self._look(mount, coming.get(mount.name, ()), status)
                    new = sorted(added.get(mount.name, ()))
                    status.added.extend(new[:MAX_ADDED_NAMED])
                    status.added_files = len(new)
                yield status

    def close(self) -> None:
        """Abandon what is on its way."""
        with self._lock:
            for pending in self._pending.values():
                pending.abandon()
            for incoming in self._incoming.values():
                incoming.clear()
            self.manifest.close()

    def is_as_applied(self) -> bool:
        """Whether ranks wrote nothing, but for what Python compiled. Reads no content."""
        ours = {
            b"/".join(filter(None, (mount.name.encode(), path))): mount.ours(path)
            for mount in self._mounts.values()
            for path in {**mount.entries, **mount.coming}
        }
        return all(
            any(is_as_applied(entry, facts, descriptor, name) for entry in ours.get(path, ()))
            for path, descriptor, name in self._files()
            if (facts := facts_at(descriptor, name))
        )

    def _files(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield what lies in the tree, but for what Python compiled: its path, its directory, and its name there."""
        top = os.fsencode(self.tree)
        for directory, directories, names, descriptor in os.fwalk(top):
            if directories or not holds_compiled(directory, names):
                for name in names:
                    yield os.path.join(directory, name)[len(top) + 1 :], descriptor, name

    def clear(self) -> tuple[int, int]:
        """Remove what was synced; return how many files and bytes ranks wrote."""
        for mount in sorted(self._mounts.values(), key=lambda mount: mount.name, reverse=True):
            with Directories(self.root(mount.name)) as tree:
                for path in sorted({**mount.entries, **mount.coming}, reverse=True):
                    with suppress(OSError):  # it stays, and counts as a rank's
                        self._clear_name(path, mount.ours(path), tree)
        for _, directories, _, descriptor in os.fwalk(self.tree, topdown=False):
            try:
                for name in directories:
                    remove_directory(descriptor, os.fsencode(name))
                remove_compiled(descriptor)
            except OSError:
                pass  # ranks forbade it; it stays
        files = size_bytes = 0
        for _, _, names, descriptor in os.fwalk(self.tree):
            found = [facts for name in names if (facts := facts_at(descriptor, os.fsencode(name)))]
            files += len(found)
            size_bytes += sum(facts.st_size for facts in found)
        return files, size_bytes

    def _clear_name(self, path: bytes, ours: Iterable[TreeEntry], tree: Directories) -> None:
        if (facts := tree.facts(path)) is None or stat.S_ISDIR(facts.st_mode):
            return
        directory, name = tree.parent(path)
        if any(is_as_applied(entry, facts, directory, name) for entry in ours):
            os.unlink(name, dir_fd=directory)

    def _refuse(self, mount: Mount, change: TreeChange, overwrite: bool) -> None:
        if not change.version:
            raise UsageError("a change of a tree needs a version")
        if not change.source and (change.changed or not change.whole or not change.mount):
            raise UsageError("a change of a tree needs a source: one without ends a tree that was added")
        if change.source and mount.source not in ("", change.source) and not overwrite:
            raise UsageError(
                f"the ranks of this reservation work on the files of {mount.source}, not on those of {change.source}; "
                "run `%mesh sync --overwrite` to replace them, or `%%mesh --no-sync` to leave them"
            )
        if mount.name:
            root = self._mounts.get("", Mount(""))
            both = [name for name in (mount.name.encode(),) if name in root.entries]
        else:
            added = {name.encode() for name, one in self._mounts.items() if one.source}
            both = [entry.path for entry in change.changed if entry.path in added]
        if both:
            name = printable(both[0])
            raise UsageError(f"{name!r} is both among the notebook's files and the name of files that were added")

    def _look(self, mount: Mount, coming: Iterable[TreeEntry], status: MountStatus) -> None:
        """Fill in what ranks changed and removed."""
        status.theirs.extend(sorted(mount.theirs))
        wanted = {entry.path: entry for entry in coming}
        for path, there in sorted(self._differing(mount, {**wanted, **mount.entries}).items()):
            entry = mount.entries.get(path)
            if not there:
                if entry is not None and entry.kind != DIRECTORY:
                    status.missing.append(path)
            elif not self._holds(mount, path, [entry, wanted.get(path)]):
                status.changed.append(path)
                if entry is not None and path in mount.kept:
                    status.waiting.append(path)

    def _added(self) -> dict[str, list[bytes]]:
        """Return by mount the files that ranks wrote and that have names of their own. Reads no content."""
        mounts = {mount.name.encode(): mount for mount in list(self._mounts.values()) if mount.source}
        found: dict[str, list[bytes]] = {}
        for whole, _, _ in self._files():
            first, _, rest = whole.partition(b"/")
            mount, path = (mounts[first], rest) if rest and first in mounts else (mounts.get(b""), whole)
            if mount is not None and path not in mount.entries:
                found.setdefault(mount.name, []).append(path)
        return found

    def _differing(self, mount: Mount, entries: Mapping[bytes, TreeEntry]) -> dict[bytes, bool]:
        """Return the paths that do not look as `entries` say, and whether something is there. Reads no content."""
        found: dict[bytes, bool] = {}
        if not self.root(mount.name).exists():
            return found
        with Directories(self.root(mount.name)) as tree:
            for path, entry in list(entries.items()):
                facts = tree.facts(path)
                if facts is None or not is_as_applied(entry, facts, *tree.parent(path)):
                    found[path] = facts is not None
        return found

    def _holds(self, mount: Mount, path: bytes, entries: Iterable[TreeEntry | None]) -> bool:
        """Return whether a file that looks different holds what one of `entries` says all the same."""
        with Directories(self.root(mount.name)) as tree:
            if (facts := tree.facts(path)) is None:
                return False
            return any(
                entry is not None
                and entry.kind == FILE
                and entry.size_bytes == facts.st_size
                and agrees(*tree.parent(path), entry)
                for entry in entries
            )

    def incoming(self, mount: str) -> Incoming:
        """Return what has come for a tree and is not in place yet."""
        return self._incoming.setdefault(mount, Incoming(self.directory / "incoming" / f"@{mount}"))

    def root(self, mount: str) -> Path:
        """Return where a tree lies."""
        return self.tree / mount


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
