"""Putting a staged change in place: removals, then renames, all undone when one can not be done."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from monarch_nb.allocator.files.workspace.directories import (
    Directories,
    facts_at,
    forget_compiled,
    leads_away,
    remove_directory,
)
from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE
from monarch_nb.allocator.files.workspace.plan import Plan, directory_mode, is_as_applied
from monarch_nb.proto.files_pb2 import TreeApplied, TreeEntry

Undo = Callable[[Directories], None]


class Burst:
    """One pass over a plan. Short: only names change; content was staged before.

    Args:
        recovering: an allocator was killed in the middle: what is not staged any more is in place.

    Attributes:
        kept: paths where ranks were first.
        replaced: what was put aside: its name in the staging directory, and what it held.
    """

    def __init__(self, plan: Plan, root: Path, staging: Path, *, recovering: bool = False) -> None:
        self._plan, self._root, self._staging_path, self._recovering = plan, root, staging, recovering
        self.kept: set[bytes] = set()
        self.replaced: list[tuple[bytes, TreeEntry]] = []
        self._reported: list[bytes] = []
        self._holding: set[bytes] = set()
        self._overwritten: list[bytes] = []
        self._aside = 0
        self._removed = 0
        self._undo: list[tuple[bytes, Undo]] = []
        self._compiled: dict[bytes, set[bytes]] = {}

    def run(self) -> TreeApplied:
        """Do it.

        Raises:
            OSError: something could not be done; call `undo`.
        """
        self._root.mkdir(exist_ok=True)
        with Directories(self._staging_path) as self._staging:
            with Directories(self._root) as self._tree:
                for path in self._plan.change.removed:
                    self._remove(path)
            with Directories(self._root) as self._tree:
                waiting = self._plan.tops[::-1]
                while waiting:
                    waiting += reversed(self._place(waiting.pop()))
                for directory, modules in self._compiled.items():
                    forget_compiled(self._tree, directory, modules)
        written = sum(entry.kind != DIRECTORY and entry.path not in self.kept for entry in self._plan.change.changed)
        return TreeApplied(
            written=written, removed=self._removed, kept=sorted(self._reported), overwritten=sorted(self._overwritten)
        )

    def undo(self) -> None:
        """Take back what was done, last first. What resists is looked at again by the next sync."""
        with Directories(self._staging_path) as self._staging:
            for path, step in reversed(self._undo):
                try:
                    with Directories(self._root) as tree:
                        step(tree)
                except OSError:
                    self._plan.mount.unsure.add(path)

    def _remove(self, path: bytes) -> None:
        try:
            directory, name = self._tree.parent(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or leads_away(error):
                return  # went with what it lay in, or that is a rank's now
            raise
        facts, old, plan = facts_at(directory, name), self._plan.old(path), self._plan
        if facts is None:
            return
        if stat.S_ISDIR(facts.st_mode):
            if (path not in plan.again and (old is None or old.kind != DIRECTORY)) or not self._remove_directory(
                path, facts, directory, name
            ):
                self._leave(path, is_directory=True)
            return
        ours = plan.is_ours(path, facts, directory, name)
        if not ours and not plan.overwrite:
            self._leave(path)
            return
        if not ours:
            self._overwritten.append(path)
        self._set_aside(path, facts, directory, name, old if ours else None)
        self._removed += 1
        self._note_module(path)

    def _place(self, entry: TreeEntry) -> list[TreeEntry]:
        """Put one entry in place; return the entries in it that are still to be put there."""
        path, plan = entry.path, self._plan
        if path in plan.skipped:
            self._keep(path)
            return []
        try:
            directory, name = self._tree.parent(path, make=True)
        except OSError as error:
            if not leads_away(error):
                raise
            self._keep(path)
            return []
        facts = facts_at(directory, name)
        if entry.kind == DIRECTORY and facts and stat.S_ISDIR(facts.st_mode):
            self._set_mode(entry, facts, directory, name)
            return plan.below.get(path, [])
        if self._recovering and not self._is_staged(path):
            self._finish(entry, facts, directory, name)
            return plan.below.get(path, [])
        if path in plan.right:
            if facts is None or not plan.is_ours(path, facts, directory, name):
                self._keep(path)  # it changed after it was found right
            elif entry.kind == FILE:
                self._set_mode_and_time(entry, facts, directory, name)
            return []
        return self._put(entry, facts, directory, name)

    def _put(self, entry: TreeEntry, facts: os.stat_result | None, directory: int, name: bytes) -> list[TreeEntry]:
        """Rename a staged entry into place, what is there put aside."""
        path, plan = entry.path, self._plan
        undoes_itself = False
        if facts is not None:
            ours = plan.is_ours(path, facts, directory, name)
            if not ours and not plan.overwrite:
                self._keep(path)
                return []
            if not (ours and stat.S_ISDIR(facts.st_mode) and self._remove_directory(path, facts, directory, name)):
                if stat.S_ISDIR(facts.st_mode) and not plan.overwrite:
                    self._keep(path)
                    return []
                if not ours or stat.S_ISDIR(facts.st_mode):
                    self._overwritten.append(path)
                replaceable = entry.kind != DIRECTORY and not stat.S_ISDIR(facts.st_mode)
                undoes_itself = self._set_aside(
                    path, facts, directory, name, plan.old(path) if ours else None, leave=replaceable
                )
        if entry.kind == DIRECTORY and (path not in plan.below or path in plan.merging):
            os.mkdir(name, directory_mode(entry), dir_fd=directory)
            self._undo.append((path, lambda tree: _remove_made(tree, path)))
            return plan.below.get(path, [])
        staged_directory, staged_name = self._staging.parent(plan.staged_as[path])
        os.rename(staged_name, name, src_dir_fd=staged_directory, dst_dir_fd=directory)
        if not undoes_itself:
            self._undo.append((path, lambda tree: self._back_to_staging(tree, path)))
        self._note_module(path)
        return []

    def _finish(self, entry: TreeEntry, facts: os.stat_result | None, directory: int, name: bytes) -> None:
        """After a kill: what is not staged is in place, but for mode and time if only they were to change."""
        old = self._plan.old(entry.path)
        self._note_module(entry.path)
        if facts is None and entry.kind == DIRECTORY:
            os.mkdir(name, directory_mode(entry), dir_fd=directory)
        elif facts and old and old.kind == FILE and old.hashes == entry.hashes:
            if not is_as_applied(old, facts, directory, name):
                return  # done, or changed by a rank since
            self._set_mode_and_time(entry, facts, directory, name)

    def _set_aside(
        self,
        path: bytes,
        facts: os.stat_result,
        directory: int,
        name: bytes,
        old: TreeEntry | None,
        *,
        leave: bool = False,
    ) -> bool:
        """Move a name into the staging directory; return whether undoing that also undoes a rename over it.

        Args:
            leave: it is about to be renamed over: if possible it is there until then.
        """
        self._aside += 1
        aside, staging = b"old-%d" % self._aside, self._staging.open(b"")
        linked = False
        if leave:
            try:
                os.link(name, aside, src_dir_fd=directory, dst_dir_fd=staging, follow_symlinks=False)
                linked = True
            except OSError:
                pass  # a file system without hard links, or a name left by a killed allocator
        if not linked:
            os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=staging)
        self._undo.append((path, lambda tree: self._back(tree, path, aside)))
        if old is not None and old.kind == FILE and stat.S_ISREG(facts.st_mode):
            self.replaced.append((aside, old))
        return linked

    def _remove_directory(self, path: bytes, facts: os.stat_result, directory: int, name: bytes) -> bool:
        if not remove_directory(directory, name):
            return False
        mode = stat.S_IMODE(facts.st_mode)
        self._undo.append((path, lambda tree: _make(tree, path, mode)))
        return True

    def _set_mode(self, entry: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> None:
        mode, before = directory_mode(entry), stat.S_IMODE(facts.st_mode)
        if mode != before:
            os.chmod(name, mode, dir_fd=directory)
            self._undo.append((entry.path, lambda tree: _set_mode(tree, entry.path, before)))

    def _set_mode_and_time(self, entry: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> None:
        path, mode, modified_ns = entry.path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns
        self._undo.append((path, lambda tree: _set_mode(tree, path, mode, modified_ns)))
        os.chmod(name, entry.mode, dir_fd=directory)
        os.utime(name, ns=(entry.modified_ns, entry.modified_ns), dir_fd=directory, follow_symlinks=False)

    def _leave(self, path: bytes, *, is_directory: bool = False) -> None:
        """What left the tree stays: from now on it is the ranks' alone. A directory goes without saying when something
        that is said lies in it."""
        if not is_directory or path not in self._holding:
            self._reported.append(path)
        self._holding.add(path.rpartition(b"/")[0])

    def _keep(self, path: bytes) -> None:
        self.kept.add(path)
        self.kept.update(self._plan.all_below(path))
        if path not in self._plan.again:
            self._reported.append(path)

    def _note_module(self, path: bytes) -> None:
        directory, _, name = path.rpartition(b"/")
        if name.endswith(b".py"):
            self._compiled.setdefault(directory, set()).add(name.removesuffix(b".py"))

    def _is_staged(self, path: bytes) -> bool:
        return self._staging.facts(self._plan.staged_as[path]) is not None

    def _back(self, tree: Directories, path: bytes, aside: bytes) -> None:
        directory, name = tree.parent(path)
        os.rename(aside, name, src_dir_fd=self._staging.open(b""), dst_dir_fd=directory)

    def _back_to_staging(self, tree: Directories, path: bytes) -> None:
        directory, name = tree.parent(path)
        staged_directory, staged_name = self._staging.parent(self._plan.staged_as[path])
        os.rename(name, staged_name, src_dir_fd=directory, dst_dir_fd=staged_directory)


def _make(tree: Directories, path: bytes, mode: int) -> None:
    directory, name = tree.parent(path)
    os.mkdir(name, mode, dir_fd=directory)


def _remove_made(tree: Directories, path: bytes) -> None:
    directory, name = tree.parent(path)
    os.rmdir(name, dir_fd=directory)


def _set_mode(tree: Directories, path: bytes, mode: int, modified_ns: int | None = None) -> None:
    directory, name = tree.parent(path)
    os.chmod(name, mode, dir_fd=directory)
    if modified_ns is not None:
        os.utime(name, ns=(modified_ns, modified_ns), dir_fd=directory, follow_symlinks=False)
