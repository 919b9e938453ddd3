"""One change of a tree on its way: its content comes beside the workspace, and is put in place when all is there."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Literal

from monarch_nb.allocator.files.workspace.directories import Directories, remove_directory
from monarch_nb.allocator.files.workspace.incoming import Incoming
from monarch_nb.allocator.files.workspace.manifest import Manifest
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE, Mount
from monarch_nb.allocator.files.workspace.placing import Placing
from monarch_nb.allocator.files.workspace.plan import Plan
from monarch_nb.errors import FilesError, MonarchNbError
from monarch_nb.files.content import Piece, unpack
from monarch_nb.ground.room import lacks_room
from monarch_nb.proto.files_pb2 import ContentBatch, TreeApplied, TreeChange, TreeEntry


class Pending:
    """A change of a mount: `add` and `missing` as often as needed, then `commit`.

    Args:
        change: as Mount.effective made it.
        root: where the mount lies.
        incoming: what has come for it. manifest: what was put into the workspace.
        overwrite: also what ranks wrote or changed.
        node: how errors name this node.
    """

    def __init__(
        self,
        mount: Mount,
        change: TreeChange,
        *,
        root: Path,
        incoming: Incoming,
        manifest: Manifest,
        overwrite: bool,
        node: str,
    ) -> None:
        self.mount, self.change = mount, change
        self._root, self._incoming, self._manifest, self._node = root, incoming, manifest, node
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
