"""A mesh on hosts of a network: everything that works on one machine works there, encrypted."""

from __future__ import annotations

from collections.abc import Callable

from lab import Lab
from monarch_nb import list_reservations, reserve
from network import Network

ALL_REDUCE = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([rank])
dist.all_reduce(total)
dist.destroy_process_group()
int(total)"""


def test_a_mesh_on_two_nodes_of_a_pool(two_nodes: Lab) -> None:
    dev = reserve("dev", nodes=2, procs=2)
    assert dev.mesh.run("rank * 2").values == [0, 2, 4, 6]
    assert dev.mesh.run(ALL_REDUCE).values == [6] * 4
    assert [info.owner for info in list_reservations()] == ["alice"]
    dev.release()


def test_hosts_that_share_nothing_but_a_network(lab: Lab, network: Callable[[int], Network], tmp_path: object) -> None:
    for host in network(2).hosts:
        lab.start(host)
    dev = reserve("dev", nodes=2, procs=2)
    assert dev.mesh.run(ALL_REDUCE).values == [6] * 4
    dev.release()
