"""Lightning, unmodified, in cells and scripts on 2 nodes × 2 ranks, whose templates have imported it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from integration.live import Recorder, started
from integration.test_lightning import MODEL, same, values
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import RunFailed
from monarch_nb.provision import Node

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="there is no lightning")  # ranks import it


@pytest.fixture(scope="module")
def held(shared_pool: list[Node]) -> Iterator[Reservation]:
    reservation = reserve("lightning", nodes=2, procs=2, preload=["torch", "lightning"])
    reservation.mesh.run(MODEL)
    yield reservation
    reservation.release()


@pytest.fixture
def mesh(held: Reservation) -> Mesh:
    return held.mesh


def test_defaults_and_arguments_mean_the_mesh(mesh: Mesh) -> None:
    facts = "type(trainer.strategy).__name__, trainer.world_size, type(trainer.train_dataloader.sampler).__name__"
    strategy, world_size, sampler, steps, trained = same(
        mesh, f"trainer, model = fit()\n{facts}, len(model.losses), weights(model)"
    )
    assert (strategy, world_size, sampler, steps) == ("DDPStrategy", 4, "DistributedSampler", 4)
    explicit = (
        "devices=2, num_nodes=2, strategy='ddp'",
        "devices='auto', accelerator='auto'",
        "strategy='ddp_notebook'",
    )
    for arguments in explicit:
        assert same(mesh, f"weights(fit({arguments})[1])") == trained
    assert values(mesh, "trainer.global_rank, trainer.local_rank, trainer.node_rank") == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1),
    ]  # fmt: skip


def test_a_fit_after_its_group_was_destroyed(mesh: Mesh) -> None:
    same(mesh, "fit()\ndist.destroy_process_group()\nfit()\ndist.get_world_size()")


def test_fabric_and_uneven_data(mesh: Mesh) -> None:
    code = """
from torch.distributed.algorithms.join import Join
fabric = L.Fabric()
fabric.launch()
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
data = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.rand(16, 8))))
steps = 0
with Join([net._forward_module]):
    for batch, in list(data) * (1 + rank % 2):
        optimizer.zero_grad()
        fabric.backward(net(batch).mean())
        optimizer.step()
        steps += 1
total = fabric.all_reduce(1.0 * rank, reduce_op="sum").item()
fabric.world_size, type(data.sampler).__name__, steps, weights(net), total
"""
    told = values(mesh, code)
    assert {(world_size, sampler, total) for world_size, sampler, _, _, total in told} == {
        (4, "DistributedSampler", 6.0)
    }
    assert [steps for _, _, steps, _, _ in told] == [4, 8, 4, 8]
    assert len({trained for *_, trained, _ in told}) == 1


def test_the_tuner(mesh: Mesh) -> None:
    code = """
from lightning.pytorch.tuner import Tuner
model = Regression()
Tuner(L.Trainer(**quiet, max_epochs=1)).lr_find(model, num_training=4, early_stop_threshold=None).results["lr"]
"""
    assert len(same(mesh, code)) == 4
    code = """
model = Regression()
alone = L.Trainer(**quiet, max_epochs=1, devices=1, num_nodes=1)  # Lightning has no such search on several ranks
Tuner(alone).scale_batch_size(model, max_trials=2, steps_per_trial=1), model.hparams.batch_size
"""
    size, kept = same(mesh, code)
    assert size == kept >= 4


def test_a_cell_on_a_part_of_the_mesh(mesh: Mesh) -> None:
    with pytest.raises(RunFailed, match="this cell runs on ranks 0-1, and Lightning trains on all 4 of the mesh"):
        mesh.slice(hosts=0).run("L.Trainer(devices=2, num_nodes=1, strategy='ddp')")
    assert mesh.select(3).run("fit(devices=1, num_nodes=1)[0].world_size").values == [1]


@pytest.mark.parametrize(
    "variables",
    [
        "SLURM_NTASKS=2 SLURM_JOB_NAME=train SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
        "LSB_JOBID=7 LSB_DJOB_RANKFILE=/none JSM_NAMESPACE_LOCAL_RANK=0 JSM_NAMESPACE_SIZE=2",
    ],
    ids=["Slurm", "LSF"],
)
def test_inside_an_allocation(mesh: Mesh, variables: str) -> None:
    code = f"""
