"""A tree of files on this computer: what is in it, what is left out, and what changed since one asked last."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from monarch_nb.client.files.ignore import rule_files_above, rules_of
from monarch_nb.client.files.project import Settings
from monarch_nb.client.files.scan import FileChanged, Progress, Scan, open_file, pieces_of
from monarch_nb.client.files.watcher import NotWatchable, Watcher, why_not_watchable
from monarch_nb.errors import UsageError
from monarch_nb.files.content import PIECE_BYTES, Piece, new_hash
from monarch_nb.files.tree import printable, same
from monarch_nb.proto.files_pb2 import TreeEntry
from monarch_nb.sizes import size

__all__ = ["FileChanged", "LocalTree", "Refreshed", "Report"]

_MAX_ROUNDS = 5
"""So often new directories may appear while one begins to watch new directories."""
_MAX_FAILURES = 3
_NAMED_BY_US = {"defaults": "as notebooks and caches", "virtual environments": "a virtual environment"}


@dataclass(frozen=True)
class Refreshed:
    """What changed since the last call, and what is there now; `entries` is the caller's to keep."""

    changed: list[TreeEntry]
    removed: list[bytes]
    entries: Mapping[bytes, TreeEntry]


@dataclass(frozen=True)
class Report:
    """What is not synced, and why.

    Attributes:
        too_large: files over the limit, `max_file_bytes`: (path, bytes).
        refused: names that can not be synced: (path, why).
        notice: what one should know about how changes are found; "" for nothing.
    """

    too_large: list[tuple[bytes, int]]
    refused: list[tuple[bytes, str]]
    notice: str
    _root: bytes = field(repr=False)
    _ignored: Mapping[bytes, str] = field(repr=False)
    max_file_bytes: int | None = None

    def ignored(self) -> dict[str, tuple[int, int]]:
        """Count what is ignored: by what ignores it, (files, bytes). Walks ignored directories when first asked."""
        return self._counted

    @cached_property
    def _counted(self) -> dict[str, tuple[int, int]]:
        counted: dict[str, tuple[int, int]] = {}
        for path, origin in self._ignored.items():
            files, size_bytes = _weigh(os.path.join(self._root, path))
            before = counted.get(origin, (0, 0))
            counted[origin] = (before[0] + files, before[1] + size_bytes)
        return counted


