"""How much memory a process and its GPU have in use. Pure, from what Linux and torch tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class GpuFigures(NamedTuple):
    """A process' memory on its GPU, in bytes.

    Attributes:
        allocated: by tensors. reserved: by torch's allocator, which keeps what tensors have given back.
        largest_free: the largest piece of what is reserved and not allocated: a larger tensor needs new memory.
        greatest: what was allocated at most so far.
        free, total: of the GPU, whoever uses it.
    """

    allocated: int
    reserved: int
    largest_free: int
    greatest: int
    free: int = 0
    total: int = 0

    @property
    def fragmentation(self) -> int:
        """What is reserved and not allocated."""
        return self.reserved - self.allocated


def gpu_figures(
    stats: Mapping[str, Any], segments: Iterable[Mapping[str, Any]], free: int = 0, total: int = 0
) -> GpuFigures:
    """Return the figures of a GPU.

    Args:
        stats: as `torch.cuda.memory_stats()` returns them.
        segments: as `torch.cuda.memory_snapshot()` returns them.
        free, total: as `torch.cuda.mem_get_info()` returns them.
    """
    return GpuFigures(
        stats.get("allocated_bytes.all.current", 0),
        stats.get("reserved_bytes.all.current", 0),
        max(
            (block["size"] for each in segments for block in each["blocks"] if block["state"] == "inactive"), default=0
        ),
        stats.get("allocated_bytes.all.peak", 0),
        free,
        total,
    )


def kilobytes(text: str, name: str) -> int:
    """Return a figure of a file such as /proc/self/smaps_rollup, in bytes; 0 if it is not there.

    Example:
        >>> kilobytes("Rss:   2048 kB\\nPss:   1024 kB\\n", "Pss")
        1048576
    """
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return 0
