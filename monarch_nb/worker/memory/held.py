"""The largest tensors of a process, and the names under which namespaces, modules and optimizers hold them.

Only plain containers, modules, optimizers and objects' own attributes are looked into: nothing of the user's is called.
Memory that several tensors share is counted once.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_TENSORS = 20
"""So many of the largest are told."""
MOST_VALUES = 200_000
WITHIN_S = 2.0
"""The search ends after so many values, and after this time."""
_MOST_DEPTH = 12
_MOST_NAMES = 3
_NOT_THE_USERS = frozenset(("In", "Out", "exit", "quit", "get_ipython", "actors", "dist", "device"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.FunctionType)
_OF_MODULES = frozenset(("_parameters", "_buffers", "_modules"))


class Tensor(NamedTuple):
    """Memory that tensors use.

    Attributes:
        name: under which it was found; "" if no name was.
        facts: "[512, 512] float32 cpu".
        size_bytes: of the memory, however small the tensor.
        others: more names of the same memory.
    """

    name: str
    facts: str
    size_bytes: int
    others: tuple[str, ...] = ()


class Found(NamedTuple):
    """What was found.

    Attributes:
        largest: the largest, in order.
        tensors, size_bytes: how many have names, and their memory by type of device.
        unnamed: the same of tensors that only frames, closures or libraries hold.
        is_whole: whether the search came to its end.
    """

    largest: tuple[Tensor, ...]
    tensors: int
    size_bytes: dict[str, int]
    unnamed: int
    unnamed_bytes: dict[str, int]
    is_whole: bool


@dataclass
class _Memory:
    name: str
    facts: str
    device: str
    size_bytes: int
    own_bytes: int
    others: list[str] = field(default_factory=list)


class Held:
    """Looks for tensors.

    Example:
        >>> Held().look({"x": [1, 2]}).found().tensors
        0
    """

    def __init__(self, most_values: int = MOST_VALUES, within_s: float = WITHIN_S) -> None:
        self._left, self._until = most_values, time.monotonic() + within_s
        self._memory: dict[tuple[str, int], _Memory] = {}
        self._seen: set[int] = set()
        self._queue: deque[tuple[str, Any, int]] = deque()
        self._private: deque[tuple[str, Any, int]] = (
            deque()
        )  # looked at last: what has a public name, too, is called so
        self._optimizers: list[tuple[str, Any]] = []
        self._parameters: dict[int, str] = {}
        self._torch: Any = sys.modules.get("torch")

    def look(self, namespace: Mapping[str, Any], of: str = "") -> Held:
        """Look into the values of a namespace.

        Args:
            of: what stands before the names, as in "step(): ".
        """
        if self._torch is None:
            return self
        for name, value in list(namespace.items()):
            if not name.startswith("__") and name not in _NOT_THE_USERS:
                self._queue.append((of + name, value, 0))
        self._run()
        for name, optimizer in self._optimizers:
            for parameter, state in list(optimizer.state.items()):
                key = self._parameters.get(id(parameter), "…") if self._is_tensor(parameter) else parameter
                self._queue.append((f"{name}.state[{key}]", state, 0))
        self._optimizers = []
        self._run()
        return self

    def found(self) -> Found:
        """Return what was found, and what else there is that has no name."""
        named = list(self._memory.values())
        is_whole = self._goes_on()
        if is_whole and self._torch is not None:
            for each in gc.get_objects():
                if self._is_tensor(each):
                    with contextlib.suppress(Exception):
                        self._add("", each)
        unnamed = [each for each in self._memory.values() if not each.name]
        largest = sorted(self._memory.values(), key=lambda each: -each.size_bytes)[:MOST_TENSORS]
        return Found(
            tuple(Tensor(each.name, each.facts, each.size_bytes, tuple(each.others)) for each in largest),
            len(named),
            _by_device(named),
            len(unnamed),
            _by_device(unnamed),
            is_whole,
        )

    def _goes_on(self) -> bool:
        return self._left > 0 and time.monotonic() < self._until

    def _run(self) -> None:
        """Look at what waits, nearest names first."""
        while (self._queue or self._private) and self._left > 0:
            self._left -= 1
            if self._left % 256 == 0 and time.monotonic() >= self._until:
                self._left = 0
            name, value, depth = (self._queue or self._private).popleft()
            if isinstance(value, _PLAIN):
                continue
            with contextlib.suppress(Exception):  # what the user has made of a class
                self._look_at(name, value, depth)

    def _look_at(self, name: str, value: Any, depth: int) -> None:
        if self._is_tensor(value):
            self._add(name, value)
            return
        if id(value) in self._seen or depth > _MOST_DEPTH:
            return
        self._seen.add(id(value))
        for part, inner in _parts(self._torch, value):
            if not isinstance(inner, _PLAIN):
                queue = self._private if part.startswith("._") else self._queue
                queue.append((f"{name}{part}", inner, depth + 1))
        if isinstance(value, self._torch.optim.Optimizer):
            self._optimizers.append((name, value))

    def _is_tensor(self, value: Any) -> bool:
        return issubclass(type(value), self._torch.Tensor)

    def _add(self, name: str, tensor: Any) -> None:
        self._parameters.setdefault(id(tensor), name)
        if (own := getattr(tensor, "_local_tensor", None)) is not None:  # a DTensor: what is here of it
            self._note(name, own, f"{list(own.shape)} of {_facts(tensor)}")
        elif hasattr(type(tensor), "__tensor_flatten__"):
            for part in tensor.__tensor_flatten__()[0]:
                self._add(f"{name}.{part}" if name else "", getattr(tensor, part))
        else:
            self._note(name, tensor, _facts(tensor))
        if tensor.is_leaf and tensor.grad is not None:
            self._add(f"{name}.grad" if name else "", tensor.grad)

    def _note(self, name: str, tensor: Any, facts: str) -> None:
        if tensor.layout != self._torch.strided or tensor.device.type == "meta":
            return
        storage, device = tensor.untyped_storage(), tensor.device.type
        size_bytes, own_bytes = storage.nbytes(), tensor.numel() * tensor.element_size()
        if not size_bytes:
            return
        key, facts = (str(tensor.device), storage.data_ptr()), f"{facts} {device}"
        known = self._memory.get(key)
        if known is None:
            self._memory[key] = _Memory(name, facts, device, size_bytes, own_bytes)
        elif name and name != known.name and name not in known.others:
            if own_bytes > known.own_bytes:  # the other was a view of this one
                name, known.name = known.name, name
                known.facts, known.own_bytes = facts, own_bytes
            if len(known.others) < _MOST_NAMES:
                known.others.append(name)


def _facts(tensor: Any) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _parts(torch: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value is made of, by what is put behind its name."""
    if isinstance(value, torch.nn.Module):
        for kind in _OF_MODULES:
            yield from ((f".{name}", each) for name, each in list(vars(value)[kind].items()))
        for name, each in list(vars(value).items()):
            if name not in _OF_MODULES and not name.endswith("_hooks"):
                yield f".{name}", each
    elif isinstance(value, torch.optim.Optimizer):
        return
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]" if isinstance(key, (str, int)) else "[…]", each) for key, each in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{place}]", each) for place, each in enumerate(list(value)))
    elif isinstance(value, (set, frozenset)):
        yield from (("{…}", each) for each in list(value))
    elif isinstance(attributes := getattr(value, "__dict__", None), dict):
        yield from ((f".{name}", each) for name, each in list(attributes.items()))


def _by_device(memory: Iterable[_Memory]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for each in memory:
        sizes[each.device] = sizes.get(each.device, 0) + each.size_bytes
    return sizes