import os
allocation = {dict(each.split("=") for each in variables.split())}
os.environ.update(allocation)
chosen = [type(made.strategy.cluster_environment).__name__ for made in (L.Trainer(**quiet), L.Fabric())]
trained = weights(fit()[1])
for name in allocation:
    del os.environ[name]
*chosen, trained == weights(fit()[1])
"""
    assert same(mesh, code) == ("MeshEnvironment", "MeshEnvironment", True)


def test_the_other_packages_of_lightning(mesh: Mesh) -> None:
    code = """
import lightning_fabric, pytorch_lightning
trainer, fabric = pytorch_lightning.Trainer(**quiet), lightning_fabric.Fabric()
trainer.world_size, fabric.world_size, type(trainer.strategy.cluster_environment).__name__
"""
    assert same(mesh, code) == (4, 4, "MeshEnvironment")


def test_lightning_finds_a_scripts_process_and_its_rank(mesh: Mesh) -> None:
    code = """
from lightning.fabric.utilities.imports import _IS_INTERACTIVE
from lightning.pytorch.utilities import rank_zero_only
_IS_INTERACTIVE, rank_zero_only.rank - rank
"""
    mesh.restart([3])  # settled when the template imported it, and again after each fork
    mesh.select(3).run(MODEL)
    assert same(mesh, code) == (False, 0)


@pytest.mark.parametrize(
    "waits", ["threading.Event().wait(600)", "dist.barrier() if rank else threading.Event().wait(600)"]
)
def test_a_fit_after_an_interrupted_one(mesh: Mesh, waits: str) -> None:
    trained = same(mesh, "weights(fit()[1])")
    code = f"""
import threading
class Waits(Regression):
    def training_step(self, batch, index):
        if index == 2:
            print("\\x02waits")
            {waits}
        return super().training_step(batch, index)
fit(Waits())
"""
    run, recorder = started(mesh, code)
    recorder.wait_for_text("\x02waits", 4)
    mesh.interrupt()
    with pytest.raises(RunFailed) as failed:
        run.result(60)
    assert {failure.kind for failure in failed.value.failures.values()} == {"interrupted"}
    assert same(mesh, "weights(fit()[1])") == trained


@pytest.mark.parametrize("trainer", ["L.Trainer(max_epochs=1, **quiet).fit(model, data)", "by_hand()"])
def test_a_rank_that_was_restarted_takes_its_own_part_of_the_data(mesh: Mesh, trainer: str) -> None:
    code = """
from lightning.pytorch.utilities import rank_zero_only
import logging
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
class Seeing(Regression):
    def __init__(self):
        super().__init__()
        self.seen = []
    def training_step(self, batch, index):
        self.seen += batch.tolist()
        return self.net(torch.zeros(1, 8)).sum()
def by_hand():
    fabric = L.Fabric()
    fabric.launch()
    for batch in fabric.setup_dataloaders(data):
        model.seen += batch.tolist()
model, data = Seeing(), torch.utils.data.DataLoader(range(16), shuffle=True)
"""
    mesh.run("L.seed_everything(3)")
    mesh.restart([1])  # which knows nothing of the seed
    mesh.select(1).run(MODEL)
    seen = mesh.run(f"{code}\n{trainer}\nmodel.seen").values
    assert sorted(each for part in seen for each in part) == list(range(16))


def test_a_script(mesh: Mesh, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"{MODEL}\ntrainer, model = fit()\nprint(trainer.world_size, weights(model))\n")
    trained = same(mesh, "import os; os.environ.pop('PL_GLOBAL_SEED', None)\nweights(fit()[1])")
    recorder = Recorder()
    mesh.run_script(str(program), listener=recorder)
    assert recorder.text(0) == f"4 {trained}\n"
    recorder = Recorder()
    mesh.slice(hosts=1).run_script(str(program), listener=recorder)
    assert recorder.text(2).startswith("2 ")
