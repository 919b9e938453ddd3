"""Copies from another process of this node, made by the kernel: the other process does nothing for it."""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

MARK_BYTES = 16
_MOST_BYTES = 1 << 30
"""The kernel copies less than 2 GiB at once."""
_PR_SET_PTRACER = 0x59616D61


class Place(NamedTuple):
    """Where another process finds bytes of this one.

    Attributes:
        pid: of this process.
        address: of the bytes; 0 when nobody can reach them.
        mark_address: of the mark beside them.
        mark: so many random bytes: only where these are is the place still what it was.
    """

    pid: int
    address: int
    mark_address: int
    mark: bytes


class Mark:
    """The mark beside bytes of this process. It goes before they do: who finds it after reading them has read them.

    Attributes:
        text: the random bytes.
    """

    def __init__(self) -> None:
        self.text = secrets.token_bytes(MARK_BYTES)
        self._memory = ctypes.create_string_buffer(self.text, MARK_BYTES)

    def place(self, address: int) -> Place:
        """Return where others find the bytes at `address`, and allow them to."""
        _allow_siblings(os.getpid())
        return Place(os.getpid(), address, ctypes.addressof(self._memory), self.text)

    def remove(self) -> None:
        """The bytes go."""
        self._memory.raw = bytes(MARK_BYTES)


def copy(place: Place, address: int, size_bytes: int) -> bool:
    """Copy bytes of another process to `address` in this one, while other threads go on.

    Returns:
        whether all is copied. Otherwise the place is gone, or the kernel does not allow it, and what is at `address` is
        undefined.
    """
    if not place.address or not address or not _read(place, []):
        return False
    return all(
        _read(place, [(address + start, place.address + start, min(_MOST_BYTES, size_bytes - start))])
        for start in range(0, size_bytes, _MOST_BYTES)
    )


def _read(place: Place, pieces: Sequence[tuple[int, int, int]]) -> bool:
    """Copy pieces (to, from, size), and the mark before and behind them; return whether it is as it should be."""
    function = _process_vm_readv()
    if function is None:
        return False
    marks = [ctypes.create_string_buffer(MARK_BYTES) for _ in range(2)]
    first, last = ((ctypes.addressof(mark), place.mark_address, MARK_BYTES) for mark in marks)
    all_pieces = [first, *pieces, last]
    count = len(all_pieces)
    here = (_Piece * count)(*(_Piece(to, size) for to, _, size in all_pieces))
    there = (_Piece * count)(*(_Piece(start, size) for _, start, size in all_pieces))
    copied = function(place.pid, here, count, there, count, 0)
    is_all = copied == sum(size for *_, size in all_pieces)
    return is_all and all(mark.raw == place.mark for mark in marks)


class _Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


@functools.cache
def _process_vm_readv() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, *(ctypes.POINTER(_Piece), ctypes.c_ulong) * 2, ctypes.c_ulong]
        function.restype = ctypes.c_ssize_t
    return function


@functools.cache
def _allow_siblings(pid: int) -> None:
    """Let what descends from this process's parent read it, where Yama restricts that to parents: the ranks of a node
    descend from its template process. Fails where there is no Yama, which then restricts nothing."""
    parent = os.getppid()
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None and parent > 1:
        prctl(_PR_SET_PTRACER, ctypes.c_ulong(parent), 0, 0, 0)
