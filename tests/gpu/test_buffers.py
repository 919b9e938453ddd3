"""Buffers of tensors on a GPU: through main memory."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import torch

from integration.live import TIMEOUT_S
from monarch_nb.actor import Actor, endpoint
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.rdma import RDMABuffer

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks have no tests to import


class Owner(Actor):
    @endpoint
    def make(self) -> RDMABuffer:
        self.weights = torch.arange(1_000_000, dtype=torch.float32, device="cuda")
        return RDMABuffer(self.weights.view(torch.uint8).flatten())

    @endpoint
    def sum(self) -> float:
        return float(self.weights.sum())


def test_what_is_on_a_gpu_is_read_and_written(dev: Reservation) -> None:
    owner: Any = dev.mesh.spawn("owner", Owner)
    buffer = owner.make.call_one().get(TIMEOUT_S)
    weights = torch.zeros(1_000_000)
    buffer.read_into(weights).get(TIMEOUT_S)
    assert torch.equal(weights, torch.arange(1_000_000, dtype=torch.float32))
    buffer.write_from(torch.ones(1_000_000)).get(TIMEOUT_S)
    assert owner.sum.call_one().get(TIMEOUT_S) == 1_000_000
