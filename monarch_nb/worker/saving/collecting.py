"""What is kept of a namespace, or of the attributes of actors, under which names; and what is not, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.errors import SaveError
from monarch_nb.lines.choosing import nearest
from monarch_nb.worker.saving import kinds
from monarch_nb.worker.saving.kinds import Kind

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
            return kinds.process_random_states() if self.value is None else kinds.random_state(self.value)
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
        if kinds.kind_of(namespace[name])[0] is None and kinds.parts_with_states(namespace[name]):
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
        kind, why = kinds.kind_of(value)
        parts = kinds.parts_with_states(value) if kind is None else {}
        plain = kinds.unwrapped(value)
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
    module = kinds.torch()
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