class LocalTree:
    """A tree of files on this computer. Blocking; safe to use from several threads.

    Writes through a memory map, or through a hard link from outside of the tree, make no events: they are seen when
    something else names the file.

    Args:
        root: its directory.
        settings: how it is synced.
        mount: the name that it has in a workspace; "" for the notebook's files.
    """

    def __init__(self, root: Path, settings: Settings, *, mount: str = "") -> None:
        self.root, self.settings, self.mount = root, settings, mount
        self._lock = threading.RLock()
        self._scan: Scan | None = None
        self._entries: dict[bytes, TreeEntry] = {}
        """As of the last refresh; never changed, only replaced."""
        self._suspects: set[bytes] = set()
        self._outside: tuple[object, ...] = ()
        """What the file system said about what lies outside of the tree, and about its root."""
        self._watcher: Watcher | None = None
        self._watched: set[bytes] = set()
        self._failures = 0
        self._not_watched = ""
        self._report: Report | None = None

    # ---- for callers ----

    def refresh(self, progress: Progress | None = None) -> Refreshed:
        """Return what changed since the last call. What was saved before this call is never missed.

        Raises:
            UsageError: the tree's directory is gone.
        """
        with self._lock:
            try:
                scan = self._looked(progress)
            except BaseException:
                self._stop_watching()  # what it told is lost: look at everything next time
                raise
            if not scan.touched:
                return Refreshed([], [], self._entries)
            before, self._entries = self._entries, dict(scan.entries)
            changed, removed = [], []
            for path in sorted(scan.touched):
                entry, old = self._entries.get(path), before.get(path)
                if entry is None:
                    removed += [path] if old is not None else []
                elif old is None or not same(old, entry):
                    changed.append(entry)
            scan.touched.clear()
            return Refreshed(changed, removed, self._entries)

    def content(self, entries: Iterable[TreeEntry]) -> Iterator[Piece]:
        """Yield the content of files, each in pieces from its beginning, read as it is now.

        Raises:
            FileChanged: a file does not hold what its entry says; after a refresh one knows what it holds.
        """
        for entry in entries:
            try:
                descriptor = open_file(os.fsencode(self.root), entry.path)
            except OSError as error:
                raise self._changed(entry.path) from error
            try:
                content, offset = new_hash(), 0
                for data in pieces_of(descriptor, entry.size_bytes):
                    content.update(data)
                    if offset + PIECE_BYTES >= entry.size_bytes and content.digest() != entry.hash:
                        raise self._changed(entry.path)
                    yield Piece(entry.path, offset, data)
                    offset += PIECE_BYTES
            except OSError as error:
                raise self._changed(entry.path) from error
            finally:
                os.close(descriptor)

    @property
    def report(self) -> Report:
        """What is not synced, as of the last refresh."""
        with self._lock:
            if self._report is None:
                scan = self._scan
                notice = (
                    f"looking at all files of {self.root} each time: {self._not_watched}" if self._not_watched else ""
                )
                self._report = Report(
                    sorted(scan.too_large.items()) if scan else [],
                    sorted(scan.refused.items()) if scan else [],
                    notice,
                    os.fsencode(self.root),
                    dict(scan.ignored) if scan else {},
                    self.settings.max_file_bytes,
                )
            return self._report

    def why_left_out(self, path: bytes) -> str:
        """Return why a file is not synced, as far as is known; "" when it is, or is not there. Waits for nobody: it
        looks up names while others may walk the tree."""
        if (scan := self._scan) is None:
            return ""
        parts = path.split(b"/")
        for named in (b"/".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if (size_bytes := scan.too_large.get(named)) is not None:
                return (
                    f"it has {size(size_bytes)}; max-file-size in pyproject.toml's [tool.monarch_nb] raises the limit"
                )
            if why := scan.refused.get(named):
                return why
            if origin := scan.ignored.get(named):
                shown = printable(named) + ("/" if os.path.isdir(os.path.join(scan.root, named)) else "")
                which = _NAMED_BY_US.get(origin, f"which {origin} names")
                return f"sync leaves {shown} out, {which}; the line !/{shown} in .meshignore sends it"
        return ""

    def close(self) -> None:
        """Stop watching. A later refresh looks at everything again."""
        with self._lock:
            self._stop_watching()

    # ---- looking ----

    def _looked(self, progress: Progress | None) -> Scan:
        """Return what is known, after looking at all that may have changed."""
        outside, changes = self._look_outside(), None
        scan = self._scan
        if scan is None or outside != self._outside:
            scan = self._scan = self._begun(scan)
            self._outside = outside
        elif self._watcher is not None:
            changes = self._watcher.changes()
            self._failures = 0 if changes is not None else self._failures + 1
            if self._failures == _MAX_FAILURES:
                self._not_watched = "the system reports too many changes at once, none, or names that are no UTF-8"
        if changes is not None:
            changes |= self._suspects
            if not changes:
                return scan
        self._report = None
        self._suspects = set()
        self._look(scan, changes)
        scan.read(progress)
        self._suspects |= scan.suspects
        scan.suspects.clear()
        return scan

    def _look(self, scan: Scan, changes: set[bytes] | None) -> None:
        """Look at what changed. What is new is first watched, then looked at, so that nothing is missed in between."""
        if changes is None:
            self._stop_watching()
        self._look_at(scan, changes)
        if self._not_watched:
            self._stop_watching()
            return
        for _ in range(_MAX_ROUNDS):
            unwatched = scan.directories.keys() - self._watched
            if not unwatched:
                return
            try:
                watcher = Watcher(scan.root, scan.directories)
            except FileNotFoundError:
                scan.look_everywhere()
                continue
            except NotWatchable as error:
                self._not_watched = str(error)
                break
            late = self._watcher.changes() if self._watcher is not None else set()
            self._stop_watching()
            self._watcher, self._watched = watcher, set(scan.directories)
            self._look_at(scan, late)
            scan.look_below(unwatched)
        self._stop_watching()

    def _look_at(self, scan: Scan, changes: set[bytes] | None) -> None:
        if changes is None:
            scan.look_everywhere()
        elif sys.platform == "darwin" and changes:
            # A name in other case is still found there: only a listing tells which it is.
            scan.look_everywhere(distrusted=changes)
        else:
            scan.look_at(changes)
        self._watched -= scan.replaced
        scan.replaced.clear()

    def _look_outside(self) -> tuple[object, ...]:
        try:
            status = os.stat(self.root)
        except OSError as error:
            raise UsageError(f"the synced directory {self.root} is gone ({error.strerror})") from error
        return status.st_dev, status.st_ino, *((file, _facts(file)) for file in rule_files_above(self.root))

    def _begun(self, scan: Scan | None) -> Scan:
        root = os.path.realpath(os.fsencode(self.root))
        rules = rules_of(self.root, self.settings.ignore)
        self._stop_watching()
        self._not_watched = why_not_watchable(os.fsdecode(root))
        self._failures = 0
        if scan is None:
            return Scan(root, rules, self.settings.max_file_bytes)
        scan.root, scan.rules = root, rules
        return scan

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._watcher, self._watched = None, set()

    # ---- content ----

    def _changed(self, path: bytes) -> FileChanged:
        with self._lock:
            self._suspects.add(path)
        return FileChanged(path)


def _facts(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _weigh(path: bytes) -> tuple[int, int]:
    """Count the files at and below a path, and their bytes."""
    files = size_bytes = 0
    waiting = [path]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        files, size_bytes = files + 1, size_bytes + entry.stat(follow_symlinks=False).st_size
        except NotADirectoryError:
            files, size_bytes = files + 1, size_bytes + os.lstat(path).st_size
        except OSError:
            continue  # unreadable, or gone: it has no weight
    return files, size_bytes


_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def why_missing(message: str, workspace: str, trees: Mapping[str, LocalTree]) -> str:
    """Return a line that says which file a message of a FileNotFoundError names that sync left out; "" for none.

    Args:
        workspace: how the directories of copies end, on any node.
        trees: what is synced, by its name in the workspace.
    """
    for single, double in _QUOTED.findall(message):
        for tree, path in _places(single or double, workspace, trees):
            why = tree.why_left_out(os.fsencode(path))
            if why and os.path.lexists(tree.root / path):
                return f"{printable(os.fsencode(path))} is not on the nodes: {why}"
    return ""


def _places(name: str, workspace: str, trees: Mapping[str, LocalTree]) -> Iterator[tuple[LocalTree, str]]:
    """Yield where a file would be here, by a name that it has here or there."""
    _, _, below = name.partition(f"{workspace}{os.sep}")
    mount, _, rest = below.partition(os.sep)
    if below and mount in trees:
        yield trees[mount], rest
    elif below and "" in trees:
        yield trees[""], below
    else:
        here = Path(os.path.abspath(name))  # ranks begin where the notebook is
        for tree in trees.values():
            if here.is_relative_to(tree.root):
                yield tree, str(here.relative_to(tree.root))
