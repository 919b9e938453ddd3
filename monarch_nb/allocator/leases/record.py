"""The record of a node: who reserved what, who was let in, what ended and how, which runs were whose. A JSON line each.

A thread writes it, so that no disk holds the allocator up. What can not be written is left out and counted, and the
next line that can be written says how many are missing. Whoever renames the file gets a new one in its place.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monarch_nb.allocator.state.ledger import Ledger, stamp
from monarch_nb.config import cadence, patience

_log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Of lines that are still to be written: what comes then is left out."""
LARGEST_BYTES = 64 << 20
"""A file that nobody rotates is renamed at this size, in the place of the one before: so both hold 128 MB at most."""
OLD = ".1"
GATHER_S = cadence(0.1)
"""Lines of so long a time are written at once: runs that follow each other fast do not wake the thread each."""
RUN = "run"
_RUN = f'"event": "{RUN}"'.encode()
"""Nearly all lines are of runs, and say nothing of hours: they are not even parsed."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Record:
    """Writes one, and knows what it says of hours.

    Args:
        path: of the file; None: nothing is written.

    Attributes:
        ledger: what it says of hours.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.ledger = path, Ledger()
        self._lines: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._left_out = 0
        """Lines that there was no room for in the queue; counted by who notes, never by the thread."""
        self._failed = self._told = 0
        """Lines that could not be written, and how many the record says are missing; counted by the thread."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def read(self) -> None:
        """Take in what was written before, also into files that were rotated since. It takes a while: call it from a
        thread, before the first `note`."""
        for event in _events(self.path) if self.path else ():
            self.ledger.note(event)

    def note(self, event: str, **facts: Any) -> None:
        """Write a line; texts and lists that are empty are left out of it."""
        said = {key: fact for key, fact in facts.items() if fact not in ("", [])}
        told = {"time": stamp(time.time()), "event": event, **said}
        self.ledger.note(told)
        if self.path is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="monarch_nb-record", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(json.dumps(told).encode() + b"\n")
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Write what is still to be written, if the disk lets us."""
        if self._thread is None:
            return
        self._closing.set()
        with contextlib.suppress(queue.Full):  # then the thread is held up by its disk
            self._lines.put_nowait(None)
        self._thread.join(patience(2.0))
        self._thread = None
        self._closing.clear()

    def _write_all(self) -> None:
        assert self.path is not None
        file, is_last = _File(self.path), False
        while not is_last:
            lines = [self._lines.get()]
            self._closing.wait(GATHER_S)
            with contextlib.suppress(queue.Empty):
                while True:
                    lines.append(self._lines.get_nowait())
            is_last = None in lines
            if missing := self._left_out + self._failed - self._told:
                told = {"time": stamp(time.time()), "event": "lines are missing", "lines": missing}
                self._told += missing if not file.write(json.dumps(told).encode() + b"\n") else 0
            self._failed += file.write(b"".join(filter(None, lines)))
        file.close()


class _File:
    """A file to which lines are appended, wherever it has gone meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path, self._handle, self._is_torn, self._has_failed = path, -1, False, False

    def write(self, lines: bytes) -> int:
        """Append lines; return how many of them could not be written."""
        written, mends = 0, self._is_torn
        content = b"\n" + lines if mends else lines
        try:
            self._open()
            written = os.write(self._handle, content)
            if written < len(content):
                raise OSError(f"only {written} of {len(content)} bytes could be written")
        except OSError as error:
            if not self._has_failed:
                why = error.strerror or str(error)
                _log.warning("the record %s can not be written: %s; what happens is left out", self._path, why)
            self._has_failed = True
            if not written:
                return lines.count(b"\n")
            self._is_torn = not content[:written].endswith(b"\n")
            return content[written:].count(b"\n")
        self._has_failed = self._is_torn = False
        return 0

    def _open(self) -> None:
        """Make sure that what is open is the file of that name, and that it does not grow for ever."""
        if self._handle >= 0 and not self._is_there():
            self.close()
        if self._handle < 0:
            self._open_anew()
        if os.fstat(self._handle).st_size > LARGEST_BYTES:
            self._path.replace(self._path.with_name(self._path.name + OLD))
            self.close()
            self._open_anew()

    def _open_anew(self) -> None:
        self._handle = os.open(self._path, _FLAGS, 0o600)
        self._is_torn = False
        facts = os.fstat(self._handle)
        if not stat.S_ISREG(facts.st_mode):
            self.close()
            raise OSError("it is no file")
        if facts.st_uid == os.getuid() and stat.S_IMODE(facts.st_mode) & 0o077:
            os.fchmod(self._handle, 0o600)

    def _is_there(self) -> bool:
        own = os.fstat(self._handle)
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Return the lines of a record, oldest first; what is none is passed over."""
    try:
        rotated = [*path.parent.glob(f"{path.name}[.-]*"), *path.parent.glob(f"{path.stem}-*{path.suffix}*")]
        files = sorted({*rotated, path}, key=lambda file: file.stat().st_mtime if file.exists() else 0.0)
    except OSError:
        files = [path]
    for file in files:
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                for line in lines:
                    if _RUN not in line and (event := _parsed(line)) is not None:
                        yield event
        except (OSError, EOFError) as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("the record %s can not be read whole: %s", file, error)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
