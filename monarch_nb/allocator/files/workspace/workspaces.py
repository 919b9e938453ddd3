"""The copies of trees that a node's ranks work in: one directory per reservation, brought forward by changes.

    workspaces/RESERVATION/tree      what ranks see; mount "" is its root, mount "data" is tree/data
                           staging   one directory per change on its way
                           journal   what was applied, and what was about to be

Nothing here knows of asyncio. `Pending.commit` is short and meant for the event loop's thread, so that no run starts
on half a tree; everything else may take long, and is meant for worker threads.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from time import strftime

from google.protobuf.message import DecodeError

from monarch_nb.allocator.files.workspace.content import Content, agrees
from monarch_nb.allocator.files.workspace.directories import (
    Directories,
    facts_at,
    holds_compiled,
    remove_compiled,
    remove_directory,
    remove_tree,
)
from monarch_nb.allocator.files.workspace.journal import Journal, Record
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE, Mount
from monarch_nb.allocator.files.workspace.pending import Pending
from monarch_nb.allocator.files.workspace.plan import is_as_applied
from monarch_nb.config import NodePaths
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.files.tree import check_change, printable
from monarch_nb.proto.files_pb2 import MountStatus, TreeApplied, TreeChange, TreeEntry, WorkspaceReply

_log = logging.getLogger(__name__)
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ENDING = ".released"
MAX_ADDED_NAMED = 1000
"""Of files that ranks wrote, in a status."""


@dataclass(frozen=True)
class Kept:
    """What ranks wrote into a workspace that was released."""

    directory: Path
    files: int
    size_bytes: int


class Workspaces:
    """All workspaces of a node. Made anew on the same directories it knows them again, killed or not.

    Args:
        node: how errors name this node.
        cache_limit_bytes: how much content that no workspace holds any more is kept.
        later: does what nobody has to wait for.
    """

    def __init__(
        self,
        paths: NodePaths,
        *,
        node: str,
        cache_limit_bytes: int,
        later: Callable[[Callable[[], object]], object] = lambda work: work(),
    ) -> None:
        self._paths, self._node, self._later = paths, node, later
        self._content = Content(paths.content, cache_limit_bytes)
        self._lock = RLock()
        self._known: dict[str, _Workspace] = {}
        paths.workspaces.mkdir(mode=0o700, exist_ok=True)
        for directory in sorted(paths.workspaces.iterdir()):
            if directory.name.endswith(_ENDING):
                try:
                    self._finish_release(directory, directory.name.removesuffix(_ENDING))
                except OSError as error:  # a full disk: at the next start
                    _log.warning("%s can not be removed: %s", directory, error)
            elif _ID.fullmatch(directory.name):
                self._known[directory.name] = _Workspace(directory, self._content, node)

    def reservations(self) -> list[str]:
        """Return the ids of the reservations that have a workspace."""
        return sorted(self._known)

    def directory(self, reservation_id: str) -> Path:
        """Return where a reservation's ranks work, made if it is missing; nothing else makes a workspace."""
        with self._lock:
            if (workspace := self._known.get(_checked(reservation_id))) is None:
                directory = self._paths.workspaces / reservation_id
                workspace = self._known[reservation_id] = _Workspace(directory, self._content, self._node)
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
            cache_bytes=self._content.cache_bytes,
        )

    def release(self, reservation_id: str, name: str = "") -> Kept | None:
        """Remove a workspace whose ranks have ended; what they wrote is moved to `kept/NAME-TIME`, and returned."""
        with self._lock:
            if (workspace := self._known.pop(reservation_id, None)) is None:
                return None
        workspace.close()
        ending = workspace.directory.with_name(reservation_id + _ENDING)
        workspace.directory.rename(ending)  # whoever is killed from here on finishes at the next start
        return self._finish_release(ending, name if _ID.fullmatch(name) else reservation_id)

    def _workspace(self, reservation_id: str) -> _Workspace:
        if (workspace := self._known.get(reservation_id)) is None:
            raise ReservationNotFound(f"{self._node} has no workspace of that reservation: it was released")
        return workspace

    def _finish_release(self, directory: Path, label: str) -> Kept | None:
        """What ranks wrote is told; where they wrote nothing, nobody has to wait."""
        workspace = _Workspace(directory, self._content, self._node)
        if workspace.is_as_applied():
            self._later(partial(self._clear, workspace, label))
            return None
        return self._clear(workspace, label)

    def _clear(self, workspace: _Workspace, label: str) -> Kept | None:
        files, size_bytes = workspace.clear()
        kept = None
        if files:
            self._paths.kept.mkdir(mode=0o700, exist_ok=True)
            target = _unused(self._paths.kept / f"{label}-{strftime('%Y%m%d-%H%M%S')}")
            workspace.tree.rename(target)
            kept = Kept(target, files, size_bytes)
            _log.info("what ranks wrote is kept in %s: %d files, %d bytes", target, files, size_bytes)
        workspace.close()
        remove_tree(workspace.directory)
        return kept


