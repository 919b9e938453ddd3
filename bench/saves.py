"""A save of 1 GB on 4 ranks, beside `dcp.save` called by hand in the same ranks."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial

from bench.harness import Bench, Outcome, Row, alternately, compared, duration
from monarch_nb.client.meshes.mesh import Mesh

RANKS = 4
SHARDED = """
import time, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
dist.init_process_group("gloo")
ranks = init_device_mesh("cpu", (world_size,))
torch.manual_seed(rank)
state = {f"w{number}": DTensor.from_local(torch.rand(1 << 22), ranks, [Shard(0)]) for number in range(16)}
model = torch.nn.Module()
model.state_dict, model.load_state_dict = lambda: state, state.update
"""
REPLICAS = """
import time, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Linear(1 << 12, 1 << 12, bias=False) for _ in range(16)))
)
state = model.module.state_dict()
"""
BY_HAND = """
dist.barrier()
began_s = time.monotonic()
dcp.save({{"model": state}}, checkpoint_id={path!r})
dist.barrier()
time.monotonic() - began_s
"""


def save(bench: Bench, *, code: str) -> Outcome:
    by_hand, saves = str(bench.directory / "by-hand"), str(bench.directory / "saves")
    with bench.reserved(1, RANKS) as reservation:
        mesh = reservation.mesh
        mesh.run(code)
        try:
            times = alternately(bench, partial(_ours, mesh, saves), partial(_by_hand, mesh, by_hand))
        finally:
            shutil.rmtree(by_hand, ignore_errors=True)
            shutil.rmtree(saves, ignore_errors=True)
    our_s, their_s = times
    return Outcome(duration(our_s), our_s <= 1.1 * their_s, f"dcp.save {duration(their_s)}", compared(our_s, their_s))


def _ours(mesh: Mesh, directory: str) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    os.sync()
    began_s = time.monotonic()
    mesh.save(directory, ["model"])
    return time.monotonic() - began_s


def _by_hand(mesh: Mesh, directory: str) -> float:
    shutil.rmtree(directory, ignore_errors=True)
    os.sync()
    return float(max(mesh.run(BY_HAND.format(path=directory)).values))


_HOW = "mesh.save from the client, and dcp.save with FileSystemWriter in a cell, in turn, on empty directories"
ROWS = (
    Row(
        "save",
        f"save 1 GB that {RANKS} ranks have in parts (FSDP2)",
        "≤ 1.1 × dcp.save",
        _HOW,
        partial(save, code=SHARDED),
    ),
    Row(
        "save-ddp",
        f"save 1 GB that {RANKS} ranks have alike (DDP)",
        "≤ 1.1 × dcp.save",
        f"{_HOW}; ours also looks whether the ranks agree",
        partial(save, code=REPLICAS),
    ),
)
