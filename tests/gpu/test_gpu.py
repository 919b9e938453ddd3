"""What only a real GPU and its driver can show. One GPU is enough."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

from integration.live import eventually, parent_of, started
from monarch_nb.actor import Actor, endpoint
from monarch_nb.cli.main import main
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import CapacityError, RunFailed
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision import Node
from monarch_nb.worker.shell.facts import WHOLE_ELEMENTS, facts_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import
GIB = 1 << 30
TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = model(torch.ones(8, 64, device=device)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
dist.destroy_process_group()
del model
loss.item()
"""


def readings() -> pb.NodeReadings:
    [(_, reply)] = call(pool_named(None).ask(readings=True))
    return reply.readings


def test_only_ranks_open_the_gpu(mesh: Mesh) -> None:
    """The template that they are forked from has torch, and no CUDA: else they could not use it."""
    assert mesh.run("import torch; torch.cuda.is_initialized(), str(device)").values == [(False, "cuda:0")]
    assert mesh.run("float(torch.ones(3, device=device).sum()), torch.cuda.is_initialized()").values == [(3.0, True)]
    [rank] = mesh.status()
    assert rank.gpu_indices == (0,)
    assert "/dev/nvidia" in "".join(_open_files(rank.pid))
    assert "/dev/nvidia-uvm" not in "".join(_open_files(parent_of(rank.pid)))


def _open_files(pid: int) -> list[str]:
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_memory_is_told_and_a_restart_frees_it(mesh: Mesh) -> None:
    before = readings().gpus[0].memory_used_bytes
    mesh.run(f"import torch; kept = torch.empty({8 * GIB}, dtype=torch.uint8, device=device)")
    eventually(lambda: readings().gpus[0].memory_used_bytes > before + 8 * GIB)
    mesh.restart()
    eventually(lambda: readings().gpus[0].memory_used_bytes < before + GIB)


def test_too_much_memory_is_an_error_from_which_a_rank_recovers(mesh: Mesh) -> None:
    with pytest.raises(RunFailed, match="OutOfMemoryError: CUDA out of memory"):
        mesh.run(
            f"""
            import torch
            def grow():
                held = []
                while True:
                    held.append(torch.empty({GIB}, dtype=torch.uint8, device=device))
            grow()
            """
        )
    most = mesh.run("torch.cuda.empty_cache(); torch.cuda.mem_get_info()").values[0]
    assert most[0] > most[1] * 0.8, "what the failed frames held is free"


def test_an_interrupt_reaches_code_that_launches_kernels(mesh: Mesh) -> None:
    mesh.run("import torch; a = torch.randn(2048, 2048, device=device)")
    run, _ = started(mesh, "while True:\n    b = a @ a")
    run.interrupt()
    with pytest.raises(RunFailed, match="KeyboardInterrupt"):
        run.result(60)
    assert mesh.run("torch.cuda.synchronize(); tuple(a.shape)").values == [(2048, 2048)]


def test_a_lost_context_says_what_helps(mesh: Mesh) -> None:
    outside = "import torch\ntorch.zeros(4, device=device)[torch.tensor([99], device=device)]\ntorch.cuda.synchronize()"
    with pytest.raises(RunFailed, match=r"use its GPU any more: %mesh restart -t 0"):
        mesh.run(outside)
    with pytest.raises(RunFailed, match=r"use its GPU any more: %mesh restart -t 0"):
        mesh.run("torch.ones(2, device=device).sum().item()")
    mesh.restart([0])
    assert mesh.run("import torch; torch.ones(2, device=device).sum().item()").values == [2.0]


def test_training_with_nccl_again_and_again(mesh: Mesh) -> None:
    losses = {mesh.run(TRAIN).values[0] for _ in range(5)}
    assert all(loss > 0 for loss in losses)


class Adder(Actor):
    @endpoint
    def add(self, given: torch.Tensor) -> tuple[str, torch.Tensor]:
        return str(given.device), given + 1


