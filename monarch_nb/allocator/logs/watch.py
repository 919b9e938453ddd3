"""Directory change notices from the kernel (inotify), one shot each, for an asyncio loop.

One shot matters: ranks that print a hundred thousand lines a second cause one notice until it is armed again.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

_IN_MODIFY = 0x2
_IN_CREATE = 0x100
_IN_ONESHOT = 0x80000000
_IN_IGNORED = 0x8000
_EVENT = struct.Struct("iIII")


class DirectoryWatch:
    """Calls back once for the first change in each armed directory; several may wait for the same one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(
                ctypes.get_errno(),
                "inotify can not be used: if this user's processes have used up its instances, "
                "`sysctl fs.inotify.max_user_instances=1024` as root allows more",
            )
        self._callbacks: dict[int, dict[Callable[[], None], None]] = {}
        self._loop = loop
        loop.add_reader(self._fd, self._on_readable)

    def arm(self, directory: Path, callback: Callable[[], None]) -> bool:
        """Call `callback` at the next change in `directory`; False when it can not be watched (it is gone)."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MODIFY | _IN_CREATE | _IN_ONESHOT)
        if watch < 0:
            return False
        self._callbacks.setdefault(watch, {})[callback] = None
        return True

    def disarm(self, callback: Callable[[], None]) -> None:
        """Do not call `callback` any more; the kernel has a limited number of watches."""
        for watch, callbacks in list(self._callbacks.items()):
            if callback in callbacks:
                del callbacks[callback]
                if not callbacks:
                    del self._callbacks[watch]
                    self._libc.inotify_rm_watch(self._fd, watch)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, 64 << 10)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            watch, mask, _, name_bytes = _EVENT.unpack_from(data, position)
            position += _EVENT.size + name_bytes
            if not mask & _IN_IGNORED:
                for callback in self._callbacks.pop(watch, ()):
                    callback()

    def close(self) -> None:
        """Stop watching."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
