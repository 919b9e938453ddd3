"""Pickling by value, with the memory of CPU tensors outside the pickle stream, as that of numpy arrays."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import cloudpickle

_INLINE_BYTES = 1 << 16
"""Storages up to here are pickled as torch does: they can be resized afterwards, those that are views can not."""


def dumps(
    value: Any,
    *,
    protocol: int,
    buffer_callback: Callable[[pickle.PickleBuffer], Any],
    on_function: Callable[[FunctionType], object] | None = None,
) -> bytes:
    """As `cloudpickle.dumps`; what a tensor's `__reduce_ex__` says holds, only its storage is written elsewhere.

    Args:
        on_function: called with each function that is met, whether it is pickled by value or not.
    """
    with io.BytesIO() as file:
        pickler = _Pickler(file, protocol=protocol, buffer_callback=buffer_callback)
        pickler.on_function = on_function
        pickler.dump(value)
        return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    on_function: Callable[[FunctionType], object] | None = None

    def reducer_override(self, value: Any) -> Any:
        if self.on_function is not None and type(value) is FunctionType:
            self.on_function(value)
        torch: Any = sys.modules.get("torch.storage")
        if torch is not None and type(value) in (torch.TypedStorage, torch.UntypedStorage):
            return _reduce_storage(value)
        return super().reducer_override(value)


def _reduce_storage(storage: Any) -> Any:
    untyped = getattr(storage, "_untyped_storage", storage)
    if untyped.device.type != "cpu" or untyped.nbytes() <= _INLINE_BYTES or "numpy" not in sys.modules:
        return NotImplemented
    torch = importlib.import_module("torch")
    memory = torch.empty(0, dtype=torch.uint8).set_(untyped)
    return load_storage, (pickle.PickleBuffer(memory.numpy()), getattr(storage, "dtype", torch.uint8))


def load_storage(memory: memoryview, dtype: Any) -> Any:
    """In pickles: return a torch storage that is a view of `memory`."""
    torch = importlib.import_module("torch")
    writable = bytearray(memory) if memoryview(memory).readonly else memory
    untyped = torch.frombuffer(writable, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
