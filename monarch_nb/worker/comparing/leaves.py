"""A value in named parts, each with what is compared: what it is, and its contents in a few bytes."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.worker.digests import digest, plain

if TYPE_CHECKING:
    import numpy
    import torch

MAX_LEAVES = 200_000
"""A value of more parts is compared up to here, and that is said."""
MAX_TEXT_CHARACTERS = 160
"""Of the text of a value; a longer one ends with a digest of the whole."""
_MAX_DEPTH = 40
_NUMBERS = frozenset(
    ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
)
"""Types of arrays that can be looked at as tensors."""
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


class Leaf(NamedTuple):
    """A part of a value.

    Attributes:
        path: its name: "layers.2.weight"; empty for the value itself.
        facts: what it is: "[512, 512] float32 cpu", or the type of a plain value.
        contents: the digest of a tensor; the text of a plain value.
        is_tensor: whether `contents` is a digest.
        part: which part of a tensor that is spread over ranks. Only equal parts are compared.
    """

    path: str
    facts: str
    contents: str
    is_tensor: bool = False
    part: str = ""


class Leaves:
    """The parts of a value, and the tensors among them, for further questions.

    Example:
        >>> Leaves({"lr": 0.1}).all
        [Leaf(path='lr', facts='float', contents='0.1', is_tensor=False, part='')]
    """

    def __init__(self, value: Any) -> None:
        self.all: list[Leaf] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.left_out = 0
        self._arrays: dict[str, numpy.ndarray[Any, Any]] = {}
        self._inside: list[int] = []
        self._add("", value)

    def tensor(self, path: str) -> torch.Tensor | None:
        """Return the tensor under a name, or an array as a tensor; None where there is none, or none can be made."""
        found = self.tensors.get(path)
        array = self._arrays.get(path)
        if found is None and array is not None and "torch" in sys.modules:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes to it
                return _as_tensor(array)
        return found

    def _add(self, path: str, value: Any) -> None:
        if len(self.all) >= MAX_LEAVES:
            self.left_out += 1
        elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
            self._add_tensor(path, value, torch)
        elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
            self._add_array(path, value, numpy)
        elif id(value) in self._inside or len(self._inside) >= _MAX_DEPTH:
            self.all.append(Leaf(path, type(value).__name__, "(contains itself)"))
        elif (parts := _parts(value)) is not None:
            self._inside.append(id(value))
            empty = True
            for name, part in parts:
                self._add(_joined(path, name), part)
                empty = False
            if empty:
                self.all.append(Leaf(path, type(value).__name__, "(empty)"))
            self._inside.pop()
        else:
            self.all.append(Leaf(path, type(value).__name__, _text(value)))

    def _add_tensor(self, path: str, tensor: torch.Tensor, torch: Any) -> None:
        facts = [str(list(tensor.shape)), str(tensor.dtype).removeprefix("torch."), tensor.device.type]
        own, part = tensor, ""
        if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
            own = tensor.to_local()
            own = own.wait() if hasattr(own, "wait") else own
            part = _part(tensor)
            facts.append(", ".join(map(str, tensor.placements)))
        if tensor.requires_grad:
            facts.append("requires_grad")
        is_plain = own.layout == torch.strided and own.device.type != "meta" and not own.is_quantized
        if not is_plain:
            self.all.append(Leaf(path, " ".join(facts), _text(tensor)))
            return
        own = plain(own)
        self.all.append(Leaf(path, " ".join(facts), digest(own), True, part))
        self.tensors[path] = own

    def _add_array(self, path: str, array: numpy.ndarray[Any, Any], numpy: Any) -> None:
        facts = f"{list(array.shape)} {array.dtype} array"
        if array.dtype.hasobject:
            self.all.append(Leaf(path, facts, _text(array)))
            return
        contents = numpy.ascontiguousarray(array).view(numpy.uint8) if array.size else b""
        self.all.append(Leaf(path, facts, hashlib.sha256(contents).hexdigest()[:32], True))
        if array.dtype.name in _NUMBERS:
            self._arrays[path] = array


def _as_tensor(array: numpy.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    return torch.from_numpy(array if array.flags.c_contiguous else array.copy("C"))


def whole_digest(leaves: Sequence[Leaf]) -> str:
    """Return one digest of all parts: ranks that have the same one do not differ."""
    whole = hashlib.sha256()
    for leaf in leaves:
        whole.update(repr(tuple(leaf)).encode(errors="surrogatepass"))
    return whole.hexdigest()


def _part(tensor: Any) -> str:
    """Return which shard of a DTensor is here: its place in the dimensions in which it is not replicated."""
    place = tensor.device_mesh.get_coordinate()
    if place is None:
        return "none"
    spread = [
        str(index) for index, placement in zip(place, tensor.placements, strict=True) if not placement.is_replicate()
    ]
    return ",".join(spread)


# ---- what is in a value ----


def _parts(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the named parts of a value that has any; None of a plain one."""
    for has_parts, parts in _KINDS:
        if has_parts(value):
            return parts(value)
    return None


def _is_module(value: Any) -> bool:
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(value, nn.Module)


def _of_module(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for name, each in module.named_modules():
        yield f"{name}.training" if name else "training", each.training


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "state_dict", None))


def _of_mapping(mapping: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    return ((key if type(key) is str else f"[{_text(key)}]", each) for key, each in mapping.items())


def _of_sequence(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"[{place}]", each) for place, each in enumerate(values))


def _of_fields(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))


def _of_set(values: Set[Any]) -> Iterator[tuple[str, Any]]:
    yield "", ", ".join(sorted(map(_text, values)))


_KINDS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], Iterator[tuple[str, Any]]]]] = (
    (_is_module, _of_module),
    (_has_state, lambda value: _of_mapping(value.state_dict())),
    (lambda value: isinstance(value, Mapping), _of_mapping),
    (lambda value: isinstance(value, tuple) and hasattr(value, "_fields"), lambda value: _of_mapping(value._asdict())),
    (lambda value: dataclasses.is_dataclass(value) and not isinstance(value, type), _of_fields),
    (lambda value: type(value) in (list, tuple), _of_sequence),
    (lambda value: type(value) in (set, frozenset), _of_set),
    (
        lambda value: isinstance(value, (argparse.Namespace, types.SimpleNamespace)),
        lambda value: _of_mapping(vars(value)),
    ),
)
"""Kinds of values that have parts: whether a value is of the kind, and its parts. The first that fits counts."""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else f"{path}{name}"


def _text(value: Any) -> str:
    """Return the text of a value, which other ranks' is compared with. Addresses in memory tell nothing."""
    if isinstance(value, (types.FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    text = _ADDRESS.sub("0x…", repr(value))
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    rest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{text[:MAX_TEXT_CHARACTERS]}… ({len(text):,} characters, {rest})"
