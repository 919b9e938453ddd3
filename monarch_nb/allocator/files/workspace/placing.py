"""Putting a change in place: removals, then name after name, each at once by a rename."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from monarch_nb.allocator.files.workspace.directories import (
    Directories,
    facts_at,
    forget_compiled,
    leads_away,
    remove_directory,
)
from monarch_nb.allocator.files.workspace.incoming import Incoming
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE
from monarch_nb.allocator.files.workspace.plan import Plan
from monarch_nb.proto.files_pb2 import TreeApplied, TreeEntry


class Placing:
    """One pass over a plan. Only names change: the content is there.

    Attributes:
        kept: paths where ranks were first.
    """

    def __init__(self, plan: Plan, root: Path, incoming: Incoming) -> None:
        self._plan, self._root, self._incoming = plan, root, incoming
        self.kept: set[bytes] = set()
        self._reported: list[bytes] = []
        self._holding: set[bytes] = set()
        self._overwritten: list[bytes] = []
        self._removed = 0
        self._compiled: dict[bytes, set[bytes]] = {}

    def run(self) -> TreeApplied:
        """Do it.

        Raises:
            OSError: something could not be done; what came before it is done.
        """
        change = self._plan.change
        with Directories(self._root) as self._tree:
            for path in change.removed:
                self._remove(path)
        with Directories(self._root) as self._tree:
            for entry in change.changed:
                self._place(entry)
            for directory, modules in self._compiled.items():
                forget_compiled(self._tree, directory, modules)
        written = sum(entry.kind != DIRECTORY and entry.path not in self.kept for entry in change.changed)
        return TreeApplied(
            written=written, removed=self._removed, kept=sorted(self._reported), overwritten=sorted(self._overwritten)
        )

    def _remove(self, path: bytes) -> None:
        try:
            directory, name = self._tree.parent(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or leads_away(error):
                return  # went with what it lay in, or that is a rank's now
            raise
        if (facts := facts_at(directory, name)) is None:
            return
        if stat.S_ISDIR(facts.st_mode):
            is_ours = any(entry.kind == DIRECTORY for entry in self._plan.mount.ours(path))
            if not is_ours or not remove_directory(directory, name):
                self._leave(path, is_directory=True)
            return
        if not self._plan.is_ours(path, facts, directory, name):
            if not self._plan.overwrite:
                self._leave(path)
                return
            self._overwritten.append(path)
        os.unlink(name, dir_fd=directory)
        self._removed += 1
        self._note_module(path)

    def _place(self, entry: TreeEntry) -> None:
        path, plan = entry.path, self._plan
        if path in plan.skipped:
            self._keep(path)
            return
        try:
            directory, name = self._tree.parent(path, make=True)
        except OSError as error:
            if not leads_away(error):
                raise
            self._keep(path)
            return
        facts = facts_at(directory, name)
        if path in plan.right:
            if facts is None or not plan.is_ours(path, facts, directory, name):
                self._keep(path)  # it changed after it was found right
            elif entry.kind == FILE:
                os.chmod(name, entry.mode, dir_fd=directory)
                os.utime(name, ns=(entry.modified_ns, entry.modified_ns), dir_fd=directory, follow_symlinks=False)
        elif entry.kind == DIRECTORY and facts and stat.S_ISDIR(facts.st_mode):
            if stat.S_IMODE(facts.st_mode) != _directory_mode(entry):
                os.chmod(name, _directory_mode(entry), dir_fd=directory)
        elif facts and not self._make_way(entry, facts, directory, name):
            self._keep(path)
        elif entry.kind == DIRECTORY:
            os.mkdir(name, dir_fd=directory)
            os.chmod(name, _directory_mode(entry), dir_fd=directory)
        else:
            self._incoming.move(entry, directory, name)
            self._note_module(path)

    def _make_way(self, entry: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether `entry` may take the place of what is there, which then does not hinder it any more."""
        is_ours = self._plan.is_ours(entry.path, facts, directory, name)
        is_directory = stat.S_ISDIR(facts.st_mode)
        if is_ours and is_directory and remove_directory(directory, name):
            return True
        if is_directory or not is_ours:
            if not self._plan.overwrite:
                return False
            self._overwritten.append(entry.path)
        if is_directory:
            shutil.rmtree(name, dir_fd=directory)
        elif entry.kind == DIRECTORY:
            os.unlink(name, dir_fd=directory)
        return True

    def _leave(self, path: bytes, *, is_directory: bool = False) -> None:
        """What left the tree stays: from now on it is the ranks' alone. A directory goes without saying when something
        that is said lies in it."""
        if not is_directory or path not in self._holding:
            self._reported.append(path)
        self._holding.add(_above(path))

    def _keep(self, path: bytes) -> None:
        """Ranks were first. That is said once, and of a directory goes without saying for what lies in it."""
        self.kept.add(path)
        if path not in self._plan.mount.kept and _above(path) not in self.kept:
            self._reported.append(path)

    def _note_module(self, path: bytes) -> None:
        directory, _, name = path.rpartition(b"/")
        if name.endswith(b".py"):
            self._compiled.setdefault(directory, set()).add(name.removesuffix(b".py"))


def _directory_mode(entry: TreeEntry) -> int:
    """Return a directory's mode on a node, which must be able to change what is in it."""
    return entry.mode | 0o700


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]
