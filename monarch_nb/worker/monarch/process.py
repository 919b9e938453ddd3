"""What each process of Monarch's runs on a node:

    python -m monarch_nb.worker.monarch.process

It is Monarch's own bootstrap, in a process whose output is ours. The loop's environment says where that goes. The
process ends with the client that it belongs to: soon when that is on this machine, else when Monarch misses it.
"""

from __future__ import annotations

import os
import runpy
import select
import sys
import threading
import time
from pathlib import Path

from monarch_nb.config import (
    MONARCH_CALLER_VARIABLE,
    MONARCH_CLIENT_VARIABLE,
    MONARCH_NODE_VARIABLE,
    MONARCH_OUTPUT_VARIABLE,
    cadence,
)
from monarch_nb.worker.monarch import census, output

BOOTSTRAP = "monarch._src.actor.bootstrap_main"
GRACE_S = cadence(5.0)
"""Messages that were under way when the client ended have come by then, also on a busy machine."""


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
    """End this process a little after its client has ended, if that is to be seen from here.

    Not sooner: what the client has sent last would find nobody. Monarch's 0.7 returns that to the client, finds nobody
    there either, and ends the worker, with the processes of all other clients.

    Args:
        told: PID:NAMESPACE of the client.
    """
    pid, _, namespace = told.partition(":")
    if str(os.stat("/proc/self/ns/pid").st_ino) != namespace:
        return
    try:
        client = os.pidfd_open(int(pid))
    except ProcessLookupError:
        client = None

    def watch() -> None:
        if client is not None:
            select.select([client], [], [])
        time.sleep(GRACE_S)
        os._exit(0)

    threading.Thread(target=watch, name="monarch_nb client", daemon=True).start()


def main() -> None:
    """Print where the loop says, end with the client, and be what Monarch starts."""
    if told := os.environ.get(MONARCH_CLIENT_VARIABLE, ""):
        end_with_client(told)
    if told := os.environ.get(MONARCH_OUTPUT_VARIABLE, ""):
        rank, _, runs = told.partition(":")
        files = output.Files(Path(runs), int(rank), os.environ.get(MONARCH_CALLER_VARIABLE, ""))
        streams = output.install(files, label)
        directory = output.private_directory(runs) / census.DIRECTORY
        node = os.environ.get(MONARCH_NODE_VARIABLE, "")
        census.install(directory, lambda: output.OfMessage(files, streams), node)
    runpy.run_module(BOOTSTRAP, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
