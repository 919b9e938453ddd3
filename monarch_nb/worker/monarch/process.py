"""What each process of Monarch's runs on a node:

    python -m monarch_nb.worker.monarch.process

It is Monarch's own bootstrap, in a process whose output is ours. The loop's environment says where that goes.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from monarch_nb.config import MONARCH_OUTPUT_VARIABLE
from monarch_nb.worker.monarch.output import Files, install

BOOTSTRAP = "monarch._src.actor.bootstrap_main"


def label() -> str:
    """Return who prints now: an actor and its rank among those of its name, else this process."""
    from monarch._src.actor import actor_mesh

    here = actor_mesh._context.get()
    if here is None:
        return f"[pid {os.getpid()}] "
    instance = here.actor_instance
    point = instance.rank
    return f"[{instance.name} {point.rank}/{max(1, point.extent.nelements)}] "


def main() -> None:
    """Print where the loop says, then be what Monarch starts."""
    if told := os.environ.get(MONARCH_OUTPUT_VARIABLE, ""):
        rank, _, runs = told.partition(":")
        install(Files(Path(runs), int(rank)), label)
    runpy.run_module(BOOTSTRAP, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
