"""A state taken apart into what DCP stores under keys, as DCP itself does it, and put together again.

`{"layers.0.weight": tensor}` of `model` has the key `model.layers.0.weight`; what stands in a list has its place as a
part of the key. What wrappers add to the names of a module's parts is taken out: a save has the plain module's names.
"""

from __future__ import annotations

import codecs
import collections
import datetime
import decimal
import fractions
import hashlib
import importlib
import io
import itertools
import pathlib
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch_nb.worker import digests
from monarch_nb.worker.saving import collecting
from monarch_nb.worker.saving.collecting import has_tensors, is_dtensor, is_tensor

Path = tuple[tuple[str, Any], ...]
"""The way to a leaf: ("key", k) into a mapping, ("at", n) into a list."""

_WRAPPED = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.|$)")
_MANY, _SMALL_BYTES = 1000, 1 << 16
_SAMPLED = 16


@dataclass
class Leaf:
    """A value that is stored under a key.

    Attributes:
        name: of the object that it belongs to. path: from there to it. value: it.
    """

    name: str
    path: Path
    value: Any

    @property
    def key(self) -> str:
        """Its key, as DCP makes it."""
        return ".".join([self.name, *(str(step) for _, step in self.path)])


def take_apart(name: str, state: Any, *, keeps_types: bool = False) -> list[Leaf]:
    """Return the leaves of a state. One that has two values under one key is a single leaf.

    Args:
        keeps_types: a mapping of another class than dict is a single leaf, for what is put together is a dict. So is a
            value of many small parts, such as a data set in memory: DCP takes a millisecond for each of its items.
    """
    parts = _walk(name, (), state, keeps_types=keeps_types)
    leaves = list(itertools.islice(parts, _MANY))
    if keeps_types and len(leaves) == _MANY and _are_small(leaves):
        return [Leaf(name, (), state)]
    leaves += parts
    if len({leaf.key for leaf in leaves}) < len(leaves):
        return [Leaf(name, (), state)]
    return leaves


def _are_small(leaves: Iterable[Leaf]) -> bool:
    tensors = [leaf.value for leaf in leaves if is_tensor(leaf.value)]
    if any(is_dtensor(each) for each in tensors):
        return False
    size_bytes: int = sum(each.numel() * each.element_size() for each in tensors)
    return size_bytes < _MANY * _SMALL_BYTES


def _walk(name: str, path: Path, value: Any, *, keeps_types: bool) -> Iterable[Leaf]:
    if isinstance(value, Mapping) and value and _is_nested(value, keeps_types=keeps_types):
        for key, each in value.items():
            yield from _walk(name, (*path, ("key", plain_name(key))), each, keeps_types=keeps_types)
    elif type(value) is list and any(isinstance(each, Mapping) or has_tensors(each) for each in value):
        for place, each in enumerate(value):
            yield from _walk(name, (*path, ("at", place)), each, keeps_types=keeps_types)
    else:
        yield Leaf(name, path, value)


def _is_nested(value: Mapping[Any, Any], *, keeps_types: bool) -> bool:
    if keeps_types and type(value) is not dict and not any(is_dtensor(each) for each in value.values()):
        return False
    return all(type(key) in (str, int) for key in value)


def plain_name(key: Any) -> Any:
    """Return the name that a part has in a module that nothing wraps."""
    return _WRAPPED.sub("", key).removeprefix(".") if isinstance(key, str) else key


def put_together(leaves: Iterable[tuple[Path, Any]]) -> Any:
    """Return the state of which these are the leaves."""
    root: list[Any] = [None]
    for path, value in leaves:
        holder: Any = root
        place: Any = 0
        for kind, step in path:
            if holder[place] is None:
                holder[place] = {} if kind == "key" else []
            holder, place = holder[place], step
            if kind == "key":
                holder.setdefault(step, None)
            else:
                holder.extend([None] * (step + 1 - len(holder)))
        holder[place] = value
    return root[0]


# ---- what tells whether two ranks have the same


