"""Why a GPU that this node does not lease is not free, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.sizes import size
from monarch_nb.times import time_of_day


def until(at: float) -> str:
    """Return " until 18:40", or "" for a time (seconds since the epoch) that is 0."""
    return f" until {time_of_day(at)}" if at else ""


def why_not_free(gpu: pb.Gpu) -> str:
    """Return why a GPU can not be leased just so, or an empty text.

    Example:
        >>> why_not_free(pb.Gpu(index=3, held_by=pb.GpuHolder(owner="alice", reservation="dev")))
        'GPU 3 is held by alice (dev)'
    """
    if gpu.trouble:
        return gpu.trouble
    if gpu.HasField("held_by"):
        return held_line(gpu.index, gpu.held_by)
    return busy_line(gpu.index, gpu.used_by) if gpu.used_by else ""


def held_line(index: int, holder: pb.GpuHolder) -> str:
    """Return "GPU 3 is held by alice (dev) until 18:40"."""
    name = f" ({holder.reservation})" if holder.reservation else ""
    return f"GPU {index} is held by {holder.owner}{name}{until(holder.until)}"


def busy_line(index: int, processes: Iterable[pb.GpuProcess]) -> str:
    """Return "GPU 2 is busy: pid 4711 (python, bob, 11.2 GB)"."""
    return f"GPU {index} is busy: {', '.join(map(_process, processes))}"


def _process(process: pb.GpuProcess) -> str:
    memory = size(process.memory_bytes) if process.memory_bytes else ""
    facts = ", ".join(filter(None, [process.name, process.user, memory]))
    return f"pid {process.pid} ({facts})" if facts else f"pid {process.pid}"
