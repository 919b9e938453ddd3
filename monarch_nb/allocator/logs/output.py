"""Reading what a run wrote: a rank's stdout, stderr and marks files as one ordered sequence, from any position.

The files are the truth; nothing is kept in memory. A flood is elided in what a follower is sent, never in the files; or
it is sent in parts, to who wants output whole, as fast as that reads them.

What is too old and too much is dropped (monarch_nb.allocator.logs.limit): it becomes a hole at the beginning of its
file, so that every position stays what it is, and RANK.dropped says how far the hole goes. Holes read as zeros.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from google.protobuf.message import DecodeError

from monarch_nb.allocator.logs.stored import StoredFiles, stored_outputs
from monarch_nb.allocator.state.runs import Mesh
from monarch_nb.ground.frames import FrameError, encode_frame, split_frames
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

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


FLOOD_BYTES = 64 << 10
"""More than this in one stream of one rank between two looks is a flood: its middle is not forwarded."""
PART_BYTES = 256 << 10
"""For who wants output whole, for a file or a pipe, so much (about) is read at a time."""
KEPT_BYTES = 12 << 10
"""Of a flood, this much of its beginning and of its end is forwarded."""
_COUNT_CHUNK_BYTES = 1 << 20
_MAX_DISPLAYS = 20


class RankFiles(StoredFiles):
    """What one rank wrote in one output, in order."""

    def end(self) -> run_pb2.Cursor:
        """Return the position after everything written so far. The marks come last: no text is ahead of its mark."""
        return run_pb2.Cursor(
            stdout_bytes=self.size_bytes("out"),
            stderr_bytes=self.size_bytes("err"),
            marks_bytes=self.size_bytes("marks"),
        )

    def past_dropped(self, since: run_pb2.Cursor) -> tuple[run_pb2.Cursor, bytes]:
        """Return where to go on after `since`, and the line to show for what is gone in between, if anything is."""
        dropped = self.dropped()
        cursor = run_pb2.Cursor(
            stdout_bytes=max(since.stdout_bytes, dropped.out),
            stderr_bytes=max(since.stderr_bytes, dropped.err),
            marks_bytes=max(since.marks_bytes, dropped.marks),
        )
        gone = cursor.stdout_bytes - since.stdout_bytes + cursor.stderr_bytes - since.stderr_bytes
        return cursor, dropped.line(gone) if gone else b""

    def read_since(self, cursor: run_pb2.Cursor) -> pb.RankOutput | None:
        """Return what was written after `cursor`, in order, a flood elided; None when there is nothing."""
        marks, end = self._news(cursor)
        if _at_or_before(end, cursor):
            return None
        flood = max(end.stdout_bytes - cursor.stdout_bytes, end.stderr_bytes - cursor.stderr_bytes) > FLOOD_BYTES
        if flood:
            marks = [mark for mark in marks if mark.HasField("display")][-_MAX_DISPLAYS:]
        output = pb.RankOutput(rank=self.rank, cursor=end)
        position = run_pb2.Cursor()
        position.CopyFrom(cursor)
        for mark in marks:
            if not flood:
                self._add_text(output, position, mark)
            if mark.HasField("display"):
                output.items.add(display=mark.display)
        self._add_text(output, position, end)
        return output

    def read_part(self, cursor: run_pb2.Cursor) -> tuple[pb.RankOutput | None, bool]:
        """Like `read_since`, but nothing is left out; return as well whether there is more."""
        gone = b""
        if self._may_be_dropped("out", cursor.stdout_bytes) or self._may_be_dropped("err", cursor.stderr_bytes):
            cursor, gone = self.past_dropped(cursor)
        marks, end = self._news(cursor, PART_BYTES)
        if _at_or_before(end, cursor):
            return None, False
        output = pb.RankOutput(rank=self.rank, cursor=cursor)
        if gone:
            output.items.add(stdout=gone + b"\n")
        position, room_bytes = output.cursor, PART_BYTES
        sizes_bytes = [len(encode_frame(mark.SerializeToString())) for mark in marks]
        position.marks_bytes = end.marks_bytes - sum(sizes_bytes)
        for mark, size_bytes in zip(marks, sizes_bytes, strict=True):
            room_bytes = self._add_part(output, position, mark, room_bytes)
            if position.stdout_bytes < mark.stdout_bytes or position.stderr_bytes < mark.stderr_bytes:
                return output, True
            position.marks_bytes += size_bytes
            if mark.HasField("display"):
                output.items.add(display=mark.display)
        self._add_part(output, position, end, room_bytes)
        if position.stdout_bytes < end.stdout_bytes or position.stderr_bytes < end.stderr_bytes:
            return output, True
        position.CopyFrom(end)
        return output, end.marks_bytes < self.size_bytes("marks")

    def _may_be_dropped(self, kind: str, start: int) -> bool:
        return self.size_bytes(kind) > start and self.read(kind, start, start + 1) == b"\0"

    def _news(self, cursor: run_pb2.Cursor, most_bytes: int = 0) -> tuple[list[run_pb2.Mark], run_pb2.Cursor]:
        """Return the marks after `cursor`, and the position after them and all text; or some of them, and the position
        of the last."""
        end = self.end()
        unread = end.marks_bytes - cursor.marks_bytes
        limit = min(unread, most_bytes or unread)
        while True:
            data = self.read("marks", cursor.marks_bytes, cursor.marks_bytes + limit)
            if data[:4] == bytes(4) and self.dropped().marks > cursor.marks_bytes:
                return self._news(self.past_dropped(cursor)[0], most_bytes)
            marks, marks_bytes = _parse_marks(data)
            if marks or limit == unread:
                break
            limit = min(unread, 4 * limit)  # a display is bigger, or the rest can not be read
        if limit < unread:
            end.stdout_bytes, end.stderr_bytes = cursor.stdout_bytes, cursor.stderr_bytes
        if marks:  # what a mark knows was written before it
            end.stdout_bytes = max(end.stdout_bytes, marks[-1].stdout_bytes)
            end.stderr_bytes = max(end.stderr_bytes, marks[-1].stderr_bytes)
        end.marks_bytes = cursor.marks_bytes + marks_bytes
        return marks, end

    def segments(
        self, since: run_pb2.Cursor, most_marks_bytes: int = 0
    ) -> tuple[list[tuple[str, int, int]], run_pb2.Cursor]:
        """Return the text after `since` as (kind, start, end) pieces in the order in which they were written, and the
        position after them.

        Args:
            most_marks_bytes: read no more (about) of the marks at once; what comes after them is not returned.
        """
        marks, end = self._news(since, most_marks_bytes)
        pieces: list[tuple[str, int, int]] = []
        stdout_bytes, stderr_bytes = since.stdout_bytes, since.stderr_bytes
        last = run_pb2.Mark(stdout_bytes=end.stdout_bytes, stderr_bytes=end.stderr_bytes)
        for mark in (*marks, last):
            if mark.stdout_bytes > stdout_bytes:
                pieces.append(("out", stdout_bytes, mark.stdout_bytes))
                stdout_bytes = mark.stdout_bytes
            if mark.stderr_bytes > stderr_bytes:
                pieces.append(("err", stderr_bytes, mark.stderr_bytes))
                stderr_bytes = mark.stderr_bytes
        return pieces, end

    def _add_part(
        self, output: pb.RankOutput, position: run_pb2.Cursor, until: run_pb2.Mark | run_pb2.Cursor, room_bytes: int
    ) -> int:
        """Add the text up to `until`, or as much as there is room for; return how much room is left."""
        before = position.stdout_bytes + position.stderr_bytes
        part = run_pb2.Cursor(stdout_bytes=min(until.stdout_bytes, position.stdout_bytes + room_bytes))
        room_left = room_bytes - max(0, part.stdout_bytes - position.stdout_bytes)
        part.stderr_bytes = min(until.stderr_bytes, position.stderr_bytes + room_left)
        self._add_text(output, position, part, PART_BYTES)
        return room_bytes + before - position.stdout_bytes - position.stderr_bytes

    def _add_text(
        self,
        output: pb.RankOutput,
        position: run_pb2.Cursor,
        until: run_pb2.Mark | run_pb2.Cursor,
        most_bytes: int = FLOOD_BYTES,
    ) -> None:
        if until.stdout_bytes > position.stdout_bytes:
            self._add_stream(output, "out", position.stdout_bytes, until.stdout_bytes, most_bytes)
            position.stdout_bytes = until.stdout_bytes
        if until.stderr_bytes > position.stderr_bytes:
            self._add_stream(output, "err", position.stderr_bytes, until.stderr_bytes, most_bytes)
            position.stderr_bytes = until.stderr_bytes

    def _add_stream(self, output: pb.RankOutput, kind: str, start: int, end: int, most_bytes: int) -> None:
        def add(text: bytes) -> None:
            if text and kind == "out":
                output.items.add(stdout=text)
            elif text:
                output.items.add(stderr=text)

        first = self.read(kind, start, min(end, start + most_bytes))
        if b"\0" in first and (left := self.dropped().before(kind)) > start:
            add(self.dropped().line(min(end, left) - start) + b"\n")
            if left < end:
                self._add_stream(output, kind, left, end, most_bytes)
            return
        if end - start <= most_bytes:
            add(first)
            return
        head = first[:KEPT_BYTES]
        head = head[: head.rfind(b"\n") + 1] or head
        tail = self.read(kind, end - KEPT_BYTES, end)
        tail = tail[tail.find(b"\n") + 1 :] if b"\n" in tail[:-1] else tail
        skipped_start, skipped_end = start + len(head), end - len(tail)
        add(head)
        output.items.add(
            elided=pb.Elided(
                stderr=kind == "err",
                lines=self._count_lines(kind, skipped_start, skipped_end),
                size_bytes=skipped_end - skipped_start,
            )
        )
        add(tail)

    def _count_lines(self, kind: str, start: int, end: int) -> int:
        lines = 0
        while start < end and (chunk := self.read(kind, start, min(end, start + _COUNT_CHUNK_BYTES))):
            lines += chunk.count(b"\n")
            start += len(chunk)
        return lines

    def tail_lines(self, kind: str, window_bytes: int = 16 << 10) -> list[str]:
        """Return the last lines of a stream."""
        end = self.size_bytes(kind)
        left = self.read(kind, max(0, end - window_bytes), end).rpartition(b"\0")[2]
        return left.decode(errors="replace").splitlines()


def _at_or_before(end: run_pb2.Cursor, cursor: run_pb2.Cursor) -> bool:
    return (
        end.stdout_bytes <= cursor.stdout_bytes
        and end.stderr_bytes <= cursor.stderr_bytes
        and end.marks_bytes <= cursor.marks_bytes
    )


def _parse_marks(data: bytes) -> tuple[list[run_pb2.Mark], int]:
    """Return the whole marks at the beginning of `data` and their size."""
    marks, size_bytes = [], 0
    try:
        for frame in split_frames(data):
            marks.append(run_pb2.Mark.FromString(frame))
            size_bytes += len(frame) + 4
    except (FrameError, DecodeError):  # a torn file (disk full): what follows can not be read
        return marks, size_bytes if marks else len(data)
    return marks, size_bytes


Written = tuple[int, RankFiles]
"""The number of a run, and what a rank wrote in it."""


class MeshLogs:
    """The outputs of a mesh as they are now.

    Args:
        runs: the directory of its outputs.
    """

    def __init__(self, mesh: Mesh, runs: Path) -> None:
        self._mesh, self._runs = mesh, runs
        self._stored = stored_outputs(runs)
        # Of the runs that share an output only a rank's newest can have written to it there.
        self._known = {(run.output, rank): run.number for run in mesh.runs.values() for rank in run.ranks}

    def ranks(self, wanted: Iterable[int]) -> list[int]:
        """Return the ranks that are wanted; all when none is named."""
        return [rank for rank in sorted(self._mesh.ranks) if not wanted or rank in wanted]

    def written(self, ranks: Iterable[int], number: int = 0, outputs: Iterable[int] | None = None) -> list[Written]:
        """Return what some ranks wrote, in one run or in all, in some outputs or in all: by run, then by rank."""
        ranks = list(ranks)
        looked_at = self._stored if outputs is None else outputs
        if number and number in self._stored:  # it is that run's own, and has all that this run wrote
            looked_at = [output for output in looked_at if output == number]
        files = (RankFiles(self._runs, output, rank) for output in looked_at for rank in ranks)
        written = ((one.run_number(self._known), one) for one in files)
        found = [one for one in written if number in (0, one[0])]
        return sorted(found, key=lambda one: (one[0], one[1].rank))
