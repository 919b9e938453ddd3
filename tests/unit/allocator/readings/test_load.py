"""Readings of a machine and its ranks, from a /proc that the test writes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from monarch_nb.allocator.readings import load
from monarch_nb.allocator.readings.load import NodeReading, ProcessReader, Readings
from monarch_nb.proto import allocator_pb2 as pb

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Machine:
    """A /proc, a clock, and what measuring a process's memory finds."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.now_s = directory, 100.0
        self.exact: dict[int, int] = {}
        self.measured: list[int] = []
        self.measuring_takes_s = 0.0
        monkeypatch.setattr(load.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(load, "proportional_memory_bytes", self._measure)
        self.machine(busy=0, idle=0)

    def _measure(self, pid: int) -> int:
        self.measured.append(pid)
        self.now_s += self.measuring_takes_s
        return self.exact.get(pid, 0)

    def machine(self, busy: int, idle: int, total_kb: int = 1000, available_kb: int = 400) -> None:
        (self.directory / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 7 0\ncpu0 1 2 3\n")
        memory = f"MemTotal:  {total_kb} kB\nMemFree: 1 kB\nMemAvailable:  {available_kb} kB\n"
        (self.directory / "meminfo").write_text(memory)

    def process(self, pid: int, ticks: int, pages: int = 10, shared: int = 4) -> None:
        folder = self.directory / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a) b) S 1 1 1 0 -1 4194304 1 1 1 1 {ticks - 1} 1 5 5 20 0 1 0 9")
        (folder / "statm").write_text(f"99 {pages} {shared} 1 0 9 0\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_how_busy_the_machine_was_since_the_last_time(machine: Machine) -> None:
    reader = ProcessReader(machine.directory)
    first = reader.read([]).node
    assert not first.HasField("cpu")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (600 << 10, 1000 << 10)
    machine.machine(busy=30, idle=70)
    assert reader.read([]).node.cpu == pytest.approx(0.3)
    assert not reader.read([]).node.HasField("cpu"), "no time has passed"
    machine.now_s += 60
    machine.machine(busy=1000, idle=1000)
    assert not reader.read([]).node.HasField("cpu"), "a mean over a minute says nothing about now"


def test_what_ranks_take(machine: Machine) -> None:
    assert ProcessReader(machine.directory / "none").read([1]) == NodeReading(), "there is no such /proc"
    reader = ProcessReader(machine.directory)
    machine.process(7, ticks=100)
    machine.process(8, ticks=50)
    assert {pid: rank.cpu for pid, rank in reader.read([7, 8, 9]).ranks.items()} == {7: None, 8: None}
    machine.now_s += 2
    machine.process(7, ticks=100 + 3 * TICKS_PER_S)
    assert {pid: rank.cpu for pid, rank in reader.read([7, 8]).ranks.items()} == {7: 1.5, 8: 0}
    machine.now_s += 60
    assert reader.read([7]).ranks[7].cpu is None


def test_memory_is_measured_now_and_then_and_estimated_in_between(machine: Machine) -> None:
    reader = ProcessReader(machine.directory)
    machine.process(7, ticks=1, pages=100, shared=20)
    machine.exact[7] = 30_000
    assert reader.read([7]).ranks[7].memory_bytes == 30_000
    machine.now_s += 1
    machine.process(7, ticks=1, pages=110, shared=20)
    assert reader.read([7]).ranks[7].memory_bytes == 30_000 + 10 * PAGE_BYTES
    machine.process(7, ticks=1, pages=25, shared=20)
    assert reader.read([7]).ranks[7].memory_bytes == 0, "never less than nothing"
    assert machine.measured == [7]
    machine.now_s += load.EXACT_INTERVAL_S
    assert reader.read([7]).ranks[7].memory_bytes == 30_000
    assert machine.measured == [7, 7]


def test_ranks_are_measured_a_few_at_a_time(machine: Machine) -> None:
    reader = ProcessReader(machine.directory)
    pids = list(range(10, 20))
    for pid in pids:
        machine.process(pid, ticks=1)
        machine.exact[pid] = pid
    machine.measuring_takes_s = 0.011
    assert reader.read(pids).ranks[19].memory_bytes == 6 * PAGE_BYTES, "what it does not share, until it is measured"
    assert machine.measured == [10, 11]
    while len(machine.measured) < 10:
        reader.read(pids)
    assert machine.measured == pids
    assert {rank.memory_bytes for rank in reader.read(pids).ranks.values()} == set(pids)
    assert machine.measured == pids


async def test_one_reading_for_all_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def read(_: object, pids: tuple[int, ...]) -> NodeReading:
        asked.append(pids)
        return NodeReading(pb.NodeReadings(cpu=len(asked)))

    monkeypatch.setattr(ProcessReader, "read", read)
    node = Readings([], dict)
    told = await asyncio.gather(node.read([1]), node.read([1]), node.read([2]))
    assert [reading.node.cpu for reading in told] == [1, 1, 1]
    assert (await node.read([1])).node.cpu == 1
    monkeypatch.setattr(load, "INTERVAL_S", 0.0)
    assert (await node.read([3])).node.cpu == 2
    assert asked == [(1,), (3,)]


async def test_who_gives_up_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Readings([], dict)
    first, second = asyncio.create_task(node.read([])), asyncio.create_task(node.read([]))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).node.memory_total_bytes > 0
