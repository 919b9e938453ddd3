"""Round trips, pushes and the import."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy

from bench.harness import RANKS, Bench, Outcome, Row, Shape, compared, duration, median, seconds
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.ground.rank_sets import counted

ARRAY_BYTES = 64 << 20
NODES = 16
_IMPORT = """
import sys, time
began_s = time.perf_counter()
import monarch_nb
imported_s = time.perf_counter() - began_s
heavy = [name for name in ("torch", "grpc", "IPython") if name in sys.modules]
monarch_nb.reserve
import json
print(json.dumps([imported_s, time.perf_counter() - began_s, heavy, "torch" in sys.modules]))
"""


def _empty_runs(mesh: Mesh, count: int) -> list[float]:
    for _ in range(20):
        mesh.run("pass")
    return [seconds(lambda: mesh.run("pass")) for _ in range(count)]


def _our_round_trip(bench: Bench) -> float:
    with bench.reserved() as reservation:
        return median(_empty_runs(reservation.mesh, bench.repeats(1000, 200)))


def against_ipyparallel(bench: Bench) -> Outcome:
    theirs = median(bench.ipyparallel["call_s"])
    ours = _our_round_trip(bench)
    reached = ours <= 0.003 and theirs / ours >= 10
    return Outcome(duration(ours), reached, f"ipyparallel {duration(theirs)}", compared(ours, theirs))


def against_monarch(bench: Bench) -> Outcome:
    theirs = median(bench.monarch["call_s"])
    ours = _our_round_trip(bench)
    return Outcome(duration(ours), ours <= theirs, f"Monarch {duration(theirs)}", compared(ours, theirs))


def on_many_nodes(bench: Bench, procs: int, goal_s: float) -> Outcome:
    with bench.reserved(NODES, procs) as reservation:
        times = _empty_runs(reservation.mesh, bench.repeats(300, 50))
    spread = statistics.quantiles(times, n=10)
    ours = median(times)
    return Outcome(f"{duration(ours)} (80% in {duration(spread[0])} to {duration(spread[-1])})", ours <= goal_s)


def push(bench: Bench) -> Outcome:
    array = numpy.random.default_rng(0).random(ARRAY_BYTES // 8)
    with bench.reserved() as reservation:
        mesh = reservation.mesh
        times = [seconds(lambda: mesh.push({"array": array})) for _ in range(bench.pushes)]
        sums = mesh.run("float(array.sum())").values
        copies = sum(_mapped_bytes(info.pid) for info in mesh.status()) / ARRAY_BYTES
    ours = median(times)
    right = sums == [float(array.sum())] * RANKS
    rivals = {"ipyparallel": median(bench.ipyparallel["push_s"]), "Monarch": median(bench.monarch["push_s"])}
    return Outcome(
        f"{duration(ours)}; {copies:.2f} copies" + ("" if right else "; wrong data"),
        right and ours <= 0.5 and copies < 1.1,
        ", ".join(f"{name} {duration(theirs)}" for name, theirs in rivals.items()),
        compared(ours, min(rivals.values())),
    )


def _mapped_bytes(pid: int) -> int:
    """Return a process's share (PSS) of the blobs that it maps."""
    share, in_blob = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            in_blob = "/blobs/" in line
        elif in_blob and line.startswith("Pss:"):
            share += int(line.split()[1]) << 10
    return share


def importing(bench: Bench) -> Outcome:
    del bench
    found = []
    for _ in range(11):
        done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
        time.sleep(0)
    ours, with_client = median([one[0] for one in found]), median([one[1] for one in found])
    heavy = found[0][2]
    reached = ours <= 0.2 and not heavy and not found[0][3]
    loaded = f"loads {', '.join(heavy)}" if heavy else "torch not imported"
    return Outcome(f"{duration(ours)}, {loaded}; with its client {duration(with_client)}", reached)


ROWS = [
    Row(
        "ipyparallel",
        f'`mesh.run("pass")` on {RANKS} ranks of one node, against ipyparallel\'s `execute` on {RANKS} engines',
        "at least 10 times faster, median at most 3 ms",
        'The median of 1000 calls of `mesh.run("pass")`, one after the other. ipyparallel: the median of 200 calls of '
        '`client[:].execute("pass", block=True)` on a local cluster. Both wait for every rank.',
        against_ipyparallel,
    ),
    Row(
        "monarch",
        f"the same against a Monarch 0.7 `call` on {RANKS} procs",
        "not slower",
        "Ours: as in the row before. Monarch: the median of 1000 calls of an endpoint that does nothing, "
        "`ranks.nothing.call().get()`, on an actor mesh of `this_host().spawn_procs()`. A Monarch call runs a method. "
        "Our call compiles and runs a cell, with its output in files and its record in the allocator's database.",
        against_monarch,
    ),
    *(
        Row(
            name,
            f"{NODES} local nodes × {counted(procs, 'rank')}: round trip of an empty cell",
            f"at most {duration(goal_s)}",
            f'The median of 300 calls of `mesh.run("pass")` on {NODES * procs} ranks. All {NODES * procs} processes, '
            f"{NODES} allocators and the client share this machine's cores.",
            partial(on_many_nodes, procs=procs, goal_s=goal_s),
            Shape(NODES, procs),
        )
        for name, procs, goal_s in (("many", RANKS, 0.04), ("many-1", 1, 0.008))
    ),
    Row(
        "push",
        f"64 MB array pushed to {RANKS} ranks of a node",
        "at most 0.5 s, one copy per node, not per rank",
        "The median of `mesh.push({'array': array})` with 64 MiB of random numbers, until every rank has it. Then "
        "every rank sums the array. The number of copies is the sum of the ranks' shares (PSS) of the mapping in "
        "/proc/PID/smaps. The rivals are ipyparallel's `view.push(…, block=True)`, and a Monarch endpoint called with "
        "the array.",
        push,
    ),
    Row(
        "import",
        "`import monarch_nb`",
        "at most 0.2 s, torch not imported",
        "The median of 11 fresh processes. The time with its client ends when `monarch_nb.reserve` is there as well; "
        "it includes the import of grpc.",
        importing,
    ),
]
