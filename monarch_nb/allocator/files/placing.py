"""How a change of a mount meets what lies there, and is put in place: name after name, each at once by a rename."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.files.directories import Directories, facts_at, forget_compiled, leads_away, remove_directory
from monarch_nb.allocator.files.mounts import DIRECTORY, FILE, Mount
from monarch_nb.files.content import HASH_BYTES, PIECE_BYTES, new_hash
from monarch_nb.proto.files_pb2 import TreeApplied, TreeChange, TreeEntry

if TYPE_CHECKING:
    from monarch_nb.allocator.files.pending import Incoming

Stamp = tuple[int, int, int]
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a rank may have put a FIFO there


class Plan:
    """What is known of the places of an effective change.

    Attributes:
        skipped: paths where ranks were first: no content is needed for them.
        right: files and links that hold what they should: no more than mode and time are to be set.
        theirs: those of them that ranks wrote.
    """

    def __init__(self, mount: Mount, change: TreeChange, overwrite: bool) -> None:
        self.mount, self.change, self.overwrite = mount, change, overwrite
        self.skipped: set[bytes] = set()
        self.right: set[bytes] = set()
        self.theirs: set[bytes] = set()
        self._looked_into: dict[bytes, Stamp] = {}

    def look(self, new: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether `new` may replace what lies in its place. Reads the file where its facts do not tell.

        Notes a file that holds what `new` says as `right`.
        """
        ours = self.mount.ours(new.path)
        found = [entry for entry in ours if is_as_applied(entry, facts, directory, name)]
        if new.kind == FILE and len(found) == 1 and found[0].kind == FILE:
            is_right = found[0].hash == new.hash
        elif new.kind == FILE:
            is_right = facts.st_size == new.size_bytes and stat.S_ISREG(facts.st_mode) and agrees(directory, name, new)
        else:
            is_right = is_as_applied(new, facts, directory, name)
        if is_right:
            self.right.add(new.path)
            if not ours and not self.overwrite:
                self.theirs.add(new.path)
            self._looked_into[new.path] = _stamp(facts)
            return True
        return bool(found) or self.look_into(new.path, facts, directory, name) or self.overwrite

    def look_into(self, path: bytes, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether a file of another time still holds what was applied: touched, or its time was rounded."""
        if not stat.S_ISREG(facts.st_mode):
            return False
        files = [one for one in self.mount.ours(path) if one.kind == FILE and one.size_bytes == facts.st_size]
        if not any(agrees(directory, name, entry) for entry in files):
            return False
        self._looked_into[path] = _stamp(facts)
        return True

    def is_ours(self, path: bytes, facts: os.stat_result, directory: int, name: bytes) -> bool:
        """Return whether what lies at `path` is as it was applied, or as it was when looked into. Reads no content."""
        if self._looked_into.get(path) == _stamp(facts):
            return True
        return any(is_as_applied(entry, facts, directory, name) for entry in self.mount.ours(path))


def is_as_applied(entry: TreeEntry, facts: os.stat_result, directory: int, name: bytes) -> bool:
    """Return whether the facts of a name in an open directory are those of an entry."""
    if entry.kind == FILE:
        return (
            stat.S_ISREG(facts.st_mode) and facts.st_size == entry.size_bytes and facts.st_mtime_ns == entry.modified_ns
        )
    if entry.kind == DIRECTORY:
        return stat.S_ISDIR(facts.st_mode)
    return stat.S_ISLNK(facts.st_mode) and os.readlink(name, dir_fd=directory) == entry.target


def agrees(directory: int, name: bytes, entry: TreeEntry) -> bool:
    """Return whether a file in an open directory holds what `entry` says; its times and mode do not matter."""
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return False
    try:
        content = new_hash()
        for offset in range(0, entry.size_bytes, PIECE_BYTES):
            content.update(os.pread(descriptor, PIECE_BYTES, offset))
        return len(entry.hash) == HASH_BYTES and content.digest() == entry.hash
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


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