class Asker(Actor):
    @endpoint
    def ask(self, others: Adder) -> tuple[str, torch.Tensor]:
        told: tuple[str, torch.Tensor] = others.add.call_one(torch.ones(2, device="cuda")).get()
        return told


def test_tensors_travel_without_a_gpu_of_the_client(mesh: Mesh) -> None:
    """They arrive in its memory, views as they were; it opens no GPU. A module comes whole."""
    value = mesh.run("import torch; torch.arange(200_000, device=device).reshape(2, -1).T").values[0]
    assert (value.device.type, value.shape, value.stride()) == ("cpu", (100_000, 2), (1, 100_000))
    assert value[3].tolist() == [3, 100_003]
    model = mesh.run("torch.nn.Linear(3, 4).to(device)").values[0]
    assert isinstance(model.weight, torch.nn.Parameter)
    assert model(torch.ones(1, 3)).shape == (1, 4)
    adders = mesh.spawn("adders", Adder)
    device, given = adders.add.call_one(torch.ones(2)).get()
    assert (device, given.tolist()) == ("cpu", [2.0, 2.0])
    assert not torch.cuda.is_initialized()


def test_a_tensor_on_a_gpu_is_on_the_gpu_of_the_rank_that_gets_it(mesh: Mesh) -> None:
    """From an actor to another."""
    adders, askers = mesh.spawn("adders", Adder), mesh.spawn("askers", Asker)
    device, given = askers.ask.call_one(adders).get()
    assert (device, given.device.type, given.tolist()) == ("cuda:0", "cpu", [2.0, 2.0])


def test_what_was_saved_on_the_gpu_is_loaded_there(mesh: Mesh, tmp_path: Path) -> None:
    mesh.run(
        "import torch\nones = torch.ones(3, device=device)\n"
        "average = {'there': ones, 'here': torch.ones(3)}\nrows = [ones * 2 for _ in range(1200)]"
    )
    mesh.save(tmp_path)
    mesh.run("del ones, average, rows")
    mesh.load(tmp_path)
    devices = "[str(each.device) for each in (ones, average['there'], average['here'], rows[0])]"
    assert mesh.run(devices).values == [["cuda:0", "cuda:0", "cpu", "cuda:0"]]


def test_a_gpu_is_one_reservations(dev: Reservation) -> None:
    with pytest.raises(CapacityError, match=r"0 of 1 gpu free; dev \(\w+\) holds 1 gpu"):
        reserve("other", gpus=torch.cuda.device_count())


def test_a_gpu_that_others_use_is_left_alone(pool: list[Node], capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is asked for."""
    count = torch.cuda.device_count()
    program = "import torch; held = torch.ones(1 << 28, device='cuda'); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "up\n"
        eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == count - 1)
        assert main(["status"]) == 0
        assert f"GPU 0 is busy: pid {stranger.pid} (" in capsys.readouterr().out
        with pytest.raises(CapacityError, match=f"pid {stranger.pid} .*1.. GB"):
            reserve("shy", gpus=count)
        forced = reserve("forced", gpus=count, force_busy=True)
        assert forced.mesh.run("import torch; float(torch.ones(2, device=device).sum())").values[0] == 2.0
        forced.release()
        stranger.kill()
    eventually(lambda: call(pool_named(None).ask())[0][1].node.gpus_free == count)
    reserve("again", gpus=count).release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_facts_of_tensors_are_found_on_the_gpu(dtype: torch.dtype) -> None:
    """What a rank sends of a tensor is the same from either device, and takes little of the GPU's memory."""
    tensor = torch.arange(3 * WHOLE_ELEMENTS).remainder(100).to(dtype).reshape(3, WHOLE_ELEMENTS).t()
    on_cpu, there = facts_of(tensor), tensor.to("cuda").t().contiguous().t()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    on_gpu = facts_of(there)
    assert torch.cuda.max_memory_allocated() - before_bytes < 32 << 20
    assert on_cpu is not None
    assert on_gpu is not None
    assert on_gpu["tensor"] | {"device": "cpu"} == on_cpu["tensor"]
    assert facts_of(there[3, 1]) == facts_of(tensor[3, 1])
