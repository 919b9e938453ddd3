"""A pool in one process, on a clock of its own: real allocator nodes and the real client, with scripted ranks between.

What is not real: processes (a rank is a namespace in this process), the network (`Wire` takes serialized messages from
a client's stub to a node's service) and time. The clock stands still while anything is to be done, and then jumps to
whatever is due next: an hour takes a millisecond, and what happens is the same every time. People call the synchronous
API as ever: it runs the loop while it waits.

    with Cluster(nodes=2, procs=2) as cluster:
        ann = cluster.client("ann")
        dev = ann.reserve("dev", nodes=2, procs=2, time="1h")
        dev.mesh.run("rank * 2").values
        late = ann.does(ann.reserve, "late", nodes=2, procs=2, wait=True)   # beside the test, as another kernel would
        cluster.sleep(3600)
        late.result()
        cluster.nodes[0].cut()                                              # its network is away, until mend()

The fixture `make` of tests/unit/cluster makes clusters: `make(2, 2)`. What a cell does takes real time, so that it
should not sleep.
"""

from cluster.clock import Work
from cluster.pool import Client, Cluster, Machine

__all__ = ["Client", "Cluster", "Machine", "Work"]
