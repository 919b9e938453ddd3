"""All that asks torch about the memory of GPUs. Nothing here opens a GPU that the process has not opened itself."""

from __future__ import annotations

import sys
from typing import Any

from monarch_nb.worker.memory.figures import GpuFigures, gpu_figures

_HISTORY_ENTRIES = 100_000
"""Of the newest events: a few tens of megabytes."""


def are_there() -> bool:
    """Return whether torch sees a GPU."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def figures() -> GpuFigures | None:
    """Return the figures of the rank's GPU; None if it has none, or has not used it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return gpu_figures(torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), *torch.cuda.mem_get_info())


def release() -> int:
    """Give back what torch keeps of the GPU for tensors to come, and what others have let go that this process shared
    with them; return how many bytes of it torch had kept."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    kept = torch.cuda.memory_reserved()  # what is free on the GPU, other processes change as well
    torch.cuda.empty_cache()
    return int(kept - torch.cuda.memory_reserved())


def record_history() -> None:
    """Have torch note what is allocated and freed, and where in the code."""
    sys.modules["torch"].cuda.memory._record_memory_history(max_entries=_HISTORY_ENTRIES)


def dump_history(path: str) -> None:
    """Write what was noted, for pytorch.org/memory_viz."""
    sys.modules["torch"].cuda.memory._dump_snapshot(path)


def stop_history() -> None:
    """Note nothing more."""
    sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)
