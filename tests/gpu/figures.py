"""What watching, saving and comparing cost on a GPU: `PYTHONPATH=tests python -m gpu.figures`, on a machine with one.

The model has the shape of GPT-2 (124M parameters and an own last layer), and computes in bf16.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.provision.local import LocalProvisioner

GPT = """
import time, torch
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
model = torch.nn.Sequential(torch.nn.Embedding(50304, 768), encoder, torch.nn.Linear(768, 50304)).to(device)
del layer, encoder
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens = torch.randint(0, 50304, (8, 1024), device=device)
def train(steps):
    took_s = []
    for _ in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        took_s.append(time.perf_counter() - begin)
    return took_s
len(train(5))
"""
BIG = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
import torch
big = {f"layer{number}": torch.ones(1 << 26, device="cuda") for number in range(8)}
if rank:
    big["layer3"][7] = 2
"""
WATCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "--watch nan": {"watch": {}},
    "--watch nan=loss,grad,param": {"watch": {"what": ["loss", "grad", "param"]}},
}


def main() -> None:
    os.environ[HOME_VARIABLE] = tempfile.mkdtemp(prefix="mnb-", dir="/tmp")
    os.chdir(tempfile.mkdtemp(dir="/tmp"))
    LocalProvisioner().up(nodes=1, procs=2)
    try:
        of_one(reserve("one", gpus=1).mesh)
        of_two(reserve("two", procs=2).mesh)
    finally:
        LocalProvisioner().down(force=True)


def of_one(mesh: Mesh) -> None:
    mesh.run(GPT)
    quartiles: dict[str, list[float]] = {name: [] for name in WATCHES}
    for _ in range(4):
        for name, instruments in WATCHES.items():
            [took_s] = mesh.run("train(25)", instruments=instruments).values
            quartiles[name].append(statistics.quantiles(took_s, n=4)[0] * 1000)
    for name, each in quartiles.items():
        print(f"a step, {name}: {', '.join(f'{ms:.1f}' for ms in each)} ms", flush=True)
    names = ["model", "optimizer"]
    report("a save", lambda: mesh.save("saves", names))
    for _ in range(3):
        report("until a save in the background is staged", lambda: mesh.save("saves", names, background=True))
        mesh.save("other", ["tokens"])  # waits for it
    report("a load", lambda: mesh.load("saves", names))
    mesh.reservation.release()


def of_two(mesh: Mesh) -> None:
    mesh.run(BIG)
    for _ in range(3):
        report("diff of 2.1 GB on each of 2 ranks", lambda: mesh.diff("big"))
    mesh.reservation.release()


def report(what: str, does: Callable[[], object]) -> None:
    began = time.perf_counter()
    said = str(does()).splitlines()[0]
    print(f"{what}: {time.perf_counter() - began:.2f} s ({said})", flush=True)


if __name__ == "__main__":
    main()
