"""What a value is to a save: a state, a tensor, a plain value, a random state, or nothing that is saved, and why. And
what is kept of a namespace, or of the attributes of actors, under which names.

torch and numpy are looked at only where the rank has imported them: else nothing is of theirs.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import io
import pathlib
import random
import sys
import types
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from monarch_nb.errors import SaveError
from monarch_nb.lines.named import nearest
from monarch_nb.worker.saving.asked import OF_CELLS

Kind = Literal["state", "tensor", "value", "random states"]

_SCALARS = (
    types.NoneType, bool, int, float, complex, str, bytes, bytearray, range, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID,
    pathlib.PosixPath, pathlib.PurePosixPath,
)  # fmt: skip
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_MOST_DEEP = 100
_MOST_CONTAINERS = 10_000
_DEVICES = ("cuda", "xpu", "mps")
"""Kinds of torch's devices that have random states of their own."""
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def torch() -> Any:
    """Return torch if this rank has imported it, else None."""
    return sys.modules.get("torch")


def numpy() -> Any:
    """Return numpy if this rank has imported it, else None."""
    return sys.modules.get("numpy")


def kind_of(value: object) -> tuple[Kind | None, str]:
    """Return what a value is saved as; or None, and why it is not saved."""
    if isinstance(value, type):
        return None, f"a class: {OF_CELLS}"
    if isinstance(value, types.ModuleType):
        return None, f"a module: {OF_CELLS}"
    if isinstance(value, io.IOBase):
        return None, f"an open file: {OF_CELLS}"
    if is_random(value):
        return "random states", ""
    if is_tensor(value):
        why = _not_dense(value)
        return (None, why) if why else ("tensor", "")
    if has_state(value):
        return ("state", "") if not is_fsdp1(value) else (None, _FSDP1)
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return None, f"a function: {OF_CELLS}"
    why = not_plain(value)
    return (None, why) if why else ("value", "")


def has_state(value: object) -> bool:
    """Return whether a value tells its state, and takes it back."""
    own = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, (type, types.ModuleType)) and all(map(callable, own))


def parts_with_states(value: object) -> dict[str, Any]:
    """Return what stands in a container of objects that have a state, such as the networks of a GAN, by key or place;
    empty if the value is none, or its keys make no names."""
    pairs, seen = _inner(value), {id(value)}
    if not any(states_in(each, seen) for _, each in pairs):
        return {}
    found = {str(key): each for key, each in pairs if type(key) in (str, int)}
    return found if len(found) == len(pairs) and not any("." in key for key in found) else {}


def states_in(value: object, seen: set[int] | None = None) -> list[Any]:
    """Return the objects that have a state: the value itself, or those in a container."""
    if has_state(value):
        return [value]
    seen = set() if seen is None else seen
    if not (pairs := _inner(value)) or id(value) in seen or len(seen) > _MOST_CONTAINERS:
        return []
    seen.add(id(value))
    return [found for _, each in pairs for found in states_in(each, seen)]


def _inner(value: Any) -> list[tuple[Any, Any]]:
    if type(value) in (list, tuple):
        return list(enumerate(value))
    return list(value.items()) if type(value) in (dict, collections.OrderedDict, collections.defaultdict) else []


_FSDP1 = (
    "FullyShardedDataParallel gathers its state with the training's own group; torch.distributed.fsdp.fully_shard "
    "does not, and is saved"
)


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor with memory of its own. One that is made of others (`__tensor_flatten__`), as
    quantized ones are, is an object like any other; but DCP knows DTensors."""
    module = torch()
    is_one = module is not None and isinstance(value, module.Tensor)
    return is_one and (is_dtensor(value) or not hasattr(value, "__tensor_flatten__"))


def is_dtensor(value: object) -> bool:
    """Return whether a value is a tensor of which each rank has a part."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def device_here(kind: str) -> str:
    """Return the device of this rank for tensors that were on a kind of device: the CPU where it has no such."""
    module = torch()
    is_there = kind == "cuda" and module is not None and module.cuda.is_available()
    return f"cuda:{module.cuda.current_device()}" if module is not None and is_there else "cpu"


def _not_dense(value: Any) -> str:
    if is_dtensor(value) and any(each.is_partial() for each in value.placements):
        return "a tensor of which each rank has a summand: full_tensor() adds them up"
    local = value.to_local() if is_dtensor(value) else value
    if local.is_meta:
        return "a tensor on the device meta has no data"
    if local.layout != torch().strided or local.is_quantized:
        return f"a tensor that is {'quantized' if local.is_quantized else str(local.layout).removeprefix('torch.')}"
    return ""


