"""Which names changed: told by the file system, and proven complete by a cookie.

Watchman's idea: write a file into a directory that is watched too, and wait until its event arrives; events come in
order, so all that was saved before has arrived by then.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any

from monarch_nb.config import cadence, patience
from monarch_nb.ground.directories import OwnDirectory

_PREFIX = "monarch-nb-watch-"
_USUAL_S = cadence(1e-4)
"""An event takes about as long. watchfiles looks again and again, here without the pauses (2 × 1 ms at least) that it
can make in between: so let it find something at once."""
_MAX_CHANGES = 4096
"""More names in one look may mean that the kernel's queue (16,384 events) ran over, which watchfiles does not tell."""
_LOCAL = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"),
        *("tmpfs", "ramfs", "overlay", "aufs", "vfat", "exfat"),
    )
)
"""File systems that nobody changes but through this computer."""


class NotWatchable(Exception):
    """This tree can not be watched. The first argument says why, for people."""


class Watcher:
    """Watches directories.

    Args:
        root: absolute, without links.
        directories: below it; b"" is the root itself.

    Raises:
        NotWatchable: the system watches no more, or knows no such names.
        FileNotFoundError: a directory is gone.
    """

    def __init__(self, root: bytes, directories: Iterable[bytes]) -> None:
        from watchfiles._rust_notify import RustNotify

        self.directories = frozenset(directories)
        self._root = root
        # Events name directories without links.
        self._own = OwnDirectory(_PREFIX, os.path.realpath(tempfile.gettempdir()))
        self._cookies = self._own.path
        self._numbers = count()
        self._notify: Any = None
        try:
            paths = [
                os.path.join(root, directory).decode() if directory else root.decode() for directory in directories
            ]
            self._notify = RustNotify([self._cookies, *paths], False, False, 0, False, False)
        except UnicodeDecodeError as error:
            self.close()
            raise NotWatchable(f"{os.fsdecode(error.object)!r} is no UTF-8") from error
        except (FileNotFoundError, PermissionError) as error:
            self.close()
            raise FileNotFoundError(str(error)) from error
        except OSError as error:
            self.close()
            is_limit = sys.platform == "linux" and "watch" in str(error)
            limit = "raise fs.inotify.max_user_watches" if is_limit else str(error)
            raise NotWatchable(f"the system can watch no more directories ({limit})") from error
        except BaseException:
            self.close()
            raise

    def changes(self) -> set[bytes] | None:
        """Return the paths of all that changed before this call, since the last one; None when that is not known.

        After None this watcher is of no use any more.
        """
        from watchfiles._rust_notify import WatchfilesRustInternalError

        cookie = os.path.join(self._cookies, str(next(self._numbers)))
        try:
            os.close(os.open(cookie, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            return None  # somebody tidied up
        found: set[str] = set()
        deadline = time.monotonic() + patience(2.0)
        time.sleep(_USUAL_S)
        try:
            while cookie not in found:
                remaining_ms = int((deadline - time.monotonic()) * 1000)
                batch = self._notify.watch(0, 0, remaining_ms, None) if remaining_ms > 0 else "timeout"
                if batch == "signal":
                    raise KeyboardInterrupt  # which watchfiles swallowed
                if batch == "timeout":
                    return None
                found.update(change[1] for change in batch)
        except WatchfilesRustInternalError:
            return None  # a name that is not UTF-8, or an error of the system's
        finally:
            with suppress(OSError):
                os.unlink(cookie)
        if len(found) > _MAX_CHANGES:
            return None
        prefix = os.path.join(self._root, b"")
        changed = {os.fsencode(path) for path in found if not path.startswith(self._cookies)}
        return {b"" if path == self._root else path.removeprefix(prefix) for path in changed}

    def close(self) -> None:
        """Stop watching."""
        if self._notify is not None:
            self._notify.close()
        self._own.remove()


def why_not_watchable(directory: str) -> str:
    """Return why the file system of a directory, or one mounted below it, may not tell of changes; "" when all do."""
    if sys.platform == "darwin":
        return ""
    points = _mount_points()
    above = max((point for point in points if _is_below(directory, point)), key=len, default="")
    for point in (above, *(point for point in points if _is_below(point, directory))):
        kind = points.get(point, "unknown")
        if kind not in _LOCAL:
            return f"the file system {kind} of {point or directory} may not tell of changes"
    return ""


def _mount_points() -> dict[str, str]:
    """Return the types of file systems by mount point."""
    points = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields.split()[4])
                points[point] = rest.split()[0]
    except OSError:
        return {}
    return points


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
