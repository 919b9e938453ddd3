"""Readings of GPUs: what each tells, also when one is lost, does not tell something, or the driver hangs or is gone."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pytest

from gpus import FAKE_NVML, FakeGpus
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.readings import gpus as readers
from monarch_nb.allocator.readings.gpus import GpuReader, discover_gpus, visible
from monarch_nb.proto import allocator_pb2 as pb


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch, fake_gpus: FakeGpus) -> FakeGpus:
    """In this process too."""
    monkeypatch.syspath_prepend(str(FAKE_NVML))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(readers, "WAIT_S", 0.3)
    monkeypatch.setattr(readers, "STALE_S", 0.3)
    monkeypatch.setattr(readers, "_AGAIN_S", 0.0)
    return fake_gpus


def test_a_scheduler_s_gpus_are_those_that_are_visible() -> None:
    gpus = [pb.Gpu(index=index, uuid=f"GPU-{letter}") for index, letter in enumerate("abc")]
    visible_gpus = {None: [0, 1, 2], "": [], "1": [1], "0, 2": [0, 2], "GPU-b": [1], "GPU-a,GPU-c": [0, 2]}
    for devices, indices in (visible_gpus | {"7": [], "MIG-a": []}).items():
        assert [gpu.index for gpu in visible(gpus, devices)] == indices


async def eventually(reader: GpuReader, condition: Any) -> list[pb.GpuReading]:
    """Read until it is so: the thread that reads may be about to."""
    deadline = time.monotonic() + 20
    while not condition(readings := await reader.read()):
        assert time.monotonic() < deadline, readings
    return readings


async def test_every_gpu_tells(nvml: FakeGpus) -> None:
    found = discover_gpus()
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in found[:2]] == [
        (0, "GPU-stand-in-0", "Stand-in H200"),
        (1, "GPU-stand-in-1", "Stand-in H200"),
    ]
    readings = await eventually(GpuReader(found), lambda told: not any(each.error for each in told))
    assert [reading.index for reading in readings] == list(range(8))
    for reading in readings:
        assert 0 <= reading.utilisation <= 1
        assert 0 <= reading.memory_used_bytes <= reading.memory_total_bytes == 141 << 30
        assert 35 <= reading.temperature_c <= 80
        assert 70 <= reading.power_w <= reading.power_limit_w == 700


async def test_no_driver_no_gpus(nvml: FakeGpus) -> None:
    nvml.set(driver=False)
    assert discover_gpus() == []
    assert await GpuReader([]).read() == []


async def test_what_a_gpu_does_not_tell_is_absent(nvml: FakeGpus) -> None:
    nvml.set(unsupported=["utilisation", "power_limit"])
    reading = (await eventually(GpuReader(discover_gpus()), lambda told: told[0].HasField("power_w")))[0]
    assert not reading.HasField("utilisation")
    assert not reading.HasField("power_limit_w")
    assert reading.HasField("temperature_c")
    assert not reading.error


async def test_a_gpu_that_is_lost_is_named_and_the_others_tell(nvml: FakeGpus) -> None:
    reader = GpuReader(discover_gpus())
    await eventually(reader, lambda told: told[3].HasField("utilisation"))
    nvml.set(lost=[3])
    readings = await eventually(reader, lambda told: told[3].error)
    assert readings[3].error == "GPU 3 has fallen off the bus: the machine has to be restarted"
    assert not readings[3].HasField("utilisation")
    assert readings[3].memory_total_bytes == 141 << 30
    assert [each.index for each in readings if not each.error] == [0, 1, 2, 4, 5, 6, 7]
    nvml.set()
    await eventually(reader, lambda told: not told[3].error)


async def test_a_driver_that_hangs_holds_nobody_up(nvml: FakeGpus) -> None:
    reader = GpuReader(discover_gpus())
    await eventually(reader, lambda told: told[0].HasField("utilisation"))
    nvml.set(hangs=True)
    readings = await eventually(reader, lambda told: told[0].error)
    assert {reading.error for reading in readings} == {"the GPU driver does not answer"}
    async with asyncio.timeout(30):  # also when the call before has not come back
        await reader.read()
    nvml.set()
    await eventually(reader, lambda told: not told[0].error)


async def test_who_has_ended_since_the_reading_uses_none(nvml: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = GpuReader(discover_gpus())
    nvml.set(processes={"3": [[os.getpid(), 1]]})
    await eventually(reader, lambda _: [user.pid for user in reader.used_by().get(3, ())] == [os.getpid()])
    monkeypatch.setattr(processes, "is_alive", lambda process: False)
    assert reader.used_by() == {}
