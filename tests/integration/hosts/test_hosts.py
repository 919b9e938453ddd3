"""A mesh on hosts of a network: everything that works on one machine works there, encrypted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.hosts.network import Network
from integration.live import eventually
from monarch_nb import list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.config import PATIENCE_VARIABLE
from monarch_nb.errors import NodeUnreachable, SharedStorageError
from monarch_nb.trust.published import published

ALL_REDUCE = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([rank])
dist.all_reduce(total)
dist.destroy_process_group()
int(total)"""


def test_a_mesh_on_two_nodes_of_a_pool(two_nodes: Lab) -> None:
    dev = reserve("dev", nodes=2, procs=2, preload=[])
    assert dev.mesh.run("rank * 2").values == [0, 2, 4, 6]
    assert [info.owner for info in list_reservations()] == ["alice"]
    dev.release()


def test_shared_storage_is_looked_for_by_who_holds_nothing_yet(two_nodes: Lab, tmp_path: Path) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[], shared=tmp_path)
    assert dev.shared == str(tmp_path)
    assert list(tmp_path.iterdir()) == [], "no token is left"
    dev.release()
    with pytest.raises(SharedStorageError, match="host1 can not write there"):
        reserve("dev", nodes=2, procs=1, preload=[], shared=tmp_path / "missing")
    assert list_reservations() == [], "nothing stays leased"


def test_nodes_that_collectives_can_not_connect_to_are_found_before_ranks_hang(
    lab: Lab, network: Callable[[int], Network], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATIENCE_VARIABLE, "1000")  # at the end they do not wait for who has not connected
    first, second, third = network(3).hosts
    lab.start(first)
    lab.start(second, flags=["--interface", "lo"])
    with pytest.raises(NodeUnreachable) as raised:
        reserve("dev", nodes=2, procs=1, preload=[])
    assert f"{first.name} can not connect to {second.name} at 127.0.0.1 port" in str(raised.value)
    assert "allocator --interface" in str(raised.value)
    assert list_reservations() == [], "nothing stays leased"
    assert main(["doctor", "--pool", "lab"]) == 1
    said = capsys.readouterr().out
    assert "network of collectives" in said
    assert f"{first.name}: can not connect to {second.name} at 127.0.0.1" in said
    lab.start(third)
    told: list[str] = []
    dev = reserve("dev", nodes=2, procs=1, preload=[], progress=told.append)
    assert dev.node_names == [first.name, third.name]
    without = f"without {second.name}, as nodes do not reach each other"
    assert without in told
    dev.release()

    told.clear()
    dev = reserve("dev", nodes=1, procs=1, preload=[])
    assert dev.grow(2, progress=told.append).joined == (third.name,)
    assert without in told
    with pytest.raises(NodeUnreachable, match=f"{first.name} can not connect to {second.name}"):
        dev.replace(third.name)
    assert dev.mesh.run("rank").values == [0], "as it was"
    assert dev.node_names == [first.name, third.name]
    dev.release()


def test_the_doctor_says_how_fast_the_network_is(two_nodes: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    reserve("dev", procs=1, preload=[])
    main(["doctor"])
    assert "dev: 1 node × 1 proc" in capsys.readouterr().out
    main(["doctor", "--pool", "lab"])
    said = capsys.readouterr().out
    assert "pool lab: 2 nodes" in said
    assert re.search(r"network between 2 nodes \([\d.,]+ [MGT]B/s at least\)", said)


@pytest.mark.usefixtures("apart")
def test_hosts_that_share_nothing_but_a_network() -> None:
    dev = reserve("dev", nodes=2, procs=2)
    assert dev.mesh.run(ALL_REDUCE).values == [6] * 4
    dev.release()


def test_allocators_that_publish_themselves_are_found(lab: Lab, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    allocator = lab.start(flags=["--publish", str(nodes)])
    lab.forget_addresses()
    assert main(["pool", "add", "lab", str(nodes)]) == 0
    eventually(lambda: published(nodes))
    dev = reserve("dev", procs=1, preload=[])
    assert dev.mesh.run("rank").values == [0]
    dev.release()
    lab.end()
    assert published(nodes) == [], f"{allocator.node_id} has ended as it should"
