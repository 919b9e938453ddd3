"""How busy a node is: its processors and memory, its GPUs, and what its ranks take of them.

Nothing is read unless somebody asks, and then once a second at most, whoever asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monarch_nb.allocator.readings.gpus import GpuReader
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.config import cadence
from monarch_nb.errors import PoolError
from monarch_nb.proto import allocator_pb2 as pb


def proportional_memory_bytes(pid: int) -> int:
    """Return the PSS of a process: its own memory and its share of what it shares; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


INTERVAL_S = cadence(0.9)
"""Younger readings are told again."""
_LONGEST_INTERVAL_S = 10.0
"""A mean over more than this says nothing about now."""
EXACT_INTERVAL_S = cadence(60.0)
"""How often the memory of a rank is measured: that takes 8 ms (a fork of torch). In between it is estimated."""
_EXACT_BUDGET_S = 0.02
"""Measure no more ranks in a reading when those have taken so long."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class RankReading:
    """What a rank takes.

    Attributes:
        cpu: 1.0 is one processor; None when it is not known yet.
        memory_bytes: its own, and its share of what it shares.
    """

    cpu: float | None
    memory_bytes: int


@dataclass(frozen=True)
class NodeReading:
    """What a node does. `ranks` by pid."""

    node: pb.NodeReadings = field(default_factory=pb.NodeReadings)
    ranks: Mapping[int, RankReading] = field(default_factory=dict)


def measure(pids: Iterable[int]) -> dict[int, RankReading]:
    """Measure the memory of ranks, each in milliseconds."""
    return {pid: RankReading(None, proportional_memory_bytes(pid)) for pid in pids}


class Readings:
    """Reads a node.

    Args:
        gpus: the node's.
        held_by_others: returns who else on this machine holds some of them.
    """

    def __init__(self, gpus: list[pb.Gpu], held_by_others: Callable[[], dict[int, pb.GpuHolder]]) -> None:
        self._has_gpus, self._gpus, self._held_by_others = bool(gpus), GpuReader(gpus), held_by_others
        self._processes = ProcessReader()
        self._newest = NodeReading()
        self._newest_s = -INTERVAL_S
        self._reading: asyncio.Task[None] | None = None

    async def look_at_gpus(self, state: NodeState) -> None:
        """See which GPUs can be used: those that can not are not leased until they can again. And who uses them."""
        if self._has_gpus:
            state.gpu_troubles = await self._gpus.troubles(INTERVAL_S)
            state.gpus_used = self._gpus.used_by()
            with contextlib.suppress(PoolError):  # whoever reserves learns of it
                state.gpus_held = self._held_by_others()

    async def read(self, pids: Collection[int]) -> NodeReading:
        """Return what the node and its ranks do.

        Args:
            pids: the ranks'.
        """
        if self._reading is None and time.monotonic() - self._newest_s >= INTERVAL_S:
            self._reading = asyncio.create_task(self._read(tuple(pids)))
        if self._reading is not None:
            await asyncio.shield(self._reading)
        return self._newest

    async def _read(self, pids: tuple[int, ...]) -> None:
        try:
            reading, gpus = await asyncio.gather(asyncio.to_thread(self._processes.read, pids), self._gpus.read())
            reading.node.gpus.extend(gpus)
            self._newest = reading
        finally:
            self._newest_s = time.monotonic()
            self._reading = None


@dataclass
class _Known:
    """What is known of a process: processor time at a moment, exact memory at a moment, and what it had mapped then."""

    ticks: int
    read_s: float
    exact_bytes: int = 0
    mapped_bytes: int = 0
    exact_s: float = 0.0


class ProcessReader:
    """Reads /proc, and remembers what it needs to say what has changed. Call it from one thread at a time.

    Args:
        proc: where that is.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._machine: tuple[float, int, int] | None = None

    def read(self, pids: Collection[int]) -> NodeReading:
        """Return what the machine and some processes do."""
        now_s = time.monotonic()
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
        node = pb.NodeReadings()
        self._read_machine(node, now_s)
        cpu: dict[int, float | None] = {}
        mapped: dict[int, int] = {}
        for pid in pids:
            try:
                fields = (self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
                _, resident, shared, *_ = (self._proc / str(pid) / "statm").read_bytes().split()
                ticks = int(fields[11]) + int(fields[12])
                mapped[pid] = (int(resident) - int(shared)) * _PAGE_BYTES  # and does not share as a file
            except (OSError, ValueError, IndexError):
                continue  # it has ended
            known = self._known.setdefault(pid, _Known(ticks, now_s))
            since_s = now_s - known.read_s
            cpu[pid] = (ticks - known.ticks) / _TICKS_PER_S / since_s if 0 < since_s < _LONGEST_INTERVAL_S else None
            known.ticks, known.read_s = ticks, now_s
        self._measure(mapped)
        return NodeReading(node, {pid: RankReading(cpu[pid], self._memory_bytes(pid, mapped[pid])) for pid in cpu})

    def _read_machine(self, node: pb.NodeReadings, now_s: float) -> None:
        try:
            times = [int(ticks) for ticks in (self._proc / "stat").read_text().partition("\n")[0].split()[1:9]]
            memory = dict(line.split(":", 1) for line in (self._proc / "meminfo").read_text().splitlines())
            total, free = (int(memory[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
        except (OSError, ValueError, KeyError):
            return
        node.memory_total_bytes, node.memory_used_bytes = total, total - free
        all_ticks, idle_ticks = sum(times), times[3] + times[4]
        if self._machine is not None:
            before_s, all_before, idle_before = self._machine
            passed = all_ticks - all_before
            if passed > 0 and now_s - before_s < _LONGEST_INTERVAL_S:
                node.cpu = min(1.0, max(0.0, 1 - (idle_ticks - idle_before) / passed))
        self._machine = (now_s, all_ticks, idle_ticks)

    def _measure(self, mapped: Mapping[int, int]) -> None:
        """Measure those whose last measurement is oldest, as many as there is time for."""
        began_s = time.monotonic()
        for pid in sorted(mapped, key=lambda pid: self._known[pid].exact_s):
            known, now_s = self._known[pid], time.monotonic()
            if (known.exact_s and now_s - known.exact_s < EXACT_INTERVAL_S) or now_s - began_s > _EXACT_BUDGET_S:
                return
            if exact := proportional_memory_bytes(pid):
                known.exact_bytes, known.mapped_bytes = exact, mapped[pid]
            known.exact_s = now_s

    def _memory_bytes(self, pid: int, mapped: int) -> int:
        """Estimate the memory of a process: what was measured and what it has got since. Pages that a rank got with the
        fork count only as far as they are its own, so that what is mapped is no measure by itself."""
        known = self._known[pid]
        return max(0, known.exact_bytes + mapped - known.mapped_bytes)
