"""What Lightning asks of a rank, and what it is told when arguments contradict the mesh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.config import RANK_TOKEN_VARIABLE
from monarch_nb.integrations import lightning
from monarch_nb.integrations.lightning import PATCHES, MeshEnvironment

PLACE = {"RANK": 6, "WORLD_SIZE": 8, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4, "NODE_RANK": 1, "MASTER_PORT": 29500}


@pytest.fixture(autouse=True)
def rank_6_of_2_times_4(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv(RANK_TOKEN_VARIABLE, "t")
    monkeypatch.delenv("LT_NUM_NODES", raising=False)


def test_the_mesh_as_lightning_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = MeshEnvironment()
    assert (mesh.world_size(), mesh.global_rank(), mesh.local_rank(), mesh.node_rank()) == (8, 6, 2, 1)
    assert (mesh.main_address, mesh.main_port, mesh.creates_processes_externally) == ("10.0.0.1", 29500, True)
    mesh.set_global_rank(3)
    mesh.set_world_size(8)
    mesh.validate_settings(4, 2)
    mesh.teardown()
    assert (mesh.global_rank(), mesh.detect()) == (6, True)
    monkeypatch.delenv(RANK_TOKEN_VARIABLE)
    assert not mesh.detect()


def test_another_size_than_is_held() -> None:
    with pytest.raises(
        ValueError, match=r"has 8 ranks \(nodes × ranks: 2 × 4\), but .* is 4: .*devices=4, num_nodes=2"
    ):
        MeshEnvironment().set_world_size(4)


def test_another_shape_of_the_same_size() -> None:
    for devices, nodes in ((8, 1), (1, 8), (2, 4)):
        with pytest.raises(ValueError, match=f"but devices={devices} and num_nodes={nodes}: leave both out"):
            MeshEnvironment().validate_settings(devices, nodes)


def test_a_cell_on_some_ranks() -> None:
    lightning.begin_run([0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"this cell runs on ranks 0-3, and Lightning trains on all 8 .*%mesh run -t"):
        MeshEnvironment().set_world_size(4)
    lightning.begin_run([])
    MeshEnvironment().set_world_size(8)


def fabric(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Fabric:
        def __init__(self, accelerator: str = "auto", *, devices: str = "auto", num_nodes: int = 1) -> None:
            self.arguments = accelerator, devices, num_nodes

        @staticmethod
        def _get_distributed_sampler(_: object, **options: Any) -> dict[str, Any]:
            return options

    PATCHES["lightning.fabric.fabric"](SimpleNamespace(Fabric=Fabric))
    return Fabric


def test_fabric_is_on_all_nodes_unless_it_is_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    make = fabric(monkeypatch)
    assert make("cpu", devices="2").arguments == ("cpu", "2", 2)
    assert make(num_nodes=1).arguments == ("auto", "auto", 1)
    monkeypatch.setenv("LT_NUM_NODES", "1")
    assert make().arguments == ("auto", "auto", 1)


def test_samplers_have_the_seed_that_was_given_or_else_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = fabric(monkeypatch)._get_distributed_sampler
    monkeypatch.setitem(lightning.sys.modules, "torch.distributed", SimpleNamespace(is_initialized=lambda: False))  # type: ignore[arg-type]
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert sampler("data") == {"seed": 7}
    assert sampler("data", seed=3, shuffle=True) == {"seed": 3, "shuffle": True}


def test_only_rank_0_speaks_where_lightning_was_imported_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(rank_zero_only=SimpleNamespace(rank=0))
    monkeypatch.setitem(lightning.sys.modules, "lightning_utilities.core.rank_zero", module)  # type: ignore[arg-type]
    lightning.become_rank()
    assert module.rank_zero_only.rank == 6
