"""The node's GPUs, by NVML."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

from monarch_nb.allocator.processes import processes
from monarch_nb.config import cadence, patience
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import state_pb2

WAIT_S = patience(0.3)
"""How long a reading may take before the one before is told again."""
STALE_S = cadence(3.0)
"""A reading older than this is told no more."""
_SILENT = "the GPU driver does not answer"
_AGAIN_S = cadence(10.0)
"""The driver is opened again after this time when it failed."""


def discover_gpus() -> list[pb.Gpu]:
    """Return the node's GPUs; an empty list when there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_discover(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: list[pb.Gpu], devices: str | None) -> list[pb.Gpu]:
    """Return the GPUs that a scheduler gave us.

    Args:
        devices: $CUDA_VISIBLE_DEVICES: numbers, or the beginnings of what the driver calls GPUs; None when it is not
            set. Where only our own can be seen at all, numbers may count these.

    Example:
        >>> [gpu.index for gpu in visible([pb.Gpu(index=0), pb.Gpu(index=1)], "1")]
        [1]
    """
    if devices is None:
        return gpus
    names = [name for name in devices.replace(" ", "").split(",") if name]
    return [gpu for gpu in gpus if any(str(gpu.index) == name or gpu.uuid.startswith(name) for name in names)]


def _discover(index: int) -> pb.Gpu:
    """Return what a GPU tells; one that is lost tells nothing."""
    import pynvml

    gpu = pb.Gpu(index=index)
    with contextlib.suppress(pynvml.NVMLError):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu.uuid, gpu.name = (_text(ask(handle)) for ask in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetName))
        gpu.memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    return gpu


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class GpuReader:
    """Reads GPUs, in threads of its own that nothing waits for: a call of the driver can hang.

    Args:
        gpus: as they were discovered.
    """

    def __init__(self, gpus: list[pb.Gpu]) -> None:
        self._gpus = gpus
        self._told: dict[int, tuple[float, pb.GpuReading]] = {}
        self._users: dict[int, list[_User]] = {}
        self._pending: asyncio.Event | None = None
        self._loop = asyncio.get_running_loop()
        self._driver = _Driver()

    async def read(self) -> list[pb.GpuReading]:
        """Return what each GPU does. One that does not answer says so."""
        if not self._gpus:
            return []
        if self._pending is None or self._pending.is_set():
            self._pending = asyncio.Event()
            threading.Thread(target=self._work, args=(self._pending,), name="monarch_nb-nvml", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._pending.wait()
        return [self._newest(gpu) for gpu in self._gpus]

    async def troubles(self, age_s: float) -> dict[int, str]:
        """Return why GPUs can not be used, as they said `age_s` ago at most. While the driver is silent: as they said
        last, and nobody waits twice for the same answer."""
        newest_s = min((read_s for read_s, _ in self._told.values()), default=-age_s)
        if time.monotonic() - newest_s >= age_s and (self._pending is None or self._pending.is_set()):
            await self.read()
        return {index: reading.error for index, (_, reading) in sorted(self._told.items()) if reading.error}

    def used_by(self) -> dict[int, list[pb.GpuProcess]]:
        """Return what computed on GPUs at the last reading and has not ended since, by index."""
        alive = {index: [user.told for user in users if user.is_there] for index, users in sorted(self._users.items())}
        return {index: processes for index, processes in alive.items() if processes}

    def _newest(self, gpu: pb.Gpu) -> pb.GpuReading:
        read_s, reading = self._told.get(gpu.index, (0.0, None))
        if reading is not None and time.monotonic() - read_s < STALE_S:
            return reading
        return pb.GpuReading(index=gpu.index, memory_total_bytes=gpu.memory_bytes, error=_SILENT)

    def _work(self, done: asyncio.Event) -> None:
        for gpu in self._gpus:
            reading, users = self._driver.read(gpu)
            self._told[gpu.index] = (time.monotonic(), reading)
            self._users[gpu.index] = users
        with contextlib.suppress(RuntimeError):  # the allocator has ended
            self._loop.call_soon_threadsafe(done.set)


@dataclass(frozen=True)
class _User:
    """A process that computes on a GPU. `identity` is None when it can not be seen: in another container, as a rule."""

    told: pb.GpuProcess
    identity: state_pb2.ProcessIdentity | None

    @property
    def is_there(self) -> bool:
        return self.identity is None or processes.is_alive(self.identity)

    @classmethod
    def look(cls, pid: int, memory_bytes: int) -> _User:
        """Look at a process."""
        told = pb.GpuProcess(pid=pid, memory_bytes=memory_bytes)
        try:
            identity = processes.identify(pid)
            told.name = processes.name_of(pid)
            told.user = processes.user_name(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            return cls(told, None)
        return cls(told, identity)


class _Driver:
    """NVML, opened once and kept open; opened again when the driver was."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._is_open = False
        self._opened_s = 0.0

    def read(self, gpu: pb.Gpu) -> tuple[pb.GpuReading, list[_User]]:
        """Return what a GPU does, and for whom, as far as it tells."""
        import pynvml

        reading = pb.GpuReading(index=gpu.index, memory_total_bytes=gpu.memory_bytes)
        users: list[_User] = []
        try:
            handle = self._handle(gpu)
            self._fill(reading, handle)
            told = _optional(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            users = [_User.look(process.pid, process.usedGpuMemory or 0) for process in told]
        except pynvml.NVMLError as error:
            reading.Clear()
            reading.index, reading.memory_total_bytes = gpu.index, gpu.memory_bytes
            reading.error = _explain(gpu, error)
            self._handles.pop(gpu.uuid, None)
            if time.monotonic() - self._opened_s > _AGAIN_S:
                self._close()
        return reading, users

    def _handle(self, gpu: pb.Gpu) -> Any:
        import pynvml

        if not self._is_open:
            self._opened_s = time.monotonic()
            pynvml.nvmlInit()
            self._is_open = True
        if not gpu.uuid:  # it was lost when GPUs were discovered
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
            gpu.uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            return handle
        if gpu.uuid not in self._handles:
            self._handles[gpu.uuid] = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return self._handles[gpu.uuid]

    def _close(self) -> None:
        """Open it anew the next time: the driver may have been loaded again."""
        import pynvml

        if self._is_open:
            self._is_open = False
            self._handles.clear()
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    @staticmethod
    def _fill(reading: pb.GpuReading, handle: Any) -> None:
        import pynvml

        memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if memory is not None:
            reading.memory_used_bytes, reading.memory_total_bytes = memory.used, memory.total
        rates = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            reading.utilisation = rates.gpu / 100
        temperature = _optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
        if temperature is not None:
            reading.temperature_c = temperature
        milliwatts = _optional(pynvml.nvmlDeviceGetPowerUsage, handle)
        if milliwatts is not None:
            reading.power_w = milliwatts / 1000
        limit_milliwatts = _optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        if limit_milliwatts is not None:
            reading.power_limit_w = limit_milliwatts / 1000


def _optional(call: Any, *arguments: Any) -> Any:
    """Return what NVML says; None when this GPU does not tell. Raises NVMLError when the GPU or the driver is gone."""
    import pynvml

    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        gone = (
            pynvml.NVML_ERROR_GPU_IS_LOST,
            pynvml.NVML_ERROR_RESET_REQUIRED,
            pynvml.NVML_ERROR_UNINITIALIZED,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        )
        if error.value in gone:
            raise
        return None


def _explain(gpu: pb.Gpu, error: Any) -> str:
    import pynvml

    if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND):
        return f"GPU {gpu.index} has fallen off the bus: the machine has to be restarted"
    if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
        return f"GPU {gpu.index} has to be reset: nvidia-smi --gpu-reset, when nothing uses it"
    return f"GPU {gpu.index} can not be read: {error}"
