"""Tensors travel as torch says, their memory outside the pickle stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from monarch_nb.ground import pickling
from monarch_nb.ground.frames import pack_pickle, unpack_pickle

SIZE = 300


def travel(value: Any) -> Any:
    return unpack_pickle(bytearray(b"".join(pack_pickle(value, pickling.dumps))))


def inside(value: Any) -> int:
    """Bytes in the pickle stream itself."""
    return len(pickling.dumps(value, protocol=5, buffer_callback=lambda _: None))


MATRIX = torch.arange(SIZE * SIZE, dtype=torch.float32).reshape(SIZE, SIZE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MATRIX.clone(),
        lambda: MATRIX.to(torch.bfloat16),
        lambda: MATRIX.to(torch.uint16),
        lambda: MATRIX.remainder(16).to(torch.float8_e4m3fn),  # torch 2.11 has nan for what is too large
        lambda: MATRIX.T,
        lambda: MATRIX[::2, 5:],
        lambda: MATRIX[0].expand(SIZE, SIZE),
        lambda: torch.nn.Parameter(MATRIX.clone()),
        lambda: MATRIX.to(torch.complex64).conj(),
    ],
)
def test_it_arrives_as_it_was(make: Callable[[], torch.Tensor]) -> None:
    """Also where torch's own pickles can not be read again: of unsigned integers and of 8-bit floats."""
    sent = make()
    arrived = travel(sent)
    assert type(arrived) is type(sent)
    assert (arrived.dtype, arrived.stride(), arrived.storage_offset()) == (
        sent.dtype,
        sent.stride(),
        sent.storage_offset(),
    )
    assert (arrived.requires_grad, arrived.is_conj()) == (sent.requires_grad, sent.is_conj())
    assert arrived.untyped_storage().nbytes() == sent.untyped_storage().nbytes()
    assert torch.equal(arrived.to(torch.complex64), sent.to(torch.complex64))
    assert inside(sent) < 2000


def test_it_is_a_view_of_the_packed_bytes_unless_these_are_read_only() -> None:
    packed = bytearray(b"".join(pack_pickle(MATRIX, pickling.dumps)))
    arrived, copied = unpack_pickle(packed), unpack_pickle(bytes(packed))
    arrived.fill_(7)
    assert packed.count(np.float32(7).tobytes() * SIZE * SIZE) == 1
    copied += 1
    assert torch.equal(copied, MATRIX + 1)


def test_tensors_that_share_memory_are_apart_as_after_any_pickling() -> None:
    whole = MATRIX.clone()
    arrived = travel({"whole": whole, "part": whole[:2], "same": whole})
    assert arrived["same"] is arrived["whole"]
    arrived["whole"].zero_()
    assert torch.equal(arrived["part"], MATRIX[:2])


@pytest.mark.parametrize(
    "value", [torch.empty(0), torch.ones(3), torch.ones(2).to_sparse(), torch.empty(9, device="meta")]
)
def test_others_are_left_to_torch(value: torch.Tensor) -> None:
    assert travel(value).shape == value.shape


def test_functions_of_cells_still_travel_by_value() -> None:
    offset = 3
    assert travel(lambda x: x + offset)(4) == 7


def test_what_was_on_a_gpu_stays_in_main_memory_where_there_is_none() -> None:
    storage = MATRIX.storage()
    assert pickling.load_gpu_storage(storage) is storage