def is_fsdp1(value: object) -> bool:
    """Return whether a module is wrapped by FullyShardedDataParallel, or has a part that is."""
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    module = torch()
    if fsdp is None or not isinstance(value, module.nn.Module):
        return False
    return any(isinstance(each, fsdp.FullyShardedDataParallel) for each in value.modules())


def is_random(value: object) -> bool:
    """Return whether a value makes random numbers, and can be set back."""
    kinds: list[type] = [random.Random]
    if (module := torch()) is not None:
        kinds.append(module.Generator)
    if (arrays := numpy()) is not None:
        kinds += [arrays.random.Generator, arrays.random.RandomState]
    return isinstance(value, tuple(kinds)) and not isinstance(value, random.SystemRandom)


def is_plain_or_container(value: object) -> bool:
    """Return whether a value may be a plain one, or has others in it. What is in it is not looked at. None is nobody's
    business, nor are tensors that a computation has made: they are made again."""
    if is_tensor(value):
        return value.grad_fn is None  # type: ignore[attr-defined]
    arrays = numpy()
    is_array = arrays is not None and isinstance(value, arrays.ndarray | arrays.generic)
    is_plain = value is not None and type(value) in (*_SCALARS, *_SEQUENCES, *_MAPPINGS)
    return is_plain or is_array or is_random(value)


def unwrapped(value: Any) -> Any:
    """Return the module that DistributedDataParallel and torch.compile have wrapped; any other value as it is."""
    module = torch()
    if module is None or not isinstance(value, module.nn.Module):
        return value
    while True:
        if isinstance(value, module.nn.parallel.DistributedDataParallel | module.nn.DataParallel):
            value = value.module
        elif "_orig_mod" in vars(value).get("_modules", {}):
            value = value._orig_mod
        else:
            return value


def not_plain(value: object, depth: int = 0) -> str:
    """Return why a value is no plain value, or container of these; empty when it is."""
    if type(value) in _SCALARS or is_tensor(value):
        return ""
    if depth > _MOST_DEEP:
        return "containers in containers without end"
    if type(value) in _SEQUENCES:
        return _first_reason(value, depth)
    if type(value) in _MAPPINGS:
        factory = getattr(value, "default_factory", None)
        if factory is not None and not isinstance(factory, type):
            return "a defaultdict that calls a function"
        return _first_reason([*value, *value.values()], depth)  # type: ignore[attr-defined, misc]
    if (arrays := numpy()) is not None and isinstance(value, arrays.ndarray | arrays.generic):
        return "an array of Python objects" if value.dtype.hasobject else ""
    if (module := torch()) is not None and isinstance(value, module.Size | module.dtype | module.device):
        return ""
    name = type(value).__qualname__
    if depth and callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        return f"a container that holds {a(name)}: give that a name of its own"
    way_out = "; torchdata's StatefulDataLoader has one" if name == "DataLoader" else ""
    return f"{a(name)}: no plain value, and has no state_dict(){way_out}"


def a(noun: str) -> str:
    """Return a noun with its article. Pure."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def _first_reason(values: Any, depth: int) -> str:
    return next((why for each in values if (why := not_plain(each, depth + 1))), "")


def has_tensors(value: object) -> bool:
    """Return whether a plain value has a tensor somewhere in it."""
    if is_tensor(value):
        return True
    if isinstance(value, Mapping):
        return any(has_tensors(each) for each in value.values())
    return isinstance(value, _SEQUENCES) and any(has_tensors(each) for each in value)


def random_state(value: Any) -> Any:
    """Return the state of what makes random numbers, as a plain value."""
    if isinstance(value, random.Random):
        return value.getstate()
    if (module := torch()) is not None and isinstance(value, module.Generator):
        return value.get_state()
    return plain_state(value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state())


def new_random(type_name: str, state: Any) -> Any:
    """Return what makes random numbers, of a class, into which a state fits; None if only cells can make it."""
    if type_name == "Random":
        return random.Random()
    if is_tensor(state) and (module := torch()) is not None:
        devices = ("cpu", "cuda") if module.cuda.is_available() else ("cpu",)
        made = (module.Generator(device) for device in devices)
        return next((each for each in made if each.get_state().numel() == state.numel()), None)
    if type_name not in ("Generator", "RandomState") or numpy() is None:
        return None
    import numpy as arrays

    if type_name == "RandomState":
        return arrays.random.RandomState()
    name = state.get("bit_generator")
    return arrays.random.Generator(getattr(arrays.random, name)()) if name in _BIT_GENERATORS else None


def set_random_state(value: Any, state: Any) -> None:
    """Set what makes random numbers back."""
    if isinstance(value, random.Random):
        value.setstate((state[0], tuple(state[1]), state[2]))
    elif (module := torch()) is not None and isinstance(value, module.Generator):
        value.set_state(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def plain_state(state: Any) -> Any:
    """Return a state of numpy's with lists in place of arrays, which it takes as well."""
    if isinstance(state, dict):
        return {key: plain_state(each) for key, each in state.items()}
    if isinstance(state, tuple):
        return tuple(plain_state(each) for each in state)
    arrays = numpy()
    return state.tolist() if arrays is not None and isinstance(state, arrays.ndarray | arrays.generic) else state


