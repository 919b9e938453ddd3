"""What each process of Monarch's runs on a node:

    python -m monarch_nb.worker.monarch.process

It is Monarch's own bootstrap, in a process whose output is ours. The loop's environment says where that goes. The
process ends with the client that it belongs to: at once when that is on this machine, else when Monarch misses it.
"""

from __future__ import annotations

import os
import runpy
import select
import sys
import threading
from pathlib import Path

from monarch_nb.config import MONARCH_CALLER_VARIABLE, MONARCH_CLIENT_VARIABLE, MONARCH_OUTPUT_VARIABLE
from monarch_nb.worker.monarch import census, output

BOOTSTRAP = "monarch._src.actor.bootstrap_main"


def label() -> str:
    """Return who prints now: an actor and its rank among those of its name, else this process."""
    actor_mesh = sys.modules.get("monarch._src.actor.actor_mesh")
    here = actor_mesh._context.get() if actor_mesh is not None else None
    if here is None:
        return f"[pid {os.getpid()}] "
    instance = here.actor_instance
    point = instance.rank
    return f"[{instance.name} {point.rank}/{max(1, point.extent.nelements)}] "


def end_with_client(told: str) -> None:
    """End this process when its client has ended, if that is to be seen from here.

    Args:
        told: PID:NAMESPACE of the client.
    """
    pid, _, namespace = told.partition(":")
    if str(os.stat("/proc/self/ns/pid").st_ino) != namespace:
        return
    try:
        client = os.pidfd_open(int(pid))
    except ProcessLookupError:
        os._exit(0)

    def watch() -> None:
        select.select([client], [], [])
        os._exit(0)

    threading.Thread(target=watch, name="monarch_nb client", daemon=True).start()


def main() -> None:
    """Print where the loop says, end with the client, and be what Monarch starts."""
    if told := os.environ.get(MONARCH_CLIENT_VARIABLE, ""):
        end_with_client(told)
    if told := os.environ.get(MONARCH_OUTPUT_VARIABLE, ""):
        rank, _, runs = told.partition(":")
        output.install(output.Files(Path(runs), int(rank), os.environ.get(MONARCH_CALLER_VARIABLE, "")), label)
        census.install(output.private_directory(runs) / census.DIRECTORY)
    runpy.run_module(BOOTSTRAP, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
