"""Times of ipyparallel on Slurm, as JSON: `PYTHON ipyparallel_slurm.py NODES PROCS PROGRAM PROFILE_DIRECTORY`.

The seconds from its start to the end of the first all-reduce on the last engine, and of the next in the same engines.
"""

import json
import socket
import sys
import time
from pathlib import Path

import ipyparallel

nodes, procs = map(int, sys.argv[1:3])
text = Path(sys.argv[3]).read_text()
count = nodes * procs

began_s = time.time()
cluster = ipyparallel.Cluster(
    n=count, engines="slurm", controller_ip="127.0.0.1", log_level=40, profile_dir=sys.argv[4]
)
cluster.config.SlurmEngineSetLauncher.batch_template = (
    f"#!/bin/sh\n#SBATCH --nodes={nodes} --ntasks-per-node={procs} --output=/dev/null\nsrun {{program_and_args}}\n"
)
with cluster as client:
    client.wait_for_engines(count, timeout=120)
    view = client[:]

    def once():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        for rank, engine in enumerate(client.ids):
            environment = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            client[engine].execute(
                f"import os\nos.environ.update({ {k: str(v) for k, v in environment.items()} })", block=True
            )
        view.execute(text + "\nended = time.time()\ndist.destroy_process_group()", block=True)
        return max(view.pull("ended", block=True))

    first_s = once() - began_s
    began_s = time.time()
    second_s = once() - began_s
print(json.dumps({"first_s": first_s, "second_s": second_s}))
