"""Where the memory of a rank is: `%mesh memory`, and what is kept of it when there is no more.

The largest tensors are searched for with the names under which namespaces, modules and optimizers hold them. Only plain
containers, modules, optimizers and objects' own attributes are looked into: nothing of the user's is called. Memory
that several tensors share is counted once. No GPU is opened that the process has not opened itself. Answers are bytes:
see comparing.py.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import re
import sys
import time
import types
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from monarch_nb.config import TORCH_PRESETS


class GpuFigures(NamedTuple):
    """A process' memory on its GPU, in bytes.

    Attributes:
        allocated: by tensors. reserved: by torch's allocator, which keeps what tensors have given back.
        largest_free: the largest piece of what is reserved and not allocated: a larger tensor needs new memory.
        greatest: what was allocated at most so far.
        free, total: of the GPU, whoever uses it.
    """

    allocated: int
    reserved: int
    largest_free: int
    greatest: int
    free: int = 0
    total: int = 0

    @property
    def fragmentation(self) -> int:
        """What is reserved and not allocated."""
        return self.reserved - self.allocated


def gpu_figures(
    stats: Mapping[str, Any], segments: Iterable[Mapping[str, Any]], free: int = 0, total: int = 0
) -> GpuFigures:
    """Return the figures of a GPU.

    Args:
        stats: as `torch.cuda.memory_stats()` returns them.
        segments: as `torch.cuda.memory_snapshot()` returns them.
        free, total: as `torch.cuda.mem_get_info()` returns them.
    """
    return GpuFigures(
        stats.get("allocated_bytes.all.current", 0),
        stats.get("reserved_bytes.all.current", 0),
        max(
            (block["size"] for each in segments for block in each["blocks"] if block["state"] == "inactive"), default=0
        ),
        stats.get("allocated_bytes.all.peak", 0),
        free,
        total,
    )


def kilobytes(text: str, name: str) -> int:
    """Return a figure of a file such as /proc/self/smaps_rollup, in bytes; 0 if it is not there.

    Example:
        >>> kilobytes("Rss:   2048 kB\\nPss:   1024 kB\\n", "Pss")
        1048576
    """
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return 0


def gpu_now() -> GpuFigures | None:
    """Return the gpu_now of the rank's GPU; None if it has none, or has not used it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return gpu_figures(torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), *torch.cuda.mem_get_info())


def give_back() -> int:
    """Give back what torch keeps of the GPU for tensors to come, and what others have let go that this process shared
    with them; return how many bytes of it torch had kept."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    kept = torch.cuda.memory_reserved()  # what is free on the GPU, other processes change as well
    torch.cuda.empty_cache()
    return int(kept - torch.cuda.memory_reserved())


MOST_TENSORS = 20
"""So many of the largest are told."""
MOST_VALUES = 200_000
WITHIN_S = 2.0
"""The search ends after so many values, and after this time."""
_MOST_DEPTH = 12
_MOST_NAMES = 3
_NOT_THE_USERS = frozenset(("In", "Out", "exit", "quit", "get_ipython", "actors", *TORCH_PRESETS))
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


NOTED_WITHIN_S = 1.0
"""The failure is told no later than that."""
_CLASSES = frozenset(("OutOfMemoryError", "MemoryError", "_ArrayMemoryError"))
_WORDS = ("CUDA out of memory", "HIP out of memory", "DefaultCPUAllocator: can't allocate memory")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ASKED = re.compile(rf"(?:[Tt]ried to|Unable to) allocate ([\d.]+) ({'|'.join(_UNITS)})")
_OURS = frozenset(("monarch_nb", "IPython"))

_last: tuple[str, dict[str, Any]] | None = None


def is_out_of_memory(name: str, message: str) -> bool:
    """Return whether an error says that an allocation failed.

    Args:
        name: of its class.

    Example:
        >>> is_out_of_memory("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …")
        True
    """
    return name in _CLASSES or any(words in message for words in _WORDS)


def asked_bytes(message: str) -> int:
    """Return how much was asked for in an allocation that failed; 0 where its error does not say that.

    Example:
        >>> asked_bytes("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …") / 2**30
        20.0
        >>> asked_bytes("… DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12")
        4096
    """
    found = _ASKED.search(message)
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2])) if found else 0


def note(error: BaseException, namespace: Mapping[str, Any], run_id: str) -> None:
    """Keep what the namespace and the frames of an error hold, if an allocation has failed."""
    global _last
    with contextlib.suppress(Exception):  # there may be no memory for this, either: the error is what matters
        if not is_out_of_memory(type(error).__name__, str(error)):
            return
        held = Held(within_s=NOTED_WITHIN_S).look(namespace)
        for function, variables in _frames(error.__traceback__, namespace):
            held.look(variables, f"{function}(): ")
        _last = (run_id, figures() | {"held": tuple(held.found())})


def take(run_id: str) -> dict[str, Any] | None:
    """Return what was noted in a run, once."""
    global _last
    noted, _last = _last, None
    return noted[1] if noted is not None and noted[0] == run_id else None


def _frames(trace: TracebackType | None, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    while trace is not None:
        frame = trace.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _OURS and frame.f_locals is not namespace:
            yield frame.f_code.co_qualname, frame.f_locals
        trace = trace.tb_next


_NO_NAMES: Mapping[str, Any] = types.MappingProxyType({})


def now(names: Mapping[str, Any], local_names: Mapping[str, Any] = _NO_NAMES, *, release: bool = False) -> bytes:
    """Answer with the figures, and with the largest tensors that namespaces hold. What only garbage holds goes first:
    it would look like a leak.

    Args:
        local_names: at a breakpoint in a function: these hide others.
        release: give the memory of the GPU back before that in which no tensors are.
    """
    gc.collect()
    released = {"released": give_back()} if release else {}
    hidden = {name: value for name, value in names.items() if local_names.get(name, value) is not value}
    held = Held().look({**names, **local_names}).look(hidden, of="global ")
    return _packed(figures() | released | {"held": tuple(held.found())})


def at_failure(run_id: str) -> bytes:
    """Answer with what was held when an allocation failed in a run; None if none did. It is kept no longer."""
    return _packed(take(run_id))


def figures() -> dict[str, Any]:
    """Return how much memory this process uses, and how much of its GPU."""
    gpu = gpu_now()
    return {
        "pss": kilobytes(_read("/proc/self/smaps_rollup"), "Pss"),
        "greatest_rss": kilobytes(_read("/proc/self/status"), "VmHWM"),
        "gpu": None if gpu is None else tuple(gpu),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _packed(answer: Any) -> bytes:
    return zlib.compress(pickle.dumps(answer), 1)
