"""What 16 ranks return, as a notebook shows it: one row, and every value where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from integration.kernels import Kernel
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.slow


@pytest.fixture
def kernel(pool_home: Path, tmp_path: Path) -> Iterator[Kernel]:
    """A kernel, and a pool of 2 nodes × 8 procs."""
    LocalProvisioner().up(nodes=2, procs=8)
    opened = Kernel(tmp_path / "a.ipynb")
    try:
        opened.run("%load_ext monarch_nb")
        yield opened
        opened.run("%mesh release")
        assert monarch_nb.list_reservations() == []
    finally:
        opened.kill()


@pytest.mark.usefixtures("without_torch")
def test_numbers(kernel: Kernel) -> None:
    monarch_nb.reserve("dev", nodes=2, procs=8, preload=())
    assert "16 ranks alive" in kernel.run("%mesh attach dev")
    shown = kernel.run("%%mesh -o losses\nfloat('nan') if rank == 5 else 9.5 if rank == 11 else 2 + rank / 100")
    assert shown == (
        "Out[0-15]: 15 numbers from 2.0 (rank 0) to 9.5 (rank 11), median 2.08 · nan on rank 5 · far from the others: "
        "rank 11"
    )
    assert kernel.run("[len(losses), losses[0], losses[11], losses[15], losses[5] != losses[5]]") == (
        "[16, 2.0, 9.5, 2.15, True]"
    )
    assert kernel.run("%%mesh\n{'loss': 3.0 - rank / 16, 'step': 7}").splitlines() == [
        "Out[0-15]: loss: 2.0625 (rank 15) to 3.0 (rank 0), median 2.53125",
        "           step: 7",
    ]
    assert kernel.run("%%mesh -t 0-7\nrank * 2").splitlines() == [f"Out[{rank}]: {rank * 2}" for rank in range(8)]
    assert kernel.run("%%mesh\n7") == "Out[0-15]: 7"
    mixed = kernel.run("%%mesh\n'text' if rank == 3 else None if rank == 4 else 1 / (rank - 5)")
    assert "Out[0-2,6-15]: 13 numbers from -0.33333 (rank 2) to 1.0 (rank 6)" in mixed
    assert "Out[3]: 'text'" in mixed
    assert "1 of 16 ranks failed" in mixed
    assert kernel.run("%%mesh\nimport sys\n'torch' in sys.modules") == "Out[0-15]: False"
    texts = kernel.run("%%mesh -o texts\n'x' * rank")
    assert texts.splitlines()[-1] == "… 11 more different values on ranks 5-15 not shown: `-o NAME` keeps them"
    assert kernel.run("texts == ['x' * rank for rank in range(16)]") == "True"


def test_tensors(kernel: Kernel) -> None:
    kernel.run("%mesh reserve dev --nodes 2 --procs 8")
    code = "import torch\nx = torch.full((4, 3), float(rank))\nif rank == 9:\n    x[0] = float('nan')\nx"
    assert kernel.run(f"%%mesh -o tensors\n{code}").splitlines() == [
        "Out[0-15]: tensor [4, 3] float32 cpu on 16 ranks",
        "           min 0 (rank 0) to 15 (rank 15), max 0 (rank 0) to 15 (rank 15)",
        "           mean 0 (rank 0) to 15 (rank 15) · nan on rank 9 (3 elements)",
    ]
    assert kernel.run("[len(tensors), tensors[15].mean().item(), tensors[9].isnan().sum().item()]") == "[16, 15.0, 3]"
    assert kernel.run("%%mesh\nx.sum()").startswith(
        "Out[0-15]: 15 numbers from 0.0 (rank 0) to 180.0 (rank 15), median"
    )
    split = kernel.run("%%mesh\ntorch.arange(rank + 1.0)[rank % 2:]")
    assert split.startswith("Out[0-15]: tensor [1–15] float32 cpu on 16 ranks\n"), split
