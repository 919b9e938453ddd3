"""The runs that a node has accepted and not yet written to its database."""

from __future__ import annotations

import contextlib
import os

from monarch_nb.config import NodePaths
from monarch_nb.ground.frames import encode_frame, split_frames
from monarch_nb.proto import state_pb2


class AcceptedRuns:
    """A file to which each run is added before its client is told that it was accepted: neither needs to live for the
    run to be known. That takes some 5 µs; the database takes several runs at once, later, and then the file is empty.

    As with the database nothing is forced to the disk: a machine that loses its power loses the ranks as well.
    """

    def __init__(self, paths: NodePaths) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(paths.accepted_runs, flags, 0o600)
        self._size_bytes = os.fstat(self._file).st_size

    def add(self, record: state_pb2.RunRecord) -> None:
        """Add a run. On a full disk it is not written, nor half of it: then the ranks and the client know it."""
        frame = encode_frame(record.SerializeToString())
        with contextlib.suppress(OSError):
            if os.write(self._file, frame) == len(frame):
                self._size_bytes += len(frame)
            else:
                os.ftruncate(self._file, self._size_bytes)

    def read(self) -> list[state_pb2.RunRecord]:
        """Return what the allocator before this one has accepted and not written to the database. One that was cut off,
        because that was killed, was not accepted."""
        frames = list(split_frames(os.pread(self._file, self._size_bytes, 0)))
        self._size_bytes = sum(len(encode_frame(frame)) for frame in frames)
        os.ftruncate(self._file, self._size_bytes)
        return [state_pb2.RunRecord.FromString(frame) for frame in frames]

    def clear(self) -> None:
        """All of them are in the database."""
        if self._size_bytes:
            os.ftruncate(self._file, 0)
            self._size_bytes = 0

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)
