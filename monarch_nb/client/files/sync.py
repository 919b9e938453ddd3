"""The notebook's files on the nodes of a reservation: what changed goes there before each run.

Nodes that see the notebook's directory itself (a shared file system, a local pool) need nothing. Every other node has a
workspace: a copy of the directory's project, and of whatever else was added.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.evidence import nodes_blind_to
from monarch_nb.client.files.local_tree import FileChanged, LocalTree, Report, why_missing
from monarch_nb.client.files.project import Settings, check_beside, checked_directory, read_settings
from monarch_nb.client.files.record import FilesRecord, directory_of
from monarch_nb.client.files.transfer import (
    INLINE_BYTES,
    Differences,
    OnNodes,
    Pending,
    Sender,
    SyncReport,
    Transfer,
    differences,
    report_of,
)
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.files.tree import check_mount, difference, printable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.proto.run_pb2 import CopiedTree, Tree

PATIENT_ATTEMPTS = 3
"""How often files may change while they are sent; then those that do are left out."""
MAX_ATTEMPTS = 50

Progress = Callable[[str, int, int], None]
"""Told what is done ("reading files"), how many bytes are, and of how many; 0 of 0 when nobody knows yet."""


class _Mount:
    """One tree of this computer and its copies."""

    def __init__(self, name: str, tree: LocalTree) -> None:
        self.name, self.tree = name, tree
        self.entries: Mapping[bytes, pb.TreeEntry] = {}
        self.version = ""
        self.sent: tuple[str, Mapping[bytes, pb.TreeEntry]] = "", {}
        """The last version that a node got, and its entries."""
        self.have: dict[str, str] = {}
        """By node, the version that it has."""
        self.restless: set[bytes] = set()
        """Files that changed each time that they were sent: `entries` has them as they were sent last."""
        self._all_have: tuple[Mapping[int, Connection], str] = {}, ""

    def behind(self, connections: Mapping[int, Connection]) -> list[Connection]:
        """Return those to nodes that do not have what there is now. Nobody changes `connections` after that."""
        have, version = self.have, self.version
        if self._all_have[0] is connections and self._all_have[1] == version:
            return []  # most often, and there may be a thousand
        behind = [connection for connection in connections.values() if have.get(connection.name) != version]
        if not behind:
            self._all_have = connections, version
        return behind

    def refresh(self, progress: Progress) -> tuple[list[pb.TreeEntry], list[bytes]]:
        """See what is there now; return what changed, and what went, since the last call."""
        version, self.version = self.version, ""  # an interrupt in here costs a whole list, never a change
        if not version:
            progress(f"looking at the files of {self.tree.root}", 0, 0)
        refreshed = self.tree.refresh(lambda done, total: progress("reading files", done, total))
        changed, removed = refreshed.changed, refreshed.removed
        if self.restless:
            changed, removed = difference(self.entries, refreshed.entries)
            self.restless.clear()
        self.entries = refreshed.entries
        self.version = uuid.uuid4().hex if changed or removed or not version else version
        return changed, removed

    def leave_out(self, restless: set[bytes], lost: set[bytes]) -> None:
        """Let nodes keep the files that they have instead of those that are `restless`; remove there those that are
        `lost`: a node lacks what the others have, and it is here no longer."""
        self.restless, entries = set(restless), dict(self.entries)
        for path in restless & entries.keys():
            before = self.sent[1].get(path)
            if before is not None and before.kind == pb.TreeEntry.KIND_FILE and path not in lost:
                entries[path] = before
            else:
                del entries[path]
        self.entries = entries

    def report(self) -> Report:
        """Return what is not synced, and why."""
        report = self.tree.report
        restless = [(path, "it changed each time that it was sent") for path in sorted(self.restless)]
        return replace(report, refused=[*report.refused, *restless]) if restless else report


class SyncedFiles:
    """The files of one reservation, as this process keeps them up to date. Safe to use from any thread.

    Args:
        reservation_id: whose.
        connections: to the nodes that have a workspace, by node rank.
        seeing: to the nodes that see the files themselves, by node rank.
        root: directory of the project whose files are synced; "" for none.
        reload: whether ranks reload changed modules before each run, if nobody says anything else.
        said: what was said of the files since the reservation was made.
        others: it is somebody else's, with whose files its ranks work: nothing is synced, and runs name no files.

    Attributes:
        record: what the kernels of the reservation say of its files.
    """

    def __init__(
        self,
        reservation_id: str,
        connections: Mapping[int, Connection],
        seeing: Mapping[int, Connection] | None = None,
        *,
        root: str,
        reload: bool,
        said: pb.ReservationFiles | None = None,
        others: bool = False,
    ) -> None:
        self.reservation_id, self.root, self._others = reservation_id, root, others
        self.connections, self._seeing = dict(connections), dict(seeing or {})
        self._nodes = {**self.connections, **self._seeing}
        self.record = FilesRecord(reservation_id, self._nodes, said or pb.ReservationFiles(), reload=reload)
        self._origin = ""
        """Whose files lie in the workspaces: "HOST:DIRECTORY"."""
        self._mounts: dict[str, _Mount] | None = None
        self._followed = 0
        """The revision of the record after which mounts were opened and closed."""
        self._version = ""
        self._lock = threading.RLock()

    _known: ClassVar[WeakValueDictionary[str, SyncedFiles]] = WeakValueDictionary()

    @classmethod
    def get(
        cls,
        reservation_id: str,
        connections: Mapping[int, Connection],
        seeing: Mapping[int, Connection],
        *,
        root: str,
        reload: bool,
        said: pb.ReservationFiles,
        others: bool = False,
    ) -> SyncedFiles:
        """Return the one object of a reservation in this process: two would each watch the same files."""
        known = cls._known.get(reservation_id)
        if known is None:
            known = cls(reservation_id, connections, seeing, root=root, reload=reload, said=said, others=others)
            cls._known[reservation_id] = known
        for node in known._nodes.keys() - connections.keys() - seeing.keys():
            known.drop_node(node)
        for node, connection in {**connections, **seeing}.items():
            if known._nodes.get(node) is not connection:  # another client has put it in the place of one
                known.put_node(node, connection, copied=node in connections)
        known.record.hear(said)
        return known

    def put_node(self, node: int, connection: Connection, *, copied: bool) -> None:
        """Another node is in the place of one. It gets all files before the next run, if it has a copy of them."""
        there, seeing = ({**self.connections}, {**self._seeing})
        (there if copied else seeing)[node] = connection
        (seeing if copied else there).pop(node, None)
        self.connections, self._seeing = there, seeing  # at once: other threads look at them
        self._nodes[node] = connection
        for mount in (self._mounts or {}).values():
            mount.have.pop(connection.name, None)  # of a copy that it had before

    def drop_node(self, node: int) -> None:
        """There is no node of that number any more."""
        self.connections = {number: one for number, one in self.connections.items() if number != node}
        self._seeing = {number: one for number, one in self._seeing.items() if number != node}
        self._nodes.pop(node, None)

    @property
    def copies(self) -> bool:
        """Whether any node has a copy, rather than the files themselves."""
        return bool(self.connections and self.root)

    def tree(self) -> Tree | None:
        """Return what a run is told: the version of the files, and where the kernel imports from."""
        if self._others:
            return None
        added = self.added
        mounts: dict[str, str] = {}
        if self._mounts and "" in self._mounts:
            mounts[""] = str(self._mounts[""].tree.root)
        if self.copies:
            mounts |= {name: str(directory) for name, directory in added.items()}
        copies = [CopiedTree(directory=directory, mount=name) for name, directory in mounts.items()]
        paths = _import_paths([self.root, *map(str, added.values())])
        paths += [path for directory in added.values() for path in _sources_in(directory)]
        last = [str(directory.parent) for directory in added.values()]  # for `import library` after `--add ../library`
        if added:
            paths.append(self.root)  # for the same, where there are copies: beside each other in the workspace
        paths = list(dict.fromkeys(paths))
        version = f"{self._version}:{zlib.crc32(repr((paths, mounts)).encode()):x}"
        reload = self.record.reload
        return Tree(version=version, reload=reload, import_paths=paths, copies=copies, last_import_paths=last)

    @property
    def added(self) -> dict[str, Path]:
        """The directories that were added to the project's, by name; of copies those that this computer has."""
        found = {}
        for name, source in self.record.added.items():
            host, _, directory = source.partition(":")
            if not self.copies or host == socket.gethostname():
                found[name] = Path(directory)
        return found

    def add(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Let ranks have another directory too, from the next run on: on their `sys.path`, and on nodes that have
        copies as a copy beside the project's; return its name there.

        Raises:
            UsageError: it is none, or not to be copied, or the name is taken, or is none.
            FilesError: a node that has no copies does not see it.
        """
        chosen = checked_directory(path)
        with self._lock:
            if self.copies:
                self._check_copied(chosen, name or chosen.name)
            else:
                self._check_seen(chosen, name)
            name = name or chosen.name
            if self.added.get(name) != chosen:
                self.record.add(name, chosen)
        return name

    def _check_copied(self, chosen: Path, name: str) -> None:
        check_mount(name)
        if self.added.get(name) == chosen:
            return
        mounts = self._opened()
        if "" in mounts:
            check_beside(chosen, mounts[""].tree.root)
        if name in self.record.added or (self.root and (Path(self.root) / name).exists()):
            raise UsageError(f"{name!r} is taken in the workspace: --as NAME chooses another name for {chosen}")

    def _check_seen(self, chosen: Path, name: str | None) -> None:
        if not self.root:
            raise UsageError("it was reserved without files: %mesh reserve --replace --files DIR")
        if name not in (None, chosen.name):
            raise UsageError(f"--as {name}: every node sees {chosen} itself, under its own name")
        check_beside(chosen, Path(self.root))
        blind = call(nodes_blind_to(list(self._seeing.values()), str(chosen)))
        if blind:
            raise FilesError(f"{', '.join(blind)} does not see {chosen}: put it where the project is", blind[0])

    def remove(self, path: str | os.PathLike[str]) -> SyncReport:
        """Undo `add`: ranks have that directory no longer. What they wrote into its copies stays.

        Args:
            path: the directory, or its name in the workspace.

        Raises:
            UsageError: it was not added.
            FilesError, NodeUnreachable: a node still has it.
        """
        chosen = Path(os.path.abspath(Path(path).expanduser()))
        with self._lock:
            name = self._name_of(chosen, os.fspath(path))
            self.record.remove(name)
            return self._end_copies(name) if self.copies else SyncReport()

    def _name_of(self, chosen: Path, word: str) -> str:
        """Return the name of a directory that some kernel added, or that a node still has."""
        sources = self.record.added
        if self.copies:
            sources = {**{name: source for name, source in self._sources().items() if name}, **sources}
        for name, source in sources.items():
            host, _, directory = source.partition(":")
            is_chosen = directory == str(chosen) and (not self.copies or host == socket.gethostname())
            if name == word or is_chosen:
                return name
        there = ", ".join(map(directory_of, sources.values()))
        raise UsageError(f"{word} was not added; added: {there or 'nothing'}")

    def _end_copies(self, name: str) -> SyncReport:
        began = time.monotonic()
        change = pb.TreeChange(mount=name, version=uuid.uuid4().hex, whole=True)
        sender = Sender(self.reservation_id, lambda: change, lambda _: iter(()))  # it has no content
        transfer = _send(sender, list(self.connections.values()), change, [], None)
        self._version = uuid.uuid4().hex
        _raise_failed(_failed(transfer, None))
        seconds = time.monotonic() - began
        return replace(report_of(change, {}, transfer), nodes=len(self.connections), seconds=seconds)

    def instead_of(self, directory: str) -> str:
        """Return whose files ("HOST:DIRECTORY") the ranks have instead of those of a directory here; "" when they have
        these."""
        with self._lock:
            roots = [mount.tree.root.resolve() for mount in self._opened().values()]
        place = Path(directory).resolve()
        return "" if any(place.is_relative_to(root) for root in roots) else self._origin

    def why_missing(self, message: str) -> str:
        """Return a line that says which file a message of a FileNotFoundError of a rank's names that sync left out; ""
        for none. Waits for nobody."""
        if not self.copies:
            return ""
        trees = {name: mount.tree for name, mount in dict(self._mounts or {}).items()}
        return why_missing(message, f"/workspaces/{self.reservation_id}/tree", trees)

    def sync(
        self,
        needed: Callable[[], Collection[str]] | None = None,
        *,
        overwrite: bool = False,
        progress: Progress = lambda *_: None,
    ) -> SyncReport:
        """Bring what changed to every node that has a copy; return when it is there.

        Args:
            needed: returns the names of the nodes that must get it; a failure of others is no error. All by default.
            overwrite: also files that ranks changed.
            progress: told how far it is.

        Raises:
            FilesError: a node could not take the files (its disk is full, …): it has them as they were.
            NodeUnreachable: a node does not answer.
        """
        if not self.copies:
            return SyncReport()
        with self._lock:
            began = time.monotonic()
            total = SyncReport()
            gone = self.differences().missing if overwrite else {}
            mounts = self._opened()
            for mount in list(mounts.values()):
                self._check_there(mount, mounts)
                total += self._sync_mount(mount, needed, overwrite, progress)
            there = self.connections
            behind = dict.fromkeys(one.name for mount in mounts.values() for one in mount.behind(there))
            missed = tuple(behind)
            return replace(
                total,
                seconds=time.monotonic() - began,
                nodes=len(total.given) or len(there) - len(missed),
                restored=_restored(gone, mounts, missed),
                missed=missed,
                local={name: mount.report() for name, mount in mounts.items()},
            )

    def pending(self, progress: Progress = lambda *_: None) -> Pending:
        """Return what a sync would do."""
        pending = Pending()
        if not self.copies:
            return pending
        coming = []
        with self._lock:
            for name, mount in self._opened().items():
                mount.refresh(progress)
                version, before = mount.sent
                if any(mount.have.get(connection.name) != version for connection in self.connections.values()):
                    pending.unknown, before = True, {}
                changed = [entry for path, entry in mount.entries.items() if before.get(path) != entry]
                coming.append(pb.TreeChange(mount=name, changed=changed))
                pending.files += [
                    (os.path.join(name, printable(entry.path)), entry.size_bytes)
                    for entry in changed
                    if entry.kind != pb.TreeEntry.KIND_DIRECTORY
                ]
                pending.removed += [os.path.join(name, printable(path)) for path in before if path not in mount.entries]
                pending.local[name] = mount.report()
        there = differences(self.status(coming))
        meant = {*(path for path, _ in pending.files), *pending.removed}
        kept = dict(there.changed)
        for path in meant & there.theirs.keys():
            kept[path] = tuple(dict.fromkeys((*kept.get(path, ()), *there.theirs[path])))
        pending.there = replace(there, changed=kept)
        return pending

    def differences(self) -> Differences:
        """Return where the copies are not what was put there. Every node looks at its disk."""
        return differences(self.status())

    def status(self, coming: Sequence[pb.TreeChange] = ()) -> dict[str, pb.WorkspaceReply | MonarchNbError]:
        """Return what every node with a copy has, by node, with what ranks changed and removed.

        Args:
            coming: what would be sent: nodes look also at names that only this has.
        """
        return call(
            self._ask_workspaces(pb.WorkspaceRequest(reservation_id=self.reservation_id, look=True, coming=coming))
        )

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            for mount in (self._mounts or {}).values():
                mount.tree.close()
            self._mounts = None

    # ---- one mount ----

    def _check_there(self, mount: _Mount, mounts: dict[str, _Mount]) -> None:
        """Sync a directory that was added and is gone no longer: else no cell would ever run again."""
        if mount.name and not mount.tree.root.is_dir():
            mount.tree.close()
            del mounts[mount.name]
            raise FilesError(
                f"{mount.tree.root} is gone: it is synced no longer, and its copies stay as {mount.name}; run again"
            )

    def _sync_mount(
        self, mount: _Mount, needed: Callable[[], Collection[str]] | None, overwrite: bool, progress: Progress
    ) -> SyncReport:
        restless, lost = set[bytes](), set[bytes]()
        for attempt in range(MAX_ATTEMPTS):
            before, base = mount.entries, mount.version
            changed, removed = mount.refresh(progress)
            if restless and attempt >= PATIENT_ATTEMPTS:
                mount.leave_out(restless, lost)
                changed, removed = difference(before, mount.entries)
            if overwrite:
                mount.version = uuid.uuid4().hex  # else a node has it already
            behind = mount.behind(self.connections)
            if not behind:
                return SyncReport()
            self._version = uuid.uuid4().hex  # before anything goes: an interrupt does not tell how far it came
            change = pb.TreeChange(mount=mount.name, source=self._source(mount), version=mount.version, base=base)
            if base and not overwrite and any(mount.have.get(connection.name) == base for connection in behind):
                # A node that has another base, as one that was away, asks for the whole list.
                change.changed.extend(changed)
                change.removed.extend(removed)
                new = _small(before, changed)
            else:
                change, new = self._whole(mount), []
                progress("nodes check what they have already", 0, 0)
            sender = Sender(
                self.reservation_id,
                lambda: self._whole(mount),
                mount.tree.content,
                overwrite=overwrite,
                progress=lambda sent: _say_sent(sent, progress),
            )
            try:
                transfer = _send(sender, behind, change, new, needed)
            except FileChanged as error:
                (lost if error.path in mount.restless else restless).add(error.path)
                continue
            if transfer.applied:
                mount.have |= dict.fromkeys(transfer.applied, mount.version)
                mount.sent = mount.version, mount.entries
                self._version = uuid.uuid4().hex  # also when others fail: those that have it are to see it
            _raise_failed(_failed(transfer, needed))
            return report_of(change, mount.entries, transfer)
        raise FilesError(
            f"the files of {mount.tree.root} change faster than they can be sent: pause the program that "
            "writes them, or name them in .meshignore"
        )

    def _whole(self, mount: _Mount) -> pb.TreeChange:
        return pb.TreeChange(
            mount=mount.name,
            source=self._source(mount),
            version=mount.version,
            whole=True,
            changed=mount.entries.values(),
        )

    def _source(self, mount: _Mount) -> str:
        return f"{socket.gethostname()}:{mount.tree.root}"

    # ---- what the nodes have ----

    def _opened(self) -> dict[str, _Mount]:
        """Return the trees that this computer has: the project's, found again from what the nodes say, and what was
        added by any kernel and not removed."""
        if self._mounts is None:
            self._mounts = self._opened_project()
            self._followed = -1
        if self._followed != (revision := self.record.revision):
            self._follow_record(self._mounts)
            self._followed = revision
        return self._mounts

    def _opened_project(self) -> dict[str, _Mount]:
        here = f"{socket.gethostname()}:{self.root}"
        self._origin = self._sources().get("", here)
        host, _, directory = self._origin.partition(":")
        if host != socket.gethostname() or not os.path.isdir(directory):
            return {}
        root = Path(directory)
        return {"": _Mount("", LocalTree(root, read_settings(root), mount=""))}

    def _follow_record(self, mounts: dict[str, _Mount]) -> None:
        added = self.added
        for name in [name for name, mount in mounts.items() if name and added.get(name) != mount.tree.root]:
            mounts.pop(name).tree.close()
        for name in [name for name, directory in added.items() if name not in mounts and directory.is_dir()]:
            settings = Settings(added[name], max_file_bytes=None)
            mounts[name] = _Mount(name, LocalTree(added[name], settings, mount=name))

    def _sources(self) -> dict[str, str]:
        sources: dict[str, str] = {}
        for reply in call(self._ask_workspaces(pb.WorkspaceRequest(reservation_id=self.reservation_id))).values():
            if isinstance(reply, pb.WorkspaceReply):
                sources |= {mount.mount: mount.source for mount in reply.mounts}
        return sources

    async def _ask_workspaces(self, request: pb.WorkspaceRequest) -> dict[str, pb.WorkspaceReply | MonarchNbError]:
        async def ask(connection: Connection) -> pb.WorkspaceReply | MonarchNbError:
            try:
                reply: pb.WorkspaceReply = await connection.unary("Workspace", request)
            except MonarchNbError as error:
                return error
            return reply

        connections = list(self.connections.values())
        replies = await asyncio.gather(*(ask(connection) for connection in connections))
        return {connection.name: reply for connection, reply in zip(connections, replies, strict=True)}


def _say_sent(sent: Transfer, progress: Progress) -> None:
    progress("sending files", sent.done_bytes, sent.total_bytes)
    if sent.done_bytes >= sent.total_bytes:
        progress("nodes put the files in place", 0, 0)


def _restored(gone: OnNodes, mounts: Mapping[str, _Mount], missed: Sequence[str]) -> OnNodes:
    """Return which of the files that were gone are back, and where."""
    if not gone:
        return {}
    here = {os.path.join(name, printable(path)) for name, mount in mounts.items() for path in mount.entries}
    back = {path: tuple(node for node in nodes if node not in missed) for path, nodes in gone.items()}
    return {path: nodes for path, nodes in back.items() if nodes and path in here}


def _sources_in(directory: Path) -> list[str]:
    """Return where to import from in a directory that was added: not from inside a package."""
    if (directory / "__init__.py").exists():
        return []
    return [str(path) for path in (directory / "src", directory) if path.is_dir()]


def _import_paths(roots: Iterable[str]) -> list[str]:
    """Return where this process imports from below any of `roots`."""
    inside = tuple(os.path.join(root, "") for root in roots if root)
    own = os.path.join(sys.prefix, "")  # an environment inside the project is no part of it
    paths = (os.path.abspath(path) for path in sys.path if path)  # `sys.path.append("src")` is relative
    return list(dict.fromkeys(p for p in paths if os.path.join(p, "").startswith(inside) and not p.startswith(own)))


def _small(before: Mapping[bytes, pb.TreeEntry], changed: Sequence[pb.TreeEntry]) -> list[pb.TreeEntry]:
    """Return the files with new content, which no node has, when they are small enough to travel with the change."""
    new = [
        entry
        for entry in changed
        if entry.size_bytes and (entry.path not in before or before[entry.path].hash != entry.hash)
    ]
    return new if sum(entry.size_bytes for entry in new) <= INLINE_BYTES else []


def _send(
    sender: Sender,
    connections: Sequence[Connection],
    change: pb.TreeChange,
    new: Sequence[pb.TreeEntry],
    needed: Callable[[], Collection[str]] | None,
) -> Transfer:
    """Bring a change to nodes. One that other nodes do not reach may have come back just now: then it answers us."""
    transfer = call(sender.send(connections, change, new))
    failed = _failed(transfer, needed)
    away = [connection for connection in connections if isinstance(failed.get(connection.name), NodeUnreachable)]
    return call(sender.send(away, change, new)) if away and len(connections) > 1 else transfer


def _failed(transfer: Transfer, needed: Callable[[], Collection[str]] | None) -> dict[str, MonarchNbError]:
    """Return why nodes that must get a change did not get it, by name."""
    if not transfer.failed or needed is None:
        return transfer.failed
    nodes = needed()
    return {name: error for name, error in transfer.failed.items() if name in nodes}


def _raise_failed(failed: dict[str, MonarchNbError]) -> None:
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        raise FilesError("\n".join(str(error) for error in failed.values()), next(iter(failed)))