class _Workspace:
    """One reservation's directory and the trees in it."""

    def __init__(self, directory: Path, content: Content, node: str) -> None:
        self.directory, self.tree, self._staging = directory, directory / "tree", directory / "staging"
        self._content, self._node = content, node
        self._lock = RLock()
        self._mounts: dict[str, Mount] = {}
        self._forgot = False
        self._pending: dict[str, Pending] = {}
        self._number = 0
        self.tree.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = Journal(directory / "journal")
        self._load()
        remove_tree(self._staging)
        for mount in self._mounts.values():
            self._content.place(self._place(mount), mount.entries.values())

    def begin(self, change: TreeChange, overwrite: bool) -> Pending | None:
        """See Workspaces.begin."""
        with self._lock:
            mount = self._mounts.get(change.mount) or Mount(change.mount, forgot=self._forgot)
            self._refuse(mount, change, overwrite)
            if same := self.resume(mount.name, change.version):
                return same
            if change.version == mount.version:  # it is in place, from before a restart
                return self._make(mount, TreeChange(version=change.version), 0, overwrite)
            if not change.whole and change.base != mount.version:
                return None
            extra = mount.kept | mount.unsure
            if overwrite:
                extra |= mount.theirs | set(self._differing(mount, mount.entries))
            effective = mount.effective(change, extra)
            if earlier := self._pending.pop(mount.name, None):
                earlier.abandon()
            self._compact()
            self._mounts[mount.name] = mount
            self._number += 1
            pending = self._pending[mount.name] = self._make(mount, effective, self._number, overwrite)
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
        """Abandon what is on its way; what lies here is no content to copy from any more."""
        with self._lock:
            for pending in self._pending.values():
                pending.abandon()
            for mount in self._mounts.values():
                self._content.forget(self._place(mount), mount.entries.values())

    def is_as_applied(self) -> bool:
        """Whether ranks wrote nothing, but for what Python compiled. Reads no content."""
        applied = {
            b"/".join(filter(None, (mount.name.encode(), path))): entry
            for mount in self._mounts.values()
            for path, entry in mount.entries.items()
            if path not in mount.theirs
        }
        for path, descriptor, name in self._files():
            entry, facts = applied.get(path), facts_at(descriptor, name)
            if facts and (entry is None or not is_as_applied(entry, facts, descriptor, name)):
                return False
        return True

    def _files(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield what lies in the tree, but for what Python compiled: its path, its directory, and its name there."""
        top = os.fsencode(self.tree)
        for directory, directories, names, descriptor in os.fwalk(top):
            if directories or not holds_compiled(directory, names):
                for name in names:
                    yield os.path.join(directory, name)[len(top) + 1 :], descriptor, name

    def clear(self) -> tuple[int, int]:
        """Remove what was synced, into the cache as far as it reaches; return how many files and bytes ranks wrote."""
        for mount in sorted(self._mounts.values(), key=lambda mount: mount.name, reverse=True):
            with Directories(self._root(mount.name)) as tree:
                for path in sorted(mount.entries.keys() - mount.theirs, reverse=True):
                    try:
                        self._clear_entry(mount.entries[path], tree)
                    except OSError:
                        pass  # it stays, and counts as a rank's
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

    def _clear_entry(self, entry: TreeEntry, tree: Directories) -> None:
        if entry.kind == DIRECTORY or (facts := tree.facts(entry.path)) is None:
            return
        directory, name = tree.parent(entry.path)
        if is_as_applied(entry, facts, directory, name):
            self._content.keep(directory, [(name, entry)])
            if facts_at(directory, name):
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
        if not self._root(mount.name).exists():
            return found
        with Directories(self._root(mount.name)) as tree:
            for path, entry in list(entries.items()):
                facts = tree.facts(path)
                if facts is None or not is_as_applied(entry, facts, *tree.parent(path)):
                    found[path] = facts is not None
        return found

    def _holds(self, mount: Mount, path: bytes, entries: Iterable[TreeEntry | None]) -> bool:
        """Return whether a file that looks different holds what one of `entries` says all the same."""
        with Directories(self._root(mount.name)) as tree:
            if (facts := tree.facts(path)) is None:
                return False
            return any(
                entry is not None
                and entry.kind == FILE
                and entry.size_bytes == facts.st_size
                and agrees(*tree.parent(path), entry)
                for entry in entries
            )

    def _make(self, mount: Mount, change: TreeChange, number: int, overwrite: bool) -> Pending:
        return Pending(
            mount,
            change,
            root=self._root(mount.name),
            staging=self._staging / str(number),
            journal=self._journal,
            content=self._content,
            overwrite=overwrite,
            node=self._node,
        )

    def _root(self, mount: str) -> Path:
        return self.tree / mount

    def _place(self, mount: Mount) -> bytes:
        return os.fsencode(self._root(mount.name))

    def _load(self) -> None:
        """Bring back what was applied; go on with what was being put in place."""
        try:
            for change, record in self._replay():
                self._recover(change, record)
        except (DecodeError, KeyError) as error:
            _log.warning("%s is damaged (%s): the next sync finds out what there is", self.directory / "journal", error)
            self._mounts.clear()
            self._forgot = True
            self._journal.rewrite([])

    def _replay(self) -> list[tuple[TreeChange, Record]]:
        """Apply what the journal says is done; return the changes in which an allocator was killed."""
        prepared: dict[int, TreeChange] = {}
        committing: dict[int, Record] = {}
        for record in self._journal.read():
            self._number = max(self._number, record.number)
            if record.step == "prepared":
                prepared[record.number] = TreeChange.FromString(record.body)
            elif record.step == "committing":
                committing[record.number] = record
            else:
                committing.pop(record.number, None)
                change = prepared.pop(record.number)
                if record.step == "done":
                    applied = TreeApplied.FromString(record.body)
                    self._mounts.setdefault(change.mount, Mount(change.mount)).apply(change, applied)
        return [
            (prepared[number], record)
            for number, record in committing.items()
            if (self._staging / str(number)).exists()
        ]

    def _recover(self, change: TreeChange, record: Record) -> None:
        mount = self._mounts.setdefault(change.mount, Mount(change.mount))
        pending = self._make(mount, change, record.number, record.overwrite)
        try:
            pending.recover(TreeApplied.FromString(record.body))
            pending.settle()
        except MonarchNbError as error:
            _log.warning("%s; it is looked at again by the next sync", error)
            mount.version = ""
            mount.unsure |= {*change.removed, *(entry.path for entry in change.changed)}

    def _compact(self) -> None:
        """Write the journal anew when most of it is of the past."""
        if not self._journal.is_long:
            return
        with self._journal.lock:
            records = []
            for mount in self._mounts.values():
                self._number += 1
                done = TreeApplied(kept=sorted(mount.kept), theirs=sorted(mount.theirs)).SerializeToString()
                records.append(Record("prepared", self._number, body=mount.whole().SerializeToString()))
                records.append(Record("done", self._number, body=done))
            records += [pending.record() for pending in self._pending.values() if pending.is_ready]
            self._journal.rewrite(records)


def _checked(reservation_id: str) -> str:
    if not _ID.fullmatch(reservation_id):
        raise UsageError(f"bad reservation id {reservation_id!r}")
    return reservation_id


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