def description(leaf: Leaf, *, is_kept_equal: bool = False) -> str:
    """Return a text that is equal where two ranks have the same value: bit for bit, of one type and shape.

    Of a tensor that is in parts, it says how it is: the parts differ.

    Args:
        is_kept_equal: DistributedDataParallel keeps it equal on all ranks: a part of a large tensor tells whether it
            went wrong.
    """
    value = leaf.value
    if is_dtensor(value):
        mesh = value.device_mesh
        return f"parts {tuple(value.shape)} {value.dtype} {mesh.mesh.tolist()} {value.placements}"
    if is_tensor(value):
        every = _SAMPLED if is_kept_equal else 1
        return f"tensor {tuple(value.shape)} {value.dtype} {digests.digest(value, every=every)}"
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, value)
    return f"value {digest.hexdigest()}"


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Feed a digest with a value as it is, not with how it is pickled, which differs with what is interned."""
    update(type(value).__qualname__.encode() + b"\0")
    if is_tensor(value):
        update(f"{tuple(value.shape)} {value.dtype} {digests.digest(value)}".encode())
    elif isinstance(value, bytes | bytearray):
        update(struct.pack("<q", len(value)) + value)
    elif isinstance(value, str):
        _feed(update, value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, Mapping):
        update(struct.pack("<q", len(value)))
        for key, each in value.items():
            _feed(update, key)
            _feed(update, each)
    elif isinstance(value, set | frozenset):
        inner = sorted(_digest_of(each) for each in value)
        update(struct.pack("<q", len(inner)) + b"".join(inner))
    elif isinstance(value, list | tuple) or type(value).__name__ == "deque":
        update(struct.pack("<q", len(value)))
        if _NUMBERS.issuperset(map(type, value)):
            update(repr(value).encode())
            return
        for each in value:
            _feed(update, each)
    elif (arrays := collecting.numpy()) is not None and isinstance(value, arrays.ndarray | arrays.generic):
        update(f"{value.dtype.str} {value.shape}".encode() + value.tobytes())
    elif not collecting.not_plain(value):
        update(repr(value).encode("utf-8", "surrogatepass"))
    else:  # what a state_dict() of the user's own holds
        update(pickled(value))


_NUMBERS = frozenset((int, float, bool))


def _digest_of(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest.update, value)
    return digest.digest()


def pickled(value: Any) -> bytes:
    """Return what DCP stores for a value that is no tensor.

    Raises:
        Exception: whatever its class raises.
    """
    torch: Any = collecting.torch()
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def unpickled(data: bytes, *, trusted: bool = False) -> Any:
    """Return the value that `pickled` stored.

    Args:
        trusted: execute what the pickle says, for values of classes that torch does not know to be harmless.

    Raises:
        pickle.UnpicklingError: it is not trusted, and would have to be.
    """
    torch: Any = collecting.torch()
    with torch.serialization.safe_globals(_harmless()):
        return torch.load(io.BytesIO(data), map_location=_Here(), weights_only=not trusted)


class _Here(dict[Any, Any]):
    """What tensors are read into: the kind of device that each was on, and this rank's own. A function can not say that
    for tensors that are made of others."""

    def get(self, location: Any, default: Any = None) -> Any:
        return collecting.device_here(str(location).partition(":")[0])


def _harmless() -> list[Any]:
    """What plain values are made of, besides what torch allows."""
    found: list[Any] = [*_HARMLESS]
    arrays = collecting.numpy()
    if arrays is not None:
        name = "numpy._core.multiarray" if hasattr(arrays, "_core") else "numpy.core.multiarray"
        core: Any = importlib.import_module(name)
        found += [arrays.ndarray, arrays.dtype, core._reconstruct, core.scalar]
        found += [type(arrays.dtype(each)) for each in "?bhilqBHILQefdgFDGmMSUV"]
    return found


_HARMLESS = (
    set, frozenset, bytes, codecs.encode, bytearray, complex, range, collections.deque, collections.defaultdict,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
    fractions.Fraction, pathlib.PosixPath, pathlib.PurePosixPath, uuid.UUID, list, dict, int, float, str, tuple, bool,
)  # fmt: skip
