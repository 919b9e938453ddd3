"""Contents of tensors in a few bytes."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.worker import digests

WORDS = digests.BLOCK_BYTES // 8


def test_any_type_of_numbers() -> None:
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64):
        one, other = torch.zeros(5, dtype=dtype), torch.zeros(5, dtype=dtype)
        other[3] = 1
        assert digests.digest(one) == digests.digest(one.clone()) != digests.digest(other)
        assert mixed_digest(one) != mixed_digest(other)


def test_contents_count_and_not_how_they_are_kept() -> None:
    size = digests.elements_of_block(torch.empty(0, dtype=torch.complex64))
    one = torch.randn(3, size // 2, dtype=torch.complex64, requires_grad=True)
    for kept_otherwise in (one.T, one.conj(), one.conj().imag, one[:, ::2], one[1:]):
        copy = kept_otherwise.detach().resolve_conj().resolve_neg().contiguous().clone()
        whole = bytes(copy.numpy().tobytes())
        blocks = [whole[first : first + digests.BLOCK_BYTES] for first in range(0, len(whole), digests.BLOCK_BYTES)]
        hashed = [hashlib.sha256(block).digest()[:16] for block in blocks]
        assert digests.block_digests(kept_otherwise) == hashed
    assert digests.block_digests(torch.empty(0, 3)) == []


def mixed_digest(tensor: torch.Tensor) -> int:
    """As a device adds it up."""
    return int(digests._mixed(tensor.view(1, -1)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 63)), min_size=1, max_size=4, unique=True))
def test_what_a_device_adds_up_tells_any_flipped_bits_apart(flips: list[tuple[int, int]]) -> None:
    """A sum of words times odd numbers would not: two flipped signs of 64-bit words would cancel each other."""
    one = torch.arange(41, dtype=torch.int64)
    other = one.clone()
    for place, bit in flips:
        other[place] ^= -(1 << 63) if bit == 63 else 1 << bit
    assert mixed_digest(one) != mixed_digest(other)


def test_what_a_device_adds_up_depends_on_places_and_tells_complements_apart() -> None:
    nothing, word, complement = (torch.zeros(WORDS, dtype=torch.int64) for _ in range(3))
    word[0], complement[7] = 7, -1
    assert len({mixed_digest(each) for each in (nothing, word, word.flip(0), complement)}) == 4


def test_blocks_that_a_device_mixes_at_once_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(5 * digests.BLOCK_BYTES // 4 + 3, dtype=torch.int32)

    def mixed() -> list[int]:
        return digests._read([digests._mixed(rows) for rows in digests._rows_of_blocks(tensor)])

    at_once = mixed()
    assert len(at_once) == 6
    monkeypatch.setattr(digests, "_BLOCKS_AT_ONCE", 1)
    assert mixed() == at_once
