"""A pool on this machine, whose GPUs are real; without any, every test here is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner


@pytest.fixture(autouse=True)
def a_gpu() -> None:
    """Only asks NVML: a test that initialised CUDA would use the GPU that it wants to lease."""
    if not torch.cuda.device_count():
        pytest.skip("this machine has no GPU")


@pytest.fixture(scope="session")
def gpu_locks() -> None:
    """GPUs are leased for real: other people's allocators are to see it."""


@pytest.fixture(scope="session")
def pool(gpu_locks: None, shared_home: Path) -> list[Node]:
    """Of one node, which every test leaves as it found it: nothing reserved."""
    return LocalProvisioner().up(nodes=1, procs=4)


@pytest.fixture
def dev(pool: list[Node]) -> Iterator[Reservation]:
    """One rank with one GPU."""
    dev = reserve("dev", gpus=1)
    yield dev
    dev.release()


@pytest.fixture
def mesh(dev: Reservation) -> Mesh:
    return dev.mesh
