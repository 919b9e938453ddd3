"""What a node has: GPUs by NVML, CPU slots, memory of its processes."""

import os
from pathlib import Path

from monarch_nb.proto import allocator_pb2 as pb


def cpu_slots() -> int:
    """Return the number of CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def discover_gpus() -> list[pb.Gpu]:
    """Return the node's GPUs; an empty list when there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(
                pb.Gpu(
                    index=index,
                    uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                    name=_text(pynvml.nvmlDeviceGetName(handle)),
                    memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                )
            )
        return gpus
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def proportional_memory_bytes(pid: int) -> int:
    """Return the PSS of a process: its own memory and its share of what it shares; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0
