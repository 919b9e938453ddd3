# `many_values.py CELLS`: reserve a pool of many_nodes.py, run cells that return a value on it as a notebook does, and
# print as JSON what processor time they took of this process: equal numbers on all ranks, different ones, and dicts of
# three; and what the notebook's file holds of them. Run with MONARCH_NB_HOME set, in a directory of its own.
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.notebook.output.publishing import call_later
from monarch_nb.notebook.output.view import RunView
from monarch_nb.provision import provisioner

CELLS = {
    "equal": "2.31",
    "different": "2.31+rank/7",
    "dicts": "{'loss':2.31+rank/7,'acc':rank/1024,'step':5}",
}
PROCS = 8


def shown(mesh: Mesh, code: str) -> dict[str, str]:
    """Run a cell as a notebook does; return what it shows in the end."""
    bundles: list[dict[str, str]] = []
    publish: Callable[..., Any] = lambda bundle, update: bundles.append(bundle)  # noqa: E731
    view = RunView(mesh.ranks, publish, call_later)
    try:
        run = mesh.submit(code, listener=view.on_event, want_value=False)
        view.hosts = mesh.core.hosts(mesh.ranks)
        run.wait()
    finally:
        view.close()
    run.collected()
    return bundles[-1]


def main(cells: int) -> None:
    nodes = len(provisioner().nodes())
    reservation = reserve("bench", nodes=nodes, procs=PROCS, directory=Path.cwd())
    mesh = reservation.mesh
    found: dict[str, Any] = {}
    for name, code in CELLS.items():
        spent: list[float] = []
        for _ in range(cells + 2):
            began_s = time.process_time()
            bundle = shown(mesh, code)
            spent.append(time.process_time() - began_s)
        found[name] = {
            "spent_s": statistics.median(spent[2:]),
            "rows": len(bundle["text/plain"].splitlines()),
            "stored_bytes": len(json.dumps(bundle)),
        }
    print(json.dumps(found), flush=True)
    reservation.release()


main(int(sys.argv[1]))
