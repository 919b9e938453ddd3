# `many_cells.py CELLS FIRST_PID OTHERS_PID`: reserve a pool of many_nodes.py, run cells on it, and print as JSON what
# processor time they took of this process, and of the two that the allocators are in. Run with MONARCH_NB_HOME set, in
# a directory of its own.
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import reserve
from monarch_nb.provision import provisioner

FEW = 8
FLOOD_LOOKS = 20
IDLE_S = 10.0
UNUSED_S = 35.0
"""After that connections on which nothing is under way are closed."""


def spent_s(function: Callable[[], object], times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - began_s) / times


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def run_listening(mesh: Mesh, code: str) -> None:
    """Run a cell as a notebook does, which hears of what is printed."""
    told: list[events.Event] = []
    mesh.run(code, listener=told.append)


def main(cells: int, *pids: int) -> None:
    allocators = [psutil.Process(pid) for pid in pids]
    nodes = len(provisioner().nodes())
    module = Path("module.py")
    module.write_text("number = 0\n")
    began_s = time.process_time()
    reservation = reserve("bench", nodes=nodes, procs=1, directory=Path.cwd())
    found = {"reserve": time.process_time() - began_s}
    mesh = reservation.mesh
    mesh.run("pass")
    reservation.sync()
    spent_s(lambda: mesh.run("pass"), 3)
    if mesh.run("rank").values != list(range(nodes)):
        raise SystemExit("wrong values")
    before = [used_s(process) for process in allocators]
    found["empty"] = statistics.median(spent_s(lambda: mesh.run("pass"), 1) for _ in range(cells))
    found["first"], others = ((used_s(one) - was) / cells for one, was in zip(allocators, before, strict=True))
    found["other"] = others / (nodes - 1)

    def change() -> None:
        module.write_text(f"number = {time.monotonic_ns()}\n")
        mesh.run("pass")

    found["changed"] = spent_s(change, max(3, cells // 3))
    found["line"] = spent_s(lambda: run_listening(mesh, "print all is well"), max(3, cells // 3))
    found["flood"] = spent_s(lambda: run_listening(mesh, f"flood {FLOOD_LOOKS}"), 1)
    found["flood_few"] = spent_s(lambda: run_listening(mesh.select(range(FEW)), f"flood {FLOOD_LOOKS}"), 1)
    time.sleep(UNUSED_S)
    began_s = time.process_time()
    time.sleep(IDLE_S)
    found["idle"] = (time.process_time() - began_s) / IDLE_S
    print(json.dumps(found), flush=True)
    reservation.release()


main(*map(int, sys.argv[1:]))
