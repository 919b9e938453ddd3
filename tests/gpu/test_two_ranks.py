"""Two ranks with NCCL on one GPU: it takes them for ranks of two hosts, and does not see that the GPU is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, eventually, kill, pids_of, said_of_waits, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.runs import waits
from monarch_nb.errors import RunFailed
from monarch_nb.provision import Node

BEGIN = """
import os, time
os.environ |= {"CUDA_VISIBLE_DEVICES": "0", "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
import torch
import torch.distributed as dist
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
"""
NCCL = """
if not dist.is_initialized():
    dist.init_process_group("nccl", device_id=device)
for _ in range(3):
    dist.all_reduce(torch.ones(4, device=device))
torch.cuda.synchronize()
"""
TRAIN = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
model = DistributedDataParallel(net, device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters())
def train(steps, late_s=0.0, bad=None):
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        batch = torch.randn(64, 256, device=device)
        if (rank, step) == bad:
            batch[3] = float("inf")
        model(batch).square().mean().backward()
        optimizer.step()
        if late_s and rank == 1:
            time.sleep(late_s)
    torch.cuda.synchronize()
"""


@pytest.fixture
def two(pool: list[Node]) -> Iterator[Mesh]:
    reservation = reserve("two", procs=2)
    reservation.mesh.run(BEGIN)
    yield reservation.mesh
    reservation.release()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and say at once what stands still."""
    monkeypatch.setattr(waits, "WAITS_INTERVAL_S", 0.3)
    monkeypatch.setattr(waits, "APART_AFTER_S", 0.5)


HANGS = {
    "another collective": (
        """
if rank:
    kept = [torch.empty(8, device=device) for _ in range(2)]
    dist.all_gather(kept, torch.ones(8, device=device))
else:
    kept = torch.ones(1 << 20, device=device)
    dist.all_reduce(kept)
torch.cuda.synchronize()
""",
        "call 4 in the default group is all_reduce of float32[1048576] on rank 0, all_gather of float32[8] on rank 1",
    ),
    "one ahead": (
        """
kept = torch.ones(4, device=device)
if rank:
    for _ in range(5):
        dist.all_reduce(kept)
    kept.sum().item()
else:
    time.sleep(1000)
""",
        "rank 1 is ahead in the default group: 4 calls, rank 0 3",
    ),
}


@pytest.mark.parametrize("kind", HANGS)
def test_collectives_of_nccl_that_do_not_match_are_named(two: Mesh, soon: None, kind: str) -> None:
    code, expected = HANGS[kind]
    two.run(NCCL)
    run, recorder = started(two, code)

    try:
        recorder.wait_for(lambda recorder: expected in said_of_waits(recorder))
    except AssertionError:
        pytest.fail(f"it says: {said_of_waits(recorder)!r}; {two.stacks()}")
    finally:
        run.interrupt()
    with pytest.raises(RunFailed):
        run.result(TIMEOUT_S)
    two.run(NCCL)  # the ranks and their GPU are well


def test_ranks_that_differ_are_told_apart_on_the_gpu(two: Mesh) -> None:
    two.run(f"{NCCL}{TRAIN}train(2)\nwith torch.no_grad(): net[0].weight[17, 4] += 0.25 * rank")
    assert re.fullmatch(
        r"3 of 4 tensors are equal on ranks 0-1\n  0.weight  \[256, 256\] float32 cuda: .*0\.25 at \[17, 4\]",
        str(two.diff("net")),
    ), str(two.diff("net"))
    two.run("torch.cuda.manual_seed(rank)")
    assert "cuda" in str(two.diff(rng=True))
    assert [place for place, _ in two.diff(env=True).rows()] == ["variables.NCCL_HOSTID"]


def test_the_first_value_that_is_not_finite_is_named(two: Mesh) -> None:
    two.run(f"{NCCL}{TRAIN}")
    with pytest.raises(RunFailed) as raised:
        two.run("train(9, bad=(1, 4))", instruments={"watch": {}}, on_breakpoint="go-on")
    told = {failure.rank: failure.message for failure in raised.value.failures.values()}
    assert sorted(told) == [0, 1]
    assert all("are not finite in step 4" in message for message in told.values()), told
    assert told[1].endswith("; the batch itself is not finite"), told


def test_who_is_waited_for_is_named(two: Mesh, tmp_path: Path) -> None:
    two.run(f"{NCCL}{TRAIN}")
    run = two.run("train(9, late_s=0.05)", instruments={"torch-profile": {"steps": 4, "ranks": [0, 1]}})
    report = two.profile_of(run, to=tmp_path)
    assert [(each.rank, each.steps, each.on_device) for each in report.ranks] == [(0, 4, True), (1, 4, True)]
    assert report.straggler is not None, str(report)
    assert (report.straggler.ranks, report.straggler.waiting) == ((1,), (0,))
    assert report.ranks[0].shares.communication > report.ranks[1].shares.communication


def test_a_sharded_state_is_loaded_on_another_number_of_ranks(
    two: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make = """
from torch.distributed.fsdp import fully_shard
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        done = max([int(state["step"]) for state in optimizer.state.values()], default=0)
        batch = torch.full((8, 256), 1.0 + done, device=device)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""
    two.run(f"{NCCL}{make}train(3)")
    two.save("a", ["model", "optimizer"])
    [expected, _] = two.run("train(3)").values
    one = reserve("one", procs=1)
    try:
        one.mesh.run(f"{BEGIN}{NCCL}{make}")
        one.mesh.load("a")
        assert one.mesh.run("train(3)").values == [pytest.approx(expected, rel=1e-4)]
    finally:
        one.release()


@pytest.mark.parametrize("wait", ["kept.sum().item()", "torch.cuda.synchronize()", "print(kept)"])
def test_a_hang_of_nccl_is_interrupted_and_the_next_cell_trains(two: Mesh, wait: str) -> None:
    for _ in range(2):
        two.run(f"{NCCL}{TRAIN}train(2)")
        run, _ = started(two, f"kept = torch.ones(4, device=device)\nif rank: dist.all_reduce(kept)\n{wait}\nafter = 1")
        eventually(lambda run=run: len(run.results) == 1)
        run.interrupt()
        with pytest.raises(RunFailed):
            run.result(TIMEOUT_S)
        assert two.run("vars().pop('after', 0)").values == [1, 0], "no line is executed with what was not received"


DIES = """
kept = torch.ones(4, device=device)
if rank:
    dist.all_reduce(kept)
    kept.sum().item()
    after = 1
else:
    time.sleep(1000)
"""
COMPUTES = """
big = torch.randn(16384, 16384, device=device)
for _ in range(40):
    big = (big @ big).clamp(-1, 1)
big.sum().item()
"""


def test_a_rank_that_dies_frees_its_peer_from_nccl(two: Mesh) -> None:
    two.run(f"{NCCL}{TRAIN}train(2)")
    hang = (
        "kept = torch.ones(4, device=device)\nif rank:\n    dist.all_reduce(kept)\n    kept.sum().item()\n    after = 1"
    )
    run, _ = started(two, f"{hang}\nelse:\n    time.sleep(1000)")
    kill(pids_of(two)[0])
    with pytest.raises(RunFailed):
        run.result(TIMEOUT_S)
    two.restart([0])
    two.slice(procs=0).run(BEGIN)
    assert two.slice(procs=1).run("'after' in vars()").values == [False]
    two.run(f"{NCCL}{TRAIN}train(2)")


def test_what_one_gpu_computes_for_long_is_no_hang(two: Mesh, soon: None) -> None:
    """And an interrupt of it leaves the groups as they are."""
    two.run(f"{NCCL}{TRAIN}train(2)")
    run, recorder = started(two, COMPUTES)
    eventually(lambda: run.done or len({each.line for each in two.where().values()}) == 1)
    run.interrupt()
    with pytest.raises(RunFailed):
        run.result(TIMEOUT_S)
    assert not said_of_waits(recorder)
    two.run("train(2)")
