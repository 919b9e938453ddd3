"""The store of a mesh dies: another one takes its place, and the ranks keep everything."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import monarch_nb
from integration.live import kill
from monarch_nb.config import NodePaths
from monarch_nb.proto.state_pb2 import MeshRecord
from monarch_nb.provision import Node

SUM = "total = torch.ones(1); dist.all_reduce(total); total.item()"


def store_of(node: Node, mesh_id: str) -> MeshRecord:
    with sqlite3.connect(NodePaths(node.directory).database) as database:
        rows = database.execute("SELECT body FROM record WHERE kind = 'mesh' AND key = ?", (mesh_id,))
        return MeshRecord.FromString(next(rows)[0])


def test_groups_are_formed_again_after_the_store_was_killed(shared_pool: list[Node], tmp_path: Path) -> None:
    dev = monarch_nb.reserve("store", nodes=1, procs=2, directory=tmp_path)
    try:
        kept = "import torch; kept = torch.full((1,), float(rank)); dist.init_process_group('gloo'); "
        assert dev.mesh.run(kept + SUM).values == [2.0, 2.0]
        kill(store_of(shared_pool[0], dev.mesh.id).store.pid)
        again = "dist.destroy_process_group(); dist.init_process_group('gloo'); " + SUM + " + kept.item()"
        assert dev.mesh.run(again).values == [2.0, 3.0]
    finally:
        dev.release()
