"""Bytes of this process, where they are: those of a tensor, or of a memoryview."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


class Memory:
    """Bytes that others may read and write. It keeps the tensor or the memoryview alive.

    Args:
        data: a tensor or a memoryview, of one dimension and contiguous.

    Attributes:
        size_bytes: how many.
        address: where they are; 0 where no other process can reach them (on a GPU, or read-only).

    Raises:
        TypeError: `data` is neither.
        ValueError: `data` has other dimensions, or is not contiguous.
    """

    def __init__(self, data: Any) -> None:
        torch: Any = sys.modules.get("torch")
        self._tensor: Any = None
        if isinstance(data, memoryview):
            _check(data.ndim, data.c_contiguous, "memoryview", "cast('B')")
            self._view = data.cast("B")
            self.address = 0 if data.readonly or not data.nbytes else _address(self._view)
        elif torch is not None and isinstance(data, torch.Tensor):
            _check(data.dim(), data.is_contiguous(), "tensor", "view(torch.uint8).flatten()")
            self._tensor = data.detach()
            self.address = data.data_ptr() if data.device.type == "cpu" else 0
            self._view = _view(self._tensor) if data.device.type == "cpu" else memoryview(b"")
        else:
            raise TypeError(f"a buffer is made of a tensor or of a memoryview, not of {type(data).__name__}")
        self.size_bytes: int = self._view.nbytes if self._is_here() else data.numel() * data.element_size()

    def read(self) -> memoryview:
        """Return the bytes: as they change where they are in main memory, else a copy."""
        return self._view if self._is_here() else _view(self._tensor.cpu())

    def write(self, content: memoryview) -> None:
        """Replace the first bytes. Other threads go on meanwhile.

        Raises:
            TypeError: they are read-only.
            ValueError: there are fewer than `content` has.
        """
        if content.nbytes > self.size_bytes:
            raise ValueError(f"{content.nbytes:,} bytes do not fit into {self.size_bytes:,}")
        if not self._is_here():
            torch: Any = sys.modules["torch"]
            data = torch.frombuffer(bytearray(content) if content.readonly else content, dtype=torch.uint8)
            self._tensor.view(torch.uint8)[: content.nbytes].copy_(data)
        elif self.address and not content.readonly and content.nbytes:
            ctypes.memmove(self.address, _address(content), content.nbytes)
        else:
            self._view[: content.nbytes] = content

    @property
    def is_writable(self) -> bool:
        """Whether `write` works."""
        return not (self._is_here() and self._view.readonly)

    def _is_here(self) -> bool:
        return self._tensor is None or self._tensor.device.type == "cpu"


def _check(dimensions: int, is_contiguous: bool, kind: str, remedy: str) -> None:
    if dimensions != 1 or not is_contiguous:
        what = f"{dimensions} dimensions" if dimensions != 1 else "gaps between its elements"
        raise ValueError(f"a buffer needs a contiguous {kind} of one dimension, and this one has {what}: see .{remedy}")


def _view(tensor: Any) -> memoryview:
    size_bytes = tensor.numel() * tensor.element_size()
    array = (ctypes.c_ubyte * size_bytes).from_address(tensor.data_ptr())
    array.tensor = tensor  # lives as long as a view of it
    return memoryview(array).cast("B")


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
