"""Pickling by value, with the memory of tensors outside the pickle stream, as that of numpy arrays.

A tensor on a GPU travels through main memory. It arrives on the GPU of the rank that it is for (`arrive_on`), and stays
in main memory elsewhere: a notebook would take GPU memory from the ranks.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
import typing
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

Cached: type = type(functools.cache(len))
"""What `functools.cache` and `lru_cache` make."""
_DISPATCH: CodeType = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_OF_DISPATCH = ("register", "dispatch", "registry", "_clear_cache")


def reduce_wrapper(value: Any) -> Any:
    """Return how such an object is made again; NotImplemented for one that others can import, and for all else."""
    kind = type(value)
    if kind is functools.cached_property:
        return kind, (value.func,), {name: each for name, each in vars(value).items() if name != "lock"}
    is_dispatch = kind is FunctionType and value.__code__ is _DISPATCH
    if not (is_dispatch or kind in _MAKERS) or _can_be_imported(value):
        return NotImplemented
    if is_dispatch:
        own = {name: each for name, each in vars(value).items() if name not in _OF_DISPATCH}
        return functools.singledispatch, (value.__wrapped__,), (dict(value.registry), own), None, None, _set_dispatch
    return _MAKERS[kind](value)


def _can_be_imported(value: Any) -> bool:
    return cloudpickle.cloudpickle._lookup_module_and_qualname(value) is not None


def _reduce_cached(value: Any) -> Any:
    return _cached, (value.__wrapped__, value.cache_parameters()), vars(value)


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _set_dispatch(made: Any, state: tuple[Mapping[type, Callable[..., Any]], Mapping[str, Any]]) -> None:
    functions, own = state
    for kind, function in functions.items():
        made.register(kind, function)
    vars(made).update(own)


_MAKERS: dict[type, Callable[[Any], Any]] = {
    Cached: _reduce_cached,
    typing.NewType: lambda value: (typing.NewType, (value.__name__, value.__supertype__), vars(value)),
    typing.ParamSpec: lambda value: (typing.ParamSpec, (value.__name__,)),
    typing.TypeVarTuple: lambda value: (typing.TypeVarTuple, (value.__name__,)),
}


_INLINE_BYTES = 1 << 16
"""Storages up to here are pickled as torch does: they can be resized afterwards, those that are views can not."""
_REDUCE_CODE = cloudpickle.Pickler.dispatch_table[CodeType]
_own_gpu = ""
"""Of this process: "cuda:3"."""


def arrive_on(device: str) -> None:
    """Have tensors that were on a GPU arrive on this one; an empty name: in main memory."""
    global _own_gpu
    _own_gpu = device


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
        pickler = Pickler(file, protocol=protocol, buffer_callback=buffer_callback)
        pickler.on_function = on_function
        pickler.dump(value)
        return file.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """What `dumps` pickles with."""

    on_function: Callable[[FunctionType], object] | None = None

    def reducer_override(self, value: Any) -> Any:
        if self.on_function is not None and type(value) is FunctionType:
            self.on_function(value)
        if type(value) is CodeType:
            return _reduce_code(value)
        torch: Any = sys.modules.get("torch.storage")
        if torch is not None and type(value) in (torch.TypedStorage, torch.UntypedStorage):
            return _reduce_storage(value)
        if (wrapper := reduce_wrapper(value)) is not NotImplemented:
            return wrapper
        reduced = super().reducer_override(value)
        if reduced is not NotImplemented and typing.is_typeddict(value):
            return _reduce_typed_dict(value, *reduced)
        return reduced


def _reduce_code(code: CodeType) -> Any:
    """As cloudpickle, which names the file "<dynamic-code>" from 3.1.3 on, for equal bytes: tracebacks, breakpoints
    and `inspect.getsource` need its name."""
    make, arguments = _REDUCE_CODE(code)
    name = "".join(code.co_filename)  # a string of its own, as cloudpickle's: equal pickles for equal code
    return make, tuple(name if each == "<dynamic-code>" else each for each in arguments)


def _reduce_typed_dict(value: type, make: Any, arguments: tuple[Any, ...], *state: Any) -> Any:
    """As cloudpickle, which takes `dict` for the base where Python 3.11 has kept none: what a call has made, and what
    extends another one."""
    bases = vars(value).get("__orig_bases__", (typing.TypedDict,))
    return make, (*arguments[:2], bases, *arguments[3:]), *state


def _reduce_storage(storage: Any) -> Any:
    untyped = getattr(storage, "_untyped_storage", storage)
    if untyped.device.type == "cuda":
        torch = importlib.import_module("torch")
        return load_gpu_storage, (_typed(torch, untyped.cpu(), getattr(storage, "dtype", torch.uint8)),)
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
    return _typed(torch, untyped, dtype)


def load_gpu_storage(storage: Any) -> Any:
    """In pickles: return what was a GPU's: on the own one, where there is one."""
    if not _own_gpu:
        return storage
    torch = importlib.import_module("torch")
    return _typed(torch, storage._untyped_storage.to(device=torch.device(_own_gpu)), storage.dtype)


def _typed(torch: Any, untyped: Any, dtype: Any) -> Any:
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)