def process_random_states() -> dict[str, Any]:
    """Return the random states of Python, numpy and torch, and of torch's devices that are in use."""
    states: dict[str, Any] = {"python": random.getstate()}
    if (arrays := numpy()) is not None:
        states["numpy"] = plain_state(arrays.random.get_state())
    if (module := torch()) is not None:
        states["torch"] = module.get_rng_state()
        for kind in _DEVICES:
            device = getattr(module, kind, None)
            if device is not None and device.is_available() and getattr(device, "is_initialized", lambda: True)():
                states[kind] = device.get_rng_state()
    return states


def set_process_random_states(states: Mapping[str, Any]) -> None:
    """Set the random states of Python, numpy and torch back."""
    if (state := states.get("python")) is not None:
        random.setstate((state[0], tuple(state[1]), state[2]))
    if "numpy" in states:
        import numpy as arrays

        arrays.random.set_state(states["numpy"])
    if (module := torch()) is not None and "torch" in states:
        module.set_rng_state(states["torch"])
        for kind in _DEVICES:
            if kind in states and getattr(module, kind).is_available():
                getattr(module, kind).set_rng_state(states[kind])


RANDOM_STATES = "random_states"
"""The name of the random states of the process: no object has them."""


@dataclass
class Holder:
    """An object that is saved, or loaded into, under a name.

    Attributes:
        name, kind, value: of it. `value` is the plain module where it was wrapped.
        wrapper: what the name itself means.
        put: binds the name to another value; None where nothing is bound, as for random states.
    """

    name: str
    kind: Kind
    value: Any
    wrapper: Any
    put: Callable[[Any], None] | None = None

    @property
    def type_name(self) -> str:
        """The name of the class of what is saved."""
        return type(self.value).__qualname__

    def state(self) -> Any:
        """Return what is stored of it: its state, or the value itself.

        Raises:
            Exception: whatever its state_dict() raises.
        """
        if self.kind == "state":
            return self.value.state_dict()
        if self.kind == "random states":
            return process_random_states() if self.value is None else random_state(self.value)
        return self.value


@dataclass
class Collected:
    """What there is under names.

    Attributes:
        holders: by name. aliases: other names of an object, with the name that it is saved under.
        left_out: why a name is not saved, by name.
        missing: names that were asked for and are not there, with what is said of that.
        containers: those of whose parts each has a name of its own, `nets.generator`.
    """

    holders: dict[str, Holder] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)


