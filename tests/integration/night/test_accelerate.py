"""accelerate, and Transformers' Trainer upon it, unmodified, in cells and scripts of 2 ranks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from integration.live import Recorder, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import RunFailed

pytestmark = [
    pytest.mark.shape(nodes=1, procs=2),
    pytest.mark.skipif(find_spec("accelerate") is None, reason="there is no accelerate"),  # ranks import it
]

TRAIN = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

def train(**options):
    accelerator = Accelerator(**options)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    x = torch.rand(32, 8, generator=torch.Generator().manual_seed(1))
    model, optimizer, data = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4)
    )
    for x, y in data:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    return accelerator.num_processes, accelerator.process_index - rank, len(data), weights
"""


@pytest.fixture(scope="module")
def prepared(dev: Reservation) -> Mesh:
    """Two ranks, which have `train`."""
    dev.mesh.run(TRAIN)
    return dev.mesh


def test_the_accelerator_takes_all_ranks(prepared: Mesh) -> None:
    first, second = prepared.run("train()").values
    assert first == second
    assert first[:3] == (2, 0, 4)
    assert prepared.run("train()").values == [first, first]


def test_an_accelerator_after_its_group_was_destroyed_or_interrupted(prepared: Mesh) -> None:
    trained = prepared.run("train()").values
    assert prepared.run("dist.destroy_process_group()\ntrain()").values == trained
    run, _ = started(prepared, "import threading\ndist.barrier() if rank else threading.Event().wait(600)")
    prepared.interrupt()
    with pytest.raises(RunFailed):
        run.result(60)
    assert prepared.run("train()").values == trained


def test_its_own_test_script(prepared: Mesh) -> None:
    for _ in range(2):
        recorder = Recorder()
        prepared.run_script("accelerate.test_utils.scripts.test_script", module=True, listener=recorder)
        assert "Training integration test" in recorder.text(0), recorder.text(0)


def test_transformers_trainer(prepared: Mesh, tmp_path: object) -> None:
    pytest.importorskip("transformers")
    code = f"""
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import is_in_notebook

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
data = [{{"input_ids": ids, "labels": ids}} for ids in torch.randint(32, (16, 8))]
arguments = TrainingArguments({str(tmp_path)!r}, max_steps=4, per_device_train_batch_size=2, report_to=[],
                              save_strategy="no", disable_tqdm=True, logging_strategy="no")
trainer = Trainer(model, arguments, train_dataset=data)
trainer.train()
weights = sum(parameter.double().sum().item() for parameter in model.parameters())
is_in_notebook(), arguments.world_size, type(trainer.model_wrapped).__name__, weights
"""
    first, second = prepared.run(code).values
    assert first == second
    assert first[:3] == (False, 2, "DistributedDataParallel")
    assert prepared.run(code).values == [first, first]
