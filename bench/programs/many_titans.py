# `many_titans.py FILE`: reserve a pool of many_nodes.py, let its stand-ins print what is recorded in FILE, show it as a
# cell does, and print as JSON how many rows that has, what marks they have, and what processor time this process took.
# Run with MONARCH_NB_HOME set, in a directory of its own.
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.notebook.output.publishing import call_later
from monarch_nb.notebook.output.rows import TextRow
from monarch_nb.notebook.output.view import RunView
from monarch_nb.provision import provisioner

PROCS = 8


def main(recorded: str) -> None:
    reservation = reserve("bench", nodes=len(provisioner().nodes()), procs=PROCS, directory=Path.cwd())
    mesh = reservation.mesh
    bundles: list[dict[str, str]] = []
    publish: Callable[..., Any] = lambda bundle, update: bundles.append(bundle)  # noqa: E731
    view = RunView(mesh.ranks, publish, call_later)
    began_s = time.process_time()
    run = mesh.submit(f"replay {recorded}", listener=view.on_event, want_value=False)
    run.wait()
    view.close()
    spent_s = time.process_time() - began_s
    rows = [row for row in view._fold.rows() if isinstance(row, TextRow)]
    found = {
        "ranks": len(mesh.ranks),
        "rows": len(rows),
        "marked": [row.text.rpartition("  ")[2] for row in rows if row.is_marked],
        "stored_bytes": len(json.dumps(bundles[-1])),
        "spent_s": spent_s,
        "lines": sum(row.ranks.bit_count() for row in rows),
    }
    print(json.dumps(found), flush=True)
    run.collected()
    reservation.release()


main(sys.argv[1])
