"""Removing directories: what counts is done at once, by a rename; the files go later, for a disk may need a minute."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import threading
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path

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
