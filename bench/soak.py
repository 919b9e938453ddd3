"""What a node keeps of what is over: runs, clients, reservations. Long, so only when asked for: `--only soak-runs`."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.harness import RANKS, Bench, Outcome, Row
from monarch_nb.allocator.logs.stored import MOST_OUTPUTS
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.runs.run import Run
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

FILES_AT_MOST = 40_000
GROWTH_BYTES = 8 << 20
"""From when all caches are full to the end."""
IN_FLIGHT = 16
CLIENTS = 200
_WARM_UP = 0.2
"""This part of it fills caches."""
_SETTLE_S = 60.0
_PRINT = "print('out {0} of', rank)\nimport sys\nprint('err {0} of', rank, file=sys.stderr)"


@dataclass(frozen=True)
class Kept:
    """What an allocator holds at a time."""

    memory_bytes: int
    descriptors: int
    threads: int
    processes: int
    files: int

    @classmethod
    def by(cls, node: Node) -> Kept:
        """Look."""
        process = psutil.Process(node.pid)
        return cls(
            process.memory_full_info().uss,
            process.num_fds(),
            process.num_threads(),
            len(process.children(recursive=True)),
            sum(
                len(directories) + len(files)
                for path, directories, files in os.walk(node.directory)
                if not Path(path).is_relative_to(node.directory / "logs")  # for seven days, and of so many meshes
            ),
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_bytes / 1e6:.1f} MB, {self.descriptors} descriptors, {self.threads} threads, "
            f"{self.processes} processes, {self.files} files"
        )


def runs(bench: Bench) -> Outcome:
    """Many runs that print."""
    count = bench.repeats(100_000, 10_000)
    with bench.reserved() as reservation:
        node, mesh = _node(bench), reservation.mesh
        in_flight: deque[Run] = deque()
        most_files, before = 0, Kept.by(node)
        began_s = time.monotonic()
        for name in range(1, count + 1):
            in_flight.append(mesh.submit(_PRINT.format(name), want_value=False, sync=False))
            if len(in_flight) == IN_FLIGHT:
                in_flight.popleft().join()
            if name == int(_WARM_UP * count):
                before = Kept.by(node)
            if name % (count // 20) == 0:
                kept = Kept.by(node)
                most_files = max(most_files, kept.files)
                bench.say(f"{name} of {count} runs in {time.monotonic() - began_s:.0f} s: {kept}")
        for run in in_flight:
            run.join()
        after = Kept.by(node)
        bench.say("reading every line that is kept")
        missing, doubled = _lines(mesh, min(count, MOST_OUTPUTS))
        growth_bytes = after.memory_bytes - before.memory_bytes
    return Outcome(
        f"{count:,} runs: at most {most_files:,} files; memory {growth_bytes / 1e6:+.1f} MB and descriptors "
        f"{after.descriptors - before.descriptors:+d} in the last {1 - _WARM_UP:.0%}; "
        f"{missing} lines missing, {doubled} doubled",
        most_files < FILES_AT_MOST and growth_bytes < GROWTH_BYTES and not (missing or doubled),
    )


def _lines(mesh: Mesh, count: int) -> tuple[int, int]:
    """Return how many lines of so many runs are missing, and how many are doubled or not where they were printed."""
    first: int | None = None
    found: Counter[tuple[int, int, str]] = Counter()
    wrong = 0
    for record in mesh.logs():
        word, name, _, rank = record.text.split()
        first = record.run - int(name) if first is None else first
        wrong += (record.run - first, record.rank, record.stream[3:]) != (int(name), int(rank), word)
        found[int(name), record.rank, word] += 1
    return max(0, 2 * RANKS * count - len(found)), wrong + sum(times > 1 for times in found.values())


def clients(bench: Bench) -> Outcome:
    """Many clients at once, again and again."""
    with bench.reserved() as reservation:
        node = _node(bench)
        kept = [Kept.by(node)]
        for turn in range(bench.repeats(10, 4)):
            call(_come_and_go(node, reservation.id))
            kept.append(_settled(node, kept[0]))
            bench.say(f"{CLIENTS} clients came and went, turn {turn + 1}: {kept[-1]}")
    return _returned(f"{CLIENTS} clients, {len(kept) - 1} times", kept[len(kept) // 5 + 1], kept[-1])


async def _come_and_go(node: Node, reservation_id: str) -> None:
    opened = [Connection(f"client{number}", node.address) for number in range(CLIENTS)]
    try:
        for connection in opened:
            connection.attach(reservation_id, _Deaf())
        await asyncio.gather(*(connection.check() for connection in opened))
    finally:
        await asyncio.gather(*(connection.close() for connection in opened))


class _Deaf:
    def on_time_left(self, _: object) -> None: ...

    def on_files_changed(self, _: object) -> None: ...


def reservations(bench: Bench) -> Outcome:
    """Many reservations, one after the other."""
    count = bench.repeats(1_000, 200)
    pool = bench.warm_pool(1, RANKS)
    node = _node(bench)
    before = Kept.by(node)
    for number in range(1, count + 1):
        reservation = reserve("bench", procs=2, pool=pool)
        reservation.mesh.run(_PRINT.format(number), want_value=False)
        reservation.release()
        if number == int(_WARM_UP * count):
            before = _settled(node, before)
        if number % (count // 10) == 0:
            bench.say(f"{number} of {count} reservations made and released: {Kept.by(node)}")
    return _returned(f"{count:,} reservations", before, _settled(node, before))


def _node(bench: Bench) -> Node:
    (node,) = LocalProvisioner().nodes(pool=bench.warm_pool(1, RANKS))
    return node


def _settled(node: Node, before: Kept) -> Kept:
    """Return what is kept when all that goes in the background has gone, or will not."""
    end_s = time.monotonic() + _SETTLE_S
    while True:
        kept = Kept.by(node)
        is_back = (kept.descriptors, kept.processes, kept.files) <= (before.descriptors, before.processes, before.files)
        if is_back or time.monotonic() > end_s:
            return kept
        time.sleep(0.2)


def _returned(what: str, before: Kept, after: Kept) -> Outcome:
    growth_bytes = after.memory_bytes - before.memory_bytes
    rest = [getattr(after, name) - getattr(before, name) for name in ("descriptors", "processes", "files")]
    return Outcome(
        f"{what}: memory {growth_bytes / 1e6:+.1f} MB, descriptors {rest[0]:+d}, processes {rest[1]:+d}, "
        f"files {rest[2]:+d}",
        growth_bytes < GROWTH_BYTES and max(rest) <= 0,
    )


_HOW = "Memory is the allocator's own (USS), read when the first fifth is over and at the end. "
ROWS = [
    Row(
        "soak-runs",
        f"100,000 runs that print on {RANKS} ranks",
        "never 20,000 files; memory grows by less than 8 MB; every line found once, by run, rank and stream",
        f"{_HOW}{IN_FLIGHT} runs are under way at a time, each rank prints a line to each stream in each.",
        runs,
    ),
    Row(
        "soak-clients",
        f"{CLIENTS} clients that connect at once",
        "memory grows by less than 8 MB, everything else returns to where it was",
        f"{_HOW}Each has a channel and a session of its own and attaches to the same reservation; then all go.",
        clients,
    ),
    Row(
        "soak-reservations",
        "1,000 reservations made, used once and released",
        "memory grows by less than 8 MB, everything else returns to where it was",
        f"{_HOW}Each has 2 ranks, which print.",
        reservations,
    ),
]
