"""How a change of a mount meets what lies there: what ranks changed, what is right already."""

from __future__ import annotations

import os
import stat

from monarch_nb.allocator.files.workspace.mounts import DIRECTORY, FILE, Mount
from monarch_nb.files.content import HASH_BYTES, PIECE_BYTES, new_hash
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry

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
