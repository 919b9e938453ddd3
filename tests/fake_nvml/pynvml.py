"""A stand-in for NVML, found before the real one when its directory is on PYTHONPATH: GPUs with readings that move.

For tests only. `FAKE_NVML` names a JSON file that is read at every call, so that a test can change what a running pool
sees: {"gpus": 8, "lost": [3], "hangs": false, "unsupported": ["power"], "driver": true,
"processes": {"2": [[4711, 1000]]}}, the last by GPU: pid and bytes of memory.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18

_NAME = "Stand-in H200"
_MEMORY_BYTES = 141 << 30
_LIMIT_MILLIWATTS = 700_000
_HANG_S = 0.05

_initialised = 0


class NVMLError(Exception):
    """As NVML's."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Memory:
    total: int
    used: int

    @property
    def free(self) -> int:
        return self.total - self.used


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Utilization:
    gpu: int
    memory: int


def _state() -> dict[str, Any]:
    path = os.environ.get("FAKE_NVML", "")
    if path and os.path.exists(path):
        with open(path) as file:
            return dict(json.load(file))
    return {}


def _called() -> dict[str, Any]:
    """Fail, or hang, as the driver would."""
    while (state := _state()).get("hangs"):
        time.sleep(_HANG_S)
    if not state.get("driver", True):
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    if not _initialised:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)
    return state


def _ask(index: int, what: str) -> float:
    """Return a number between 0.1 and 0.9 that moves with time and differs between GPUs: never so little that nobody
    would speak of it."""
    state = _called()
    if index in state.get("lost", ()):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    if what in state.get("unsupported", ()):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return 0.5 + 0.4 * math.sin(time.time() / 3 + index)


def nvmlInit() -> None:
    global _initialised
    if not _state().get("driver", True):
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    _initialised += 1


def nvmlShutdown() -> None:
    global _initialised
    _initialised -= 1


def nvmlDeviceGetCount() -> int:
    return int(_called().get("gpus", 8))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if index in _called().get("lost", ()):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    state, index = _called(), int(uuid.rpartition("-")[2])
    if index in state.get("lost", ()):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return index


def nvmlDeviceGetUUID(index: int) -> str:
    return f"GPU-stand-in-{index}"


def nvmlDeviceGetName(index: int) -> bytes:
    return _NAME.encode()  # older NVML packages say bytes


def nvmlDeviceGetMemoryInfo(index: int) -> Memory:
    return Memory(_MEMORY_BYTES, int(_ask(index, "memory") * _MEMORY_BYTES))


def nvmlDeviceGetComputeRunningProcesses(index: int) -> list[Process]:
    _ask(index, "processes")
    return [Process(*process) for process in _state().get("processes", {}).get(str(index), ())]


def nvmlDeviceGetUtilizationRates(index: int) -> Utilization:
    busy = round(100 * _ask(index, "utilisation"))
    return Utilization(busy, busy // 2)


def nvmlDeviceGetTemperature(index: int, sensor: int) -> int:
    assert sensor == NVML_TEMPERATURE_GPU
    return round(35 + 45 * _ask(index, "temperature"))


def nvmlDeviceGetPowerUsage(index: int) -> int:
    return round(_LIMIT_MILLIWATTS * (0.1 + 0.9 * _ask(index, "power")))


def nvmlDeviceGetEnforcedPowerLimit(index: int) -> int:
    _ask(index, "power_limit")
    return _LIMIT_MILLIWATTS