def collect(
    namespace: Mapping[str, Any],
    names: Collection[str] = (),
    *,
    hidden: Collection[str] = (),
    put: Callable[[str, Any], None] | None = None,
    random_states: bool = True,
) -> Collected:
    """Look at what stands under names.

    Args:
        namespace: what to look at. Names that begin with an underscore are nobody's business unless they are named.
        names: only these; each must be of a kind that is saved, if it is there.
        hidden: names that are not looked at unless they are named.
        put: binds a name to a value.
        random_states: whether those of the process belong to it.

    Raises:
        SaveError: a name that was asked for is of a kind that is not saved.
    """
    found = Collected()
    looked_at = [name for name in namespace if not name.startswith("_") and name not in hidden]
    if names:
        looked_at = [name if name in namespace else name.partition(".")[0] for name in names]
    look = _Look(found, names)
    containers = {}
    for name in dict.fromkeys(each for each in looked_at if each in namespace):
        bind = None if put is None else _binder(put, name)
        if kind_of(namespace[name])[0] is None and parts_with_states(namespace[name]):
            containers[name] = bind
        else:
            look.at(name, namespace[name], bind)
    for name, bind in containers.items():  # after all that has a name of its own
        look.at(name, namespace[name], bind)
    there = [*found.holders, *found.aliases, *found.left_out, RANDOM_STATES]
    others = [each for each in namespace if each not in hidden]
    found.missing = {name: not_there(name, others) for name in names if not is_of(name, there)}
    if random_states and (not names or RANDOM_STATES in names) and RANDOM_STATES not in found.holders:
        found.holders[RANDOM_STATES] = Holder(RANDOM_STATES, "random states", None, None)
    _leave_out_parts(found)
    if names and found.left_out:
        raise SaveError(
            "; ".join(f"`{name}` can not be saved: {why}" for name, why in found.left_out.items()), found.left_out
        )
    return found


@dataclass
class _Look:
    """Finds out what values are saved as.

    Attributes:
        found: where that is noted. names: only these, and what stands under them; empty for all.
        seen: under which name an object is saved, by its id.
    """

    found: Collected
    names: Collection[str]
    seen: dict[int, str] = field(default_factory=dict)

    def at(self, name: str, value: Any, bind: Callable[[Any], None] | None) -> None:
        """Look at a value. What has a state in a container is saved under `name.key`."""
        if self.names and not any(is_of(each, [name]) or is_of(name, [each]) for each in self.names):
            return
        found = self.found
        kind, why = kind_of(value)
        parts = parts_with_states(value) if kind is None else {}
        plain = unwrapped(value)
        is_known_by_itself = parts or kind in ("state", "tensor", "random states")
        if is_known_by_itself and (before := self.seen.setdefault(id(plain), name)) != name:
            found.aliases[name] = before
        elif parts:
            found.containers[name] = value
            for key, part in parts.items():
                self.at(f"{name}.{key}", part, _bind_part(value, key))
        elif kind is None:
            found.left_out[name] = why
        elif kind == "value" and "." in name and bind is None:
            found.left_out[name] = "a value in a tuple: loading could not change it"
        else:
            found.holders[name] = Holder(name, kind, plain, value, bind)


def _bind_part(container: Any, key: str) -> Callable[[Any], None] | None:
    if isinstance(container, tuple):
        return None
    place = int(key) if isinstance(container, list) else next(each for each in container if str(each) == key)
    return lambda value: container.__setitem__(place, value)


def is_of(wanted: str, names: Iterable[str]) -> bool:
    """Return whether one of these is a name, or stands under it. Pure.

    Example:
        >>> is_of("nets", ["nets.generator"]), is_of("net", ["nets"])
        (True, False)
    """
    return any(name == wanted or name.startswith(f"{wanted}.") for name in names)


def not_there(name: str, names: Iterable[str]) -> str:
    """Return what is said of a name that is not there. Pure.

    Example:
        >>> not_there("modle", ["model", "_", "step"])
        'there is no such name; did you mean `model`?'
    """
    near = nearest(name, [each for each in names if not each.startswith("_")], most=2)
    meant = f"; did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else ""
    return f"there is no such name{meant}"


def _binder(put: Callable[[str, Any], None], name: str) -> Callable[[Any], None]:
    return lambda value: put(name, value)


def _leave_out_parts(found: Collected) -> None:
    """A tensor that is a parameter of a module which is saved is saved with it; so is a part of a module."""
    module = torch()
    if module is None:
        return
    modules = [each for each in found.holders.values() if isinstance(each.value, module.nn.Module)]
    parts: dict[int, str] = {}
    for each in sorted(modules, key=lambda holder: sum(1 for _ in holder.value.modules())):  # the outermost counts
        parts.update((id(inner), each.name) for inner in _tensors_and_modules(each.value))
    for name, holder in list(found.holders.items()):
        whole = parts.get(id(holder.value))
        if whole is not None and whole != name and whole in found.holders:
            found.aliases[name] = whole
            del found.holders[name]


def _tensors_and_modules(whole: Any) -> Iterable[Any]:
    yield from whole.parameters()
    yield from whole.buffers()
    inner = whole.modules()
    next(inner)
    yield from inner
