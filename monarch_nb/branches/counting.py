"""Ranks of a flood of which nothing but a count is forwarded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


@dataclass(slots=True)
class _Count:
    """Of one rank."""

    stdout_lines: int = 0
    stdout_bytes: int = 0
    stderr_lines: int = 0
    stderr_bytes: int = 0


class Counts:
    """How much ranks wrote that is not forwarded."""

    def __init__(self) -> None:
        self._by_rank: dict[int, _Count] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._by_rank

    def add(self, counted: pb.Counted, cursors: dict[int, run_pb2.Cursor]) -> Iterator[int]:
        """Add what was counted below, and note in `cursors` where that brings ranks; yield these."""
        for rank, cursor, *amounts in _columns(counted):
            count = self._by_rank.setdefault(rank, _Count())
            count.stdout_lines += amounts[0]
            count.stdout_bytes += amounts[1]
            count.stderr_lines += amounts[2]
            count.stderr_bytes += amounts[3]
            cursors[rank] = cursor
            yield rank

    def take(self, rank: int, items: Iterable[pb.OutputItem]) -> list[pb.OutputItem]:
        """Count a rank's text, and what is elided of it already; return the other items."""
        count = self._by_rank.setdefault(rank, _Count())
        left = []
        for item in items:
            kind = item.WhichOneof("item")
            if kind == "stderr" or (kind == "elided" and item.elided.stderr):
                count.stderr_lines += item.elided.lines + item.stderr.count(b"\n")
                count.stderr_bytes += item.elided.size_bytes + len(item.stderr)
            elif kind in ("stdout", "elided"):
                count.stdout_lines += item.elided.lines + item.stdout.count(b"\n")
                count.stdout_bytes += item.elided.size_bytes + len(item.stdout)
            else:
                left.append(item)
        return left

    def message(self, cursors: Mapping[int, run_pb2.Cursor]) -> pb.Counted | None:
        """Return what is passed on; None when nothing was counted."""
        if not self._by_rank:
            return None
        counts = self._by_rank.values()
        return pb.Counted(
            ranks=self._by_rank,
            cursors=[cursors[rank] for rank in self._by_rank],
            stdout_lines=[count.stdout_lines for count in counts],
            stdout_bytes=[count.stdout_bytes for count in counts],
            stderr_lines=[count.stderr_lines for count in counts],
            stderr_bytes=[count.stderr_bytes for count in counts],
        )


def _columns(counted: pb.Counted) -> Iterator[tuple[int, run_pb2.Cursor, int, int, int, int]]:
    return zip(
        counted.ranks,
        counted.cursors,
        counted.stdout_lines,
        counted.stdout_bytes,
        counted.stderr_lines,
        counted.stderr_bytes,
        strict=True,
    )
