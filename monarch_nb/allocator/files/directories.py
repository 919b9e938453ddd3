"""Names below a directory, reached without following a link: what ranks put into their workspace leads nowhere else.

Directories are removed at once by a rename; their files go later, for a disk may need a minute.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

_MAX_OPEN = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CACHE = b"__pycache__"


class Directories:
    """File descriptors of the directories below `root`, each opened from its parent; a bounded number stays open.

    A directory that is replaced while this object lives may still be reached as it was: use it for one pass.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def open(self, path: bytes, *, make: bool = False) -> int:
        """Return a descriptor of `path` (b"" is the root); `make` makes what is missing below the root.

        It stays valid until many others were opened.

        Raises:
            OSError: it is missing, a file or a link; `leads_away` tells the last two from the rest.
        """
        if (found := self._open.get(path)) is not None:
            self._open.move_to_end(path)
            return found
        above, names = path, list[bytes]()
        while above and above not in self._open:
            above, _, name = above.rpartition(b"/")
            names.append(name)
        if (descriptor := self._open.get(above, -1)) < 0:
            descriptor = self._remember(b"", os.open(self._root, _DIRECTORY))
        for name in reversed(names):
            if make:
                try:
                    os.mkdir(name, 0o755, dir_fd=descriptor)
                except FileExistsError:
                    pass
            above = join(above, name)
            descriptor = self._remember(above, os.open(name, _DIRECTORY, dir_fd=descriptor))
        return descriptor

    def parent(self, path: bytes, *, make: bool = False) -> tuple[int, bytes]:
        """Return a descriptor of the directory that holds `path`, and the name in it."""
        above, _, name = path.rpartition(b"/")
        return self.open(above, make=make), name

    def facts(self, path: bytes) -> os.stat_result | None:
        """Return what lstat says of `path`; None when nothing is there, or no directory above it."""
        try:
            descriptor, name = self.parent(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or leads_away(error):
                return None
            raise
        return facts_at(descriptor, name)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> Directories:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remember(self, path: bytes, descriptor: int) -> int:
        self._open[path] = descriptor
        if len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor


def join(directory: bytes, name: bytes) -> bytes:
    """Return the path of `name` in `directory`, which is b"" for the root."""
    return directory + b"/" + name if directory else name


def leads_away(error: OSError) -> bool:
    """Return whether opening a directory failed because a file or a link is in its place."""
    return error.errno in (errno.ENOTDIR, errno.ELOOP)


def facts_at(descriptor: int, name: bytes) -> os.stat_result | None:
    """Return what lstat says of `name` in an open directory; None when it is not there."""
    try:
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None


def remove_directory(descriptor: int, name: bytes) -> bool:
    """Remove an empty directory, or one that holds nothing but compiled modules; return whether it is gone."""
    try:
        os.rmdir(name, dir_fd=descriptor)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        opened = os.open(name, _DIRECTORY, dir_fd=descriptor)
        try:
            if os.listdir(opened) != [_CACHE.decode()] or not remove_compiled(opened):
                return False
        finally:
            os.close(opened)
        os.rmdir(name, dir_fd=descriptor)
    return True


def holds_compiled(directory: bytes, names: Sequence[bytes]) -> bool:
    """Return whether a directory is a `__pycache__` of compiled modules only, given what is in it: NAME.pyc, and
    NAME.pyc.123 while Python writes it."""
    return os.path.basename(directory) == _CACHE and all(b".pyc" in name for name in names)


def remove_compiled(descriptor: int) -> bool:
    """Remove a `__pycache__` of compiled modules only; return whether it is gone."""
    facts = facts_at(descriptor, _CACHE)
    if facts is None or not stat.S_ISDIR(facts.st_mode):
        return facts is None
    opened = os.open(_CACHE, _DIRECTORY, dir_fd=descriptor)
    try:
        names = [os.fsencode(name) for name in os.listdir(opened)]
        if not holds_compiled(_CACHE, names):
            return False
        for name in names:
            os.unlink(name, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(_CACHE, dir_fd=descriptor)
    return True


def forget_compiled(directories: Directories, directory: bytes, modules: set[bytes]) -> None:
    """Remove what Python compiled of modules (names without ".py"): a .pyc knows its source's second and size only."""
    try:
        opened = directories.open(join(directory, _CACHE))
    except OSError as error:
        if isinstance(error, FileNotFoundError) or leads_away(error):
            return
        raise
    for text in os.listdir(opened):
        name = os.fsencode(text)
        if name.endswith(b".pyc") and name.split(b".", 1)[0] in modules:
            try:
                os.unlink(name, dir_fd=opened)
            except FileNotFoundError:
                pass


def remove_tree(path: Path) -> None:
    """Remove a directory and all below it; what can not be removed stays."""
    shutil.rmtree(path, ignore_errors=True)


_log = logging.getLogger(__name__)


class Removal:
    """Removes directories in a thread of its own. What is left when the allocator ends goes at the next start.

    Args:
        directory: on the same file system: there they wait for their end.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Go on with what the allocator before this one has left."""
        with contextlib.suppress(FileNotFoundError):
            for path in self._directory.iterdir():
                self._remove_later(path)

    def remove(self, path: Path) -> None:
        """Take a directory out of the way; nothing happens when there is none."""
        target = self._directory / uuid.uuid4().hex
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path.rename(target)
        except FileNotFoundError:
            return
        except OSError:  # a full disk has no room for another name
            target = path
        self._remove_later(target)

    def _remove_later(self, path: Path) -> None:
        self.later(functools.partial(shutil.rmtree, path, ignore_errors=True))

    def later(self, work: Callable[[], object]) -> None:
        """Do what takes long, one after the other; whoever is killed meanwhile has to do it again."""
        with self._lock:
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="monarch_nb-removal", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 -- it is for others, too
                _log.exception("files can not be removed; the next start tries again")

    def finish(self) -> None:
        """Wait until all is gone."""
        thread = self._thread
        if thread is not None:
            thread.join()
