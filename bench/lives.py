"""The lives of ranks: their start, their memory, their restart, and a hang that they survive."""

from __future__ import annotations

import itertools
import signal
import threading
import time

from bench.harness import (
    RANKS,
    Bench,
    CannotRun,
    Outcome,
    Row,
    Shape,
    alternately,
    compared,
    duration,
    median,
    program,
    seconds,
)
from monarch_nb.client.connections.events import Event, Text
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve

IDLE_RANKS = 32
NODES = 16
HANG_TIMEOUT_S = 60.0
SETTLE_S = 0.5
"""From a rank's last line before the all_reduce until it surely hangs in it."""
_KEEP = "before = model.weight.clone(), id(model)"
_AGAIN = """
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert int(total) == dist.get_world_size()
assert torch.equal(before[0], model.weight) and before[1] == id(model)
"""


def fresh_ranks(bench: Bench) -> Outcome:
    pool = bench.warm_pool(1, RANKS)
    text = program("first_all_reduce.py")

    def ours() -> float:
        began_s = time.perf_counter()
        reservation = reserve("bench", procs=RANKS, pool=pool)
        try:
            reservation.mesh.run(text)
            return time.perf_counter() - began_s
        finally:
            reservation.release()

    def torchruns() -> float:
        began_s = time.time()
        return max(bench.torchrun("first_all_reduce.py", "ended")) - began_s

    ours()
    our_s, their_s = alternately(bench, ours, torchruns)
    return Outcome(duration(our_s), their_s / our_s >= 30, f"torchrun {duration(their_s)}", compared(our_s, their_s))


def many_ranks(bench: Bench) -> Outcome:
    pool = bench.warm_pool(NODES, RANKS)

    def once() -> float:
        began_s = time.perf_counter()
        reservation = reserve("bench", nodes=NODES, procs=RANKS, pool=pool)
        try:
            assert reservation.mesh.run("rank").values == list(range(NODES * RANKS))
            return time.perf_counter() - began_s
        finally:
            reservation.release()

    our_s = median([once() for _ in range(bench.repeats(5, 1))])
    return Outcome(duration(our_s), our_s <= 15)


def idle_memory(bench: Bench) -> Outcome:
    with bench.reserved(1, IDLE_RANKS) as reservation:
        reservation.mesh.run("import torch")
        shares = [info.memory_bytes / 1e6 for info in reservation.mesh.status()]
    bench.say("measuring torchrun")
    theirs = median([kibibytes * 1024 / 1e6 for kibibytes in bench.torchrun("idle.py", "pss")])
    ours = median(shares)
    return Outcome(
        f"{ours:.1f} MB (at most {max(shares):.1f} MB)",
        max(shares) <= 30,
        f"torchrun at {RANKS} ranks {theirs:.0f} MB",
        f"{theirs / ours:.0f} times less",
    )


def restart(bench: Bench) -> Outcome:
    with bench.reserved() as reservation:
        mesh = reservation.mesh
        mesh.run("x = 1")
        our_s = median([seconds(mesh.restart) for _ in range(bench.repeats(15, 5))])
        assert mesh.run("'x' in globals()").values == [False] * RANKS
    return Outcome(duration(our_s), our_s <= 0.12)


def hang(bench: Bench) -> Outcome:
    with bench.reserved() as reservation:
        mesh = reservation.mesh
        our_s, their_s = alternately(bench, lambda: _free_from_hang(mesh), lambda: _kill_and_start_torchrun(bench))
    return Outcome(duration(our_s), our_s <= 1.0, f"torchrun {duration(their_s)}", compared(our_s, their_s))


def _free_from_hang(mesh: Mesh) -> float:
    mesh.run("if dist.is_initialized(): dist.destroy_process_group()")
    hanging, all_hang = set(), threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, Text) and "hangs" in event.text:
            hanging.add(event.rank)
            if len(hanging) == RANKS:
                all_hang.set()

    run = mesh.submit(program("hang.py"), listener=note)
    if not all_hang.wait(HANG_TIMEOUT_S):
        raise CannotRun(f"only {len(hanging)} of {RANKS} ranks came to the all_reduce in {HANG_TIMEOUT_S:g} s")
    time.sleep(SETTLE_S)
    began_s = time.perf_counter()
    report = run.interrupt()
    if len(report.stopped) < RANKS:
        raise CannotRun(f"the interrupt did not free the ranks: {report}")
    mesh.run(_KEEP)
    mesh.run(_AGAIN)
    return time.perf_counter() - began_s


def _kill_and_start_torchrun(bench: Bench) -> float:
    with bench.start_torchrun("hang.py") as process:
        assert process.stdout is not None  # it is a pipe
        hanging = sum(line.startswith("hangs") for line in itertools.islice(process.stdout, RANKS))
        if hanging < RANKS:
            raise CannotRun("torchrun's ranks did not come to the all_reduce")
        time.sleep(SETTLE_S)
        began_s = time.time()
        process.send_signal(signal.SIGTERM)
        process.wait()
    return max(bench.torchrun("first_all_reduce.py", "ended")) - began_s


ROWS = [
    Row(
        "fresh",
        f"{RANKS} fresh ranks, torch imported, to the end of the first all-reduce, against torchrun running the same "
        "program",
        "at least 30 times faster",
        "Ours: the time from the call of `reserve()` on a warm pool that holds nothing to the return of "
        "`mesh.run(program)`, median of 9. It includes leasing, the store, forking and the ranks' first cell. "
        "torchrun: the time from its start to the end of the all-reduce on the last rank, as the ranks print it, "
        "median of 3. The program is `bench/programs/first_all_reduce.py`.",
        fresh_ranks,
    ),
    Row(
        "reserve",
        f"{NODES} local nodes × {RANKS} ranks: reserve to first result of all {NODES * RANKS}",
        "at most 15 s",
        'The time from the call of `reserve()` on a warm pool to the return of `mesh.run("rank")` with every value, '
        "median of 5.",
        many_ranks,
        Shape(NODES, RANKS),
    ),
    Row(
        "memory",
        f"memory of an idle rank (PSS) with torch imported, at {IDLE_RANKS} ranks",
        "at most 30 MB",
        f"The median and the largest PSS of {IDLE_RANKS} ranks on one node, after a first cell. The PSS "
        "(/proc/PID/smaps_rollup) divides shared pages among their users. The rival is a rank of torchrun, where "
        f"{RANKS} ranks share the pages of torch's libraries.",
        idle_memory,
        Shape(1, IDLE_RANKS),
    ),
    Row(
        "restart",
        f"restart of all ranks, {RANKS} on one node",
        "at most 0.12 s",
        "The time of `mesh.restart()` until the new ranks are ready, median of 15. The restarts follow each other, so "
        "ranks of the restart before still end meanwhile. Then a cell shows that the ranks are fresh.",
        restart,
    ),
    Row(
        "hang",
        f"{RANKS} ranks hung in `all_reduce`, from interrupt to the next all-reduce on the same live model (torchrun: "
        "kill and start again)",
        "at most 1 s",
        "Every rank hangs in an `all_reduce`, rank 0 in one of another group (`bench/programs/hang.py`). Ours: "
        "the time from the call of `run.interrupt()` until a cell has initialised the group again, reduced, and found "
        "the same model with the same weights, median of 9. torchrun: SIGTERM, wait until it has ended, start it "
        "again, up to the end of the first all-reduce, without the model, median of 3.",
        hang,
    ),
]
