"""The contents of a tensor in a few bytes, made where the tensor is.

A tensor in main memory is hashed by SHA-256, a large one after its words were mixed. Elsewhere the device mixes 64-bit
words and adds them up, so that only a few bytes leave it. A digest is compared only with those of tensors on the same
type of device.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BLOCK_BYTES = 1 << 20
"""A tensor is hashed in blocks of this size, so that two ranks find where theirs differ."""
_BLOCKS_AT_ONCE = 16
"""The device needs four times their memory meanwhile."""
_DIGEST_BYTES = 16
_WORD_BYTES = 8
_LANES, _FACTOR, _SHIFT = 1 << 14, 6364136223846793005, 29
"""How words in main memory are mixed: each row of so many is added to the lanes, times an odd factor."""
_SHIFTS = (31, 27)
# splitmix64's multipliers (Steele, Lea, Flood: Fast splittable pseudorandom number generators), as signed numbers
_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)


def digest(tensor: torch.Tensor, *, every: int = 1) -> str:
    """Return the digest of a plain tensor's contents, in hexadecimal digits. Equal contents have equal digests: also
    nan equals nan, bit by bit, and 0.0 is not -0.0. A change of one element always changes it.

    Args:
        every: of a large tensor in main memory, look at one row of 128 KiB in so many.
    """
    if tensor.device.type == "cpu":
        return _digest_of_memory(plain(tensor).contiguous(), every)
    whole = hashlib.sha256()
    for block in block_digests(tensor):
        whole.update(block)
    return whole.hexdigest()[: 2 * _DIGEST_BYTES]


def _digest_of_memory(tensor: torch.Tensor, every: int) -> str:
    """Return the digest of a contiguous tensor. The words of a large one are mixed into lanes, row by row: twice as
    fast as SHA-256, which has the lanes and the rest."""
    size_bytes, row_bytes = tensor.numel() * tensor.element_size(), _LANES * _WORD_BYTES
    is_aligned = tensor.storage_offset() * tensor.element_size() % _WORD_BYTES == 0
    in_rows = size_bytes // row_bytes * row_bytes if size_bytes >= BLOCK_BYTES and is_aligned else 0
    whole = hashlib.sha256((ctypes.c_char * (size_bytes - in_rows)).from_address(tensor.data_ptr() + in_rows))
    if in_rows:
        whole.update(_lanes(tensor.view(-1), in_rows, every))
    return whole.hexdigest()[: 2 * _DIGEST_BYTES]


def _lanes(flat: torch.Tensor, in_rows: int, every: int) -> Any:
    import torch

    lanes = torch.zeros(_LANES, dtype=torch.int64)
    with torch.no_grad():
        for row in flat.view(torch.uint8)[:in_rows].view(torch.int64).view(-1, _LANES)[::every]:
            torch.add(row, lanes, alpha=_FACTOR, out=lanes)
            lanes.bitwise_xor_(_shifted(lanes, _SHIFT))  # else two flipped signs in a lane would cancel each other
    return bytes((ctypes.c_char * (_LANES * _WORD_BYTES)).from_address(lanes.data_ptr()))


def block_digests(tensor: torch.Tensor) -> list[bytes]:
    """Return the digest of each block of BLOCK_BYTES of a plain tensor."""
    if tensor.device.type == "cpu":
        blocks = _memory_of_blocks(plain(tensor).contiguous())
        return [hashlib.sha256(block).digest()[:_DIGEST_BYTES] for block in blocks]
    mixed = [_mixed(rows) for rows in _rows_of_blocks(tensor)]
    return [number.to_bytes(_WORD_BYTES, "big", signed=True) for number in _read(mixed)]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without a graph, and without a conjugation or a sign that is not done yet. There may be very many
    tensors: each call of torch takes longer than to hash a small one."""
    tensor = tensor.detach()
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def block_of(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Return the elements of one block, in one dimension."""
    size = elements_of_block(tensor)
    return tensor.detach().contiguous().view(-1)[number * size : (number + 1) * size]


def elements_of_block(tensor: torch.Tensor) -> int:
    """Return how many elements one block has."""
    return max(BLOCK_BYTES // tensor.element_size(), 1)


def _rows_of_blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements of some blocks at a time, each a row, in the order of their indices, whatever the strides."""
    flat, size = plain(tensor).contiguous().view(-1), elements_of_block(tensor)
    whole = flat.numel() // size * size
    for first in range(0, whole, size * _BLOCKS_AT_ONCE):
        yield flat[first : min(first + size * _BLOCKS_AT_ONCE, whole)].view(-1, size)
    if whole < flat.numel():
        yield flat[whole:].view(1, -1)


def _memory_of_blocks(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield the memory of each block of a contiguous tensor."""
    block_bytes = elements_of_block(tensor) * tensor.element_size()
    size_bytes, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    for first in range(0, size_bytes, block_bytes):
        yield (ctypes.c_char * min(block_bytes, size_bytes - first)).from_address(address + first)


def _mixed(rows: torch.Tensor) -> torch.Tensor:
    """Return for each row the sum of its 64-bit words, each mixed with its place: numbers on the rows' device."""
    import torch

    content = rows.view(torch.uint8)
    if short := -content.shape[1] % _WORD_BYTES:
        content = torch.cat([content, content.new_zeros(len(content), short)], dim=1)
    words = content.view(torch.int64)
    words = words ^ _places(str(words.device))[: words.shape[1]]
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        words.bitwise_xor_(_shifted(words, shift))
        words.mul_(multiplier)
    words.bitwise_xor_(_shifted(words, _SHIFTS[0]))
    return words.sum(1)


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Return words shifted to the right, zeros coming in: with copies of the sign, a word and its complement would be
    mixed into the same."""
    return (words >> by).bitwise_and_((1 << 64 - by) - 1)


@cache
def _places(device: str) -> torch.Tensor:
    """Return a number for each place of a block, none like another."""
    import torch

    with torch.no_grad():
        return torch.arange(1, BLOCK_BYTES // _WORD_BYTES + 1, dtype=torch.int64, device=device) * _MULTIPLIERS[0]


def _read(numbers: list[torch.Tensor]) -> list[int]:
    import torch

    return torch.cat(numbers).tolist() if numbers else []


def forget() -> None:
    """Give back what was kept on devices."""
    _places.cache_clear()
