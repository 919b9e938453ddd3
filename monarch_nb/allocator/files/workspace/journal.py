"""What happened to a workspace, appended to a file: enough to know it again after a restart, killed or not.

As the database, it is safe against the end of this process, not against a power cut (which ends the ranks as well).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Literal

from monarch_nb.ground.frames import FrameError, FrameSplitter, encode_frame

Step = Literal["prepared", "committing", "done", "undone"]
SLACK_BYTES = 4 << 20
_HEADER = struct.Struct(">BQ?")
_STEPS: tuple[Step, ...] = ("prepared", "committing", "done", "undone")


@dataclass(frozen=True)
class Record:
    """A step of a change.

    Attributes:
        number: of the change; its staging directory's name.
        overwrite: whether it may replace what ranks wrote.
        body: prepared: the TreeChange; committing: a TreeApplied whose `kept` was left out at once; done: one whose
            `kept` is all that the mount keeps. `theirs` in both: what ranks had written just so.
    """

    step: Step
    number: int
    overwrite: bool = False
    body: bytes = b""


class Journal:
    """Records in a file, appended and rewritten on several threads.

    Attributes:
        lock: held over steps that a rewriting must not come between.
        size_bytes: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lock = RLock()
        self.size_bytes = 0
        self._rewritten_bytes = 0

    def read(self) -> Iterator[Record]:
        """Yield the records; what a killed allocator wrote half is cut off."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        self.size_bytes = 0
        try:
            for frame in FrameSplitter().feed(data):
                step, number, overwrite = _HEADER.unpack_from(frame)
                yield Record(_STEPS[step], number, overwrite, frame[_HEADER.size :])
                self.size_bytes += len(encode_frame(frame))
        except (FrameError, struct.error, IndexError):
            pass  # a torn end
        if self.size_bytes < len(data):
            os.truncate(self._path, self.size_bytes)

    def append(self, record: Record) -> None:
        """Write a record, or (OSError) nothing of it."""
        with self.lock:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self.size_bytes += _write(descriptor, _encode(record), self.size_bytes)
            except OSError:
                os.ftruncate(descriptor, self.size_bytes)
                raise
            finally:
                os.close(descriptor)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace everything by `records`."""
        with self.lock:
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(data := b"".join(_encode(record) for record in records))
            fresh.replace(self._path)
            self.size_bytes = self._rewritten_bytes = len(data)

    @property
    def is_long(self) -> bool:
        """Whether most of it may be of the past: `rewrite` it."""
        return self.size_bytes >= 2 * self._rewritten_bytes + SLACK_BYTES


def _encode(record: Record) -> bytes:
    return encode_frame(_HEADER.pack(_STEPS.index(record.step), record.number, record.overwrite) + record.body)


def _write(descriptor: int, data: bytes, offset: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
    return written
