"""Reading what a run wrote: a rank's stdout, stderr and marks files as one ordered sequence, from any position.

The files are the truth; nothing is kept in memory. A flood is elided in what a follower is sent, never in the files.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from monarch_nb.config import run_file
from monarch_nb.frames import FrameError, split_frames
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

FLOOD_BYTES = 64 << 10
"""More than this in one stream of one rank between two looks is a flood: its middle is not forwarded."""
KEPT_BYTES = 12 << 10
"""Of a flood, this much of its beginning and of its end is forwarded."""
_COUNT_CHUNK_BYTES = 1 << 20
_MAX_DISPLAYS = 20


@dataclass(frozen=True)
class RankFiles:
    """The three files of one rank and output (RunSpec.output)."""

    runs: Path
    output: int
    rank: int

    def path(self, kind: str) -> Path:
        return run_file(self.runs, self.output, self.rank, kind)

    def size_bytes(self, kind: str) -> int:
        try:
            return self.path(kind).stat().st_size
        except FileNotFoundError:
            return 0

    def end(self) -> run_pb2.Cursor:
        """Return the position after everything written so far. The marks come last: no text is ahead of its mark."""
        return run_pb2.Cursor(
            stdout_bytes=self.size_bytes("out"),
            stderr_bytes=self.size_bytes("err"),
            marks_bytes=self.size_bytes("marks"),
        )

    def note_run(self, number: int) -> None:
        """Note which run wrote here, when it is not the one that the files were made for: the node forgets runs."""
        with contextlib.suppress(OSError):  # a full disk: the log has the output's number
            self.path("run").write_text(str(number))

    def run_number(self, known: Mapping[tuple[int, int], int]) -> int:
        """Return the number of the run that wrote here.

        Args:
            known: by output and rank, of the runs that the node remembers.
        """
        try:
            return int(self.path("run").read_text())
        except (OSError, ValueError):
            return known.get((self.output, self.rank), self.output)

    def read(self, kind: str, start: int, end: int) -> bytes:
        if end <= start:
            return b""
        with self.path(kind).open("rb") as file:
            file.seek(start)
            return file.read(end - start)

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
                self._add_text(output, position, mark.stdout_bytes, mark.stderr_bytes)
            if mark.HasField("display"):
                output.items.add(display=mark.display)
        self._add_text(output, position, end.stdout_bytes, end.stderr_bytes)
        return output

    def _news(self, cursor: run_pb2.Cursor, most_bytes: int = 0) -> tuple[list[run_pb2.Mark], run_pb2.Cursor]:
        """Return the marks after `cursor`, and the position after them and all text; or some of them, and the position
        of the last."""
        end = self.end()
        unread = end.marks_bytes - cursor.marks_bytes
        limit = min(unread, most_bytes or unread)
        while True:
            marks, marks_bytes = _parse_marks(self.read("marks", cursor.marks_bytes, cursor.marks_bytes + limit))
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

    def _add_text(self, output: pb.RankOutput, position: run_pb2.Cursor, stdout_end: int, stderr_end: int) -> None:
        if stdout_end > position.stdout_bytes:
            self._add_stream(output, "out", position.stdout_bytes, stdout_end)
            position.stdout_bytes = stdout_end
        if stderr_end > position.stderr_bytes:
            self._add_stream(output, "err", position.stderr_bytes, stderr_end)
            position.stderr_bytes = stderr_end

    def _add_stream(self, output: pb.RankOutput, kind: str, start: int, end: int) -> None:
        def add(text: bytes) -> None:
            if text and kind == "out":
                output.items.add(stdout=text)
            elif text:
                output.items.add(stderr=text)

        if end - start <= FLOOD_BYTES:
            add(self.read(kind, start, end))
            return
        head = self.read(kind, start, start + KEPT_BYTES)
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
        with self.path(kind).open("rb", buffering=0) as file:
            file.seek(start)
            while start < end and (chunk := file.read(min(_COUNT_CHUNK_BYTES, end - start))):
                lines += chunk.count(b"\n")
                start += len(chunk)
        return lines

    def tail_lines(self, kind: str, window_bytes: int = 16 << 10) -> list[str]:
        """Return the last lines of a stream."""
        size = self.size_bytes(kind)
        text = self.read(kind, max(0, size - window_bytes), size).decode(errors="replace")
        return text.splitlines()


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


def stored_outputs(runs: Path) -> list[int]:
    """Return the numbers of the outputs that have files, oldest first."""
    try:
        return sorted(int(entry.name) for entry in os.scandir(runs) if entry.name.isdigit())
    except FileNotFoundError:
        return []
