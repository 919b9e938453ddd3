"""Buffers that others read and write, and what goes wrong."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from monarch_nb.actor import Actor, endpoint
from monarch_nb.actor.engine import process as engine
from monarch_nb.config import MONARCH_CALLER_VARIABLE
from monarch_nb.errors import BufferFailed, UsageError
from monarch_nb.rdma import (
    RDMAAction,
    RDMABuffer,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from unit.actor.network import TIMEOUT_S, Network


class Owner(Actor):
    def __init__(self) -> None:
        self.weights = torch.arange(4, dtype=torch.float32)
        self.buffer = RDMABuffer(self.weights)

    @endpoint
    def give(self) -> RDMABuffer:
        return self.buffer

    @endpoint
    def read(self) -> list[float]:
        return list(self.weights.tolist())


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    network = Network()
    monkeypatch.setattr(engine, "_installed", [network.client])
    yield network
    network.close()


@pytest.fixture
def buffer(network: Network) -> RDMABuffer:
    """Of a rank."""
    network.owners = network.mesh(gpus=1).spawn("owners", Owner)  # type: ignore[attr-defined]
    given: RDMABuffer = network.owners.give.call_one().get(TIMEOUT_S)  # type: ignore[attr-defined]
    return given


def block(network: Network) -> Callable[[], object]:
    """Have the owner's process answer no questions, until what this returns is called."""
    held = threading.Event()
    (rank,) = network.processes.values()
    rank.aside(held.wait)
    return held.set


def test_bytes_are_read_and_written_where_they_are(network: Network, buffer: RDMABuffer) -> None:
    weights = torch.zeros(5)
    assert buffer.size() == 16
    buffer.read_into(weights.view(torch.uint8)).get(TIMEOUT_S)
    assert weights.tolist() == [0, 1, 2, 3, 0]
    buffer.write_from(torch.tensor([7.0, 8.0])).get(TIMEOUT_S)
    assert network.owners.read.call_one().get(TIMEOUT_S) == [7, 8, 2, 3]  # type: ignore[attr-defined]
    buffer.write_from(memoryview(bytes(4))).get(TIMEOUT_S)
    assert network.owners.read.call_one().get(TIMEOUT_S) == [0, 8, 2, 3]  # type: ignore[attr-defined]


async def test_transfers_are_awaited_together(buffer: RDMABuffer) -> None:
    targets = [bytearray(16) for _ in range(3)]
    action = RDMAAction()
    for target in targets:
        action.read_remote(memoryview(target), buffer)
    await action.submit(timeout=60)
    await action.submit()
    assert {bytes(target) for target in targets} == {torch.arange(4, dtype=torch.float32).numpy().tobytes()}
    await RDMAAction().submit()


def test_what_was_dropped_is_told(buffer: RDMABuffer) -> None:
    buffer.drop().get(TIMEOUT_S)
    buffer.drop().get(TIMEOUT_S)
    for future in (buffer.read_into(memoryview(bytearray(16))), buffer.write_from(memoryview(bytes(16)))):
        with pytest.raises(BufferFailed, match=r"of 16 B (from|to) rank 0 of mesh0 on \S+ failed: the buffer was drop"):
            future.get(TIMEOUT_S)
    action = RDMAAction().read_remote(memoryview(bytearray(16)), buffer).write_remote(buffer, memoryview(b"1"))
    with pytest.raises(BufferFailed, match="read of 16 B") as raised:
        action.submit().get(TIMEOUT_S)
    assert "write of 1 B" in raised.value.__notes__[0]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_buffer_goes_with_the_actor_that_made_it(network: Network, buffer: RDMABuffer) -> None:
    network.owners.stop().get(TIMEOUT_S)  # type: ignore[attr-defined]
    with pytest.raises(BufferFailed, match="its actor has ended"):
        buffer.read_into(memoryview(bytearray(16))).get(TIMEOUT_S)


def test_the_death_of_the_owner_is_told(network: Network, buffer: RDMABuffer) -> None:
    release = block(network)
    reading, asked = buffer.read_into(memoryview(bytearray(16))), threading.Event()
    network.client.aside(asked.set)
    asked.wait(TIMEOUT_S)
    network.kill(*network.processes)
    with pytest.raises(BufferFailed, match=r"read of 16 B from rank 0 of mesh0 on \S+ failed: it died .*SIGKILL"):
        reading.get(TIMEOUT_S)
    release()


def test_what_comes_too_late_touches_nothing(network: Network, buffer: RDMABuffer) -> None:
    release, target = block(network), bytearray(16)
    with pytest.raises(TimeoutError, match=r"the read of 16 B from rank 0 of mesh0 on \S+ took longer than 0 s"):
        buffer.read_into(memoryview(target), timeout=0).get(TIMEOUT_S)
    release()
    buffer.read_into(memoryview(bytearray(16))).get(TIMEOUT_S)  # behind it
    assert target == bytes(16)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (torch.zeros(2, 2), ValueError, r"tensor of one dimension, and this one has 2 dimensions: see \.view"),
        (torch.zeros(4)[::2], ValueError, "has gaps between its elements"),
        (torch.zeros(0), ValueError, "this memory is empty"),
        (b"bytes", TypeError, "not of bytes"),
    ],
)
def test_what_can_not_be_a_buffer(network: Network, data: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RDMABuffer(data)


def test_sizes_and_times_that_do_not_fit_are_refused_at_once(network: Network) -> None:
    buffer = RDMABuffer(memoryview(bytearray(16)))
    with pytest.raises(ValueError, match="dst has 8 bytes, too few for the 16 of the notebook on"):
        buffer.read_into(torch.zeros(2))
    with pytest.raises(ValueError, match="src has 24 bytes, too many for the 16 of"):
        buffer.write_from(torch.zeros(6))
    with pytest.raises(ValueError, match="dst is read-only"):
        buffer.read_into(memoryview(bytes(16)))
    with pytest.raises(ValueError, match="invalid timeout -1"):
        buffer.read_into(memoryview(bytearray(16)), timeout=-1)


def test_no_byte_lands_behind_a_buffer(buffer: RDMABuffer) -> None:
    buffer._remote = buffer._remote._replace(size_bytes=24)  # as no handle of ours says
    with pytest.raises(BufferFailed, match="24 bytes do not fit into 16"):
        buffer.write_from(torch.zeros(6)).get(TIMEOUT_S)


def test_what_is_read_only_can_not_be_written(network: Network) -> None:
    buffer = RDMABuffer(memoryview(b"abcd"))
    target = bytearray(4)
    buffer.read_into(memoryview(target)).get(TIMEOUT_S)
    assert target == b"abcd"
    with pytest.raises(BufferFailed, match="read-only"):
        buffer.write_from(memoryview(b"1234")).get(TIMEOUT_S)


def test_the_module_says_what_hardware_there_is() -> None:
    assert get_rdma_backend() == "monarch_nb"
    with pytest.warns(DeprecationWarning, match="is_ibverbs_available"):
        assert is_rdma_available() is is_ibverbs_available() is False


def test_a_process_of_monarchs_own_engine_has_buffers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MONARCH_CALLER_VARIABLE, "a client")
    with pytest.raises(UsageError, match=r"this is a process of Monarch's own engine: from monarch\.rdma import RDMA"):
        RDMABuffer(memoryview(bytearray(4)))
    with pytest.raises(UsageError):
        RDMAAction()
