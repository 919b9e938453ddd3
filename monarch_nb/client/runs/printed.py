"""What runs print, where somebody waits for them: in the cell that does, or in a script as whole lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable

from monarch_nb.client.connections.events import (
    Display,
    Elided,
    ElidedOfMany,
    Event,
    Finished,
    Notice,
    Result,
    Stream,
    Text,
)
from monarch_nb.client.presenting import calling_cell
from monarch_nb.client.runs.run import Listener
from monarch_nb.ground.printing import put
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.sizes import size


def shown_here(ranks: Iterable[int]) -> Listener:
    """Return what shows a run that is waited for, and whose failures are raised: in the cell that executes, or printed
    when this is no notebook."""
    cell = calling_cell()
    if cell is not None:
        return cell.run_listener(ranks)
    return PrintedLines(threading.Lock(), ranks, tells_failures=False).on_event


class PrintedLines:
    """Prints what ranks print: stdout to stdout, stderr to stderr.

    Args:
        lock: held while something is written.
        ranks: of the run; those of several are named.
        mesh: what stands before the rank, as in "[other 3]".
        tells_failures: how ranks fail as well: nobody raises it.
    """

    def __init__(
        self, lock: threading.Lock, ranks: Iterable[int], *, mesh: str = "", tells_failures: bool = True
    ) -> None:
        self._lock, self._many, self._mesh = lock, len(tuple(ranks)) > 1, mesh
        self._tells_failures = tells_failures
        self._begun: dict[tuple[int, Stream], str] = {}

    def on_event(self, event: Event) -> None:
        """Take in an event of the run."""
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
            case ElidedOfMany(ranks, stream, lines, sizes_bytes):
                left_out = f"… {sum(lines):,} lines ({size(sum(sizes_bytes))}) of {name_ranks(ranks)} not shown"
                self._write(None, stream, [left_out])
            case Notice(text) if text:
                self._write(None, "stderr", [text])
            case Result(rank) if event.failure is not None and self._tells_failures:
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
        with self._lock:
            put(text, sys.stdout if stream == "stdout" else sys.stderr)
