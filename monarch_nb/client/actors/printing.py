"""What actors print, in a script: whole lines, each with the rank that has printed it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TextIO

from monarch_nb.client.connections.events import Display, Elided, Event, Finished, Notice, Result, Stream, Text
from monarch_nb.client.debug.answering import Screen
from monarch_nb.client.debug.terminal import SCREEN
from monarch_nb.client.runs.calls_run import CallsRun
from monarch_nb.client.runs.run import Listener
from monarch_nb.sizes import size


class Printing:
    """Prints what actors of ranks print: stdout to stdout, stderr to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def listener(self, ranks: Iterable[int], mesh: str) -> Listener:
        """As Audience's."""
        return _Lines(self._lock, many=len(tuple(ranks)) > 1, mesh="" if mesh == "main" else f"{mesh} ").on_event

    def finished(self, run: CallsRun) -> None:
        """A run was printed to its end."""
        run.collected()

    def screen(self) -> Screen:
        """Return the terminal."""
        return SCREEN

    def tell(self, text: str) -> None:
        """Tell people something."""
        with self._lock:
            sys.stderr.write(f"{text}\n")


class _Lines:
    def __init__(self, lock: threading.Lock, *, many: bool, mesh: str) -> None:
        self._lock, self._many, self._mesh = lock, many, mesh
        self._begun: dict[tuple[int, Stream], str] = {}

    def on_event(self, event: Event) -> None:
        match event:
            case Text(rank, stream, text):
                *lines, rest = (self._begun.pop((rank, stream), "") + text).split("\n")
                if rest:
                    self._begun[rank, stream] = rest
                self._write(rank, stream, lines)
            case Display(rank, "show", data):
                self._write(rank, "stdout", str(data.get("text/plain", "")).splitlines())
            case Elided(rank, stream, lines_left_out, size_bytes):
                self._write(rank, stream, [f"… {lines_left_out:,} lines ({size(size_bytes)}) not shown"])
            case Notice(text) if text:
                self._write(None, "stderr", [text])
            case Result(rank) if event.failure is not None:
                self._write(None, "stderr", [f"rank {rank} {event.failure.line}"])
            case Finished():
                for (rank, stream), text in self._begun.items():
                    self._write(rank, stream, [text])
                self._begun.clear()
            case _:
                pass

    def _write(self, rank: int | None, stream: Stream, lines: Iterable[str]) -> None:
        before = f"[{self._mesh}{rank}] " if rank is not None and (self._many or self._mesh) else ""
        text = "".join(f"{before}{line}\n" for line in lines)
        file: TextIO = sys.stdout if stream == "stdout" else sys.stderr
        with self._lock:
            file.write(text)
            file.flush()
