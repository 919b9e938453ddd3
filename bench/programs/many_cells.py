# `many_cells.py CELLS FIRST_PID OTHERS_PID`: reserve a pool of many_nodes.py, run cells on it, and print as JSON what
# processor time they took of this process, and of the two that the allocators are in. Run with MONARCH_NB_HOME set, in
# a directory of its own.
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from processor_time import used_s

from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision import provisioner

FEW = 8
FLOOD_LOOKS = 20
FLOODS = 3
IDLE_S = 10.0
UNUSED_S = 35.0
"""After that connections on which nothing is under way are closed."""


def spent_s(function: Callable[[], object], times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - began_s) / times


def run_listening(mesh: Mesh, code: str) -> None:
    """Run a cell as a notebook does, which hears of what is printed."""
    told: list[events.Event] = []
    mesh.run(code, listener=told.append)


def main(cells: int, *pids: int) -> None:
    first, others = pids
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
    others_before_s, of_client, of_first = used_s(others), list[float](), list[float]()
    for _ in range(cells):
        before_s = used_s(first)
        of_client.append(spent_s(lambda: mesh.run("pass"), 1))
        of_first.append(used_s(first) - before_s)
    found["empty"], found["first"] = statistics.median(of_client), statistics.median(of_first)
    found["other"] = (used_s(others) - others_before_s) / cells / (nodes - 1)

    def change() -> None:
        module.write_text(f"number = {time.monotonic_ns()}\n")
        mesh.run("pass")

    found["changed"] = spent_s(change, max(3, cells // 3))
    found["line"] = spent_s(lambda: run_listening(mesh, "print all is well"), max(3, cells // 3))
    floods: dict[str, list[float]] = {"flood": [], "flood_few": []}
    for _ in range(FLOODS):
        for name, ranks in (("flood", mesh), ("flood_few", mesh.select(range(FEW)))):
            floods[name].append(spent_s(partial(run_listening, ranks, f"flood {FLOOD_LOOKS}"), 1))
    found |= {name: statistics.median(spent) for name, spent in floods.items()}
    time.sleep(UNUSED_S)
    began_s = time.process_time()
    time.sleep(IDLE_S)
    found["idle"] = (time.process_time() - began_s) / IDLE_S
    print(json.dumps(found), flush=True)
    reservation.release()


main(*map(int, sys.argv[1:]))
