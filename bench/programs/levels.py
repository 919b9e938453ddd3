# `levels.py TURNS PID…`: run empty cells on a pool of many_nodes.py, one process for each node, and print as JSON what
# each shape takes, by shape and in turns: all nodes directly below the first, a tree, and a chain, each of whose nodes
# is a hop further away. Run with MONARCH_NB_HOME set, in a directory of its own.
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

from processor_time import used_s

from monarch_nb.client.connections import session
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve

CELLS = 5
CHAIN_NODES = 16
"""A longer one says no more, and takes long."""
COLLECTED_S = 0.6
"""After that nodes have been told that the results have come, and nothing is under way."""
UNUSED_S = 35.0
"""After that connections on which nothing is under way are closed."""


def meshes(nodes: int) -> dict[str, Mesh]:
    ways = {"star": (nodes, session.FAN_OUT), "tree": (1, session.FAN_OUT)}
    if nodes <= CHAIN_NODES:
        ways["chain"] = (1, 1)
    found = {}
    for way, (session.FEW_NODES, session.FAN_OUT) in ways.items():
        found[way] = reserve(way, nodes=nodes, procs=1, directory=Path.cwd()).mesh
        if found[way].run("rank").values != list(range(nodes)):
            raise SystemExit("wrong values")
    return found


def main(turns: int, pids: list[int]) -> None:
    by_way = meshes(len(pids))
    time.sleep(UNUSED_S)
    taken: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in by_way}
    for _ in range(turns):
        for way, mesh in by_way.items():
            mesh.run("pass")
            nodes_s, client_s, began_s = list(map(used_s, pids)), time.process_time(), time.perf_counter()
            for _ in range(CELLS):
                mesh.run("pass")
            taken[way]["latency"].append((time.perf_counter() - began_s) / CELLS)
            taken[way]["client"].append((time.process_time() - client_s) / CELLS)
            spent_s = [used_s(pid) - before_s for pid, before_s in zip(pids, nodes_s, strict=True)]
            taken[way]["nodes"].append(sum(spent_s) / CELLS)
            taken[way]["first"].append(spent_s[0] / CELLS)
            time.sleep(COLLECTED_S)
    print(json.dumps(taken))


main(int(sys.argv[1]), [*map(int, sys.argv[2:])])
