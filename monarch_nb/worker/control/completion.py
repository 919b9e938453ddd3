"""Completing names and attributes from the live namespace without running user code: no property, no __getattr__."""

import builtins
import inspect
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from monarch_nb.worker.runs.actors import LiveActors

_EXPRESSION = re.compile(r"""((?:[^\W\d]\w*(?:\[(?:"[^"]*"|'[^']*')\])?\.)*)([^\W\d]\w*)?$""")
_STEP = re.compile(r"""\[["']([^"']*)["']\]|(\w+)""")
_KEY = re.compile(r"((?:[^\W\d]\w*\.)*[^\W\d]\w*)\[(['\"])([^'\"\[\]]*)$")
MISSING = object()
_MAPPINGS = (dict, LiveActors)
"""Looking into them runs no code of the user's."""
_TORCH_DICTIONARIES = ("_parameters", "_buffers", "_modules")
"""An nn.Module finds these by __getattr__."""
_LIMIT = 500


def complete(code: str, cursor: int, namespace: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the words that can stand at `cursor`, and where the completed word begins.

    Args:
        code: the cell.
        cursor: position in characters.
        namespace: the user's.

    Example:
        >>> complete("x = al", 6, {"alpha": 1})
        (['alpha'], 4)
    """
    line = code[:cursor].rpartition("\n")[2]
    if match := _KEY.search(line):
        keys = _keys(resolve(match[1].split("."), namespace))
        return _matching(keys, match[3]), cursor - len(match[3])
    match = _EXPRESSION.search(line)
    assert match is not None  # it matches the empty string
    prefix = match[2] or ""
    start = cursor - len(prefix)
    if line[: len(line) - len(match[0])].endswith("."):
        return [], start  # an attribute of something that only running the code would tell
    if path := match[1]:
        owner = resolve(_steps(path), namespace)
        names: Iterable[str] = [] if owner is MISSING else _attributes(owner)
    else:
        names = {*namespace, *vars(builtins), *keyword.kwlist} if prefix else set(namespace)
    return _matching(names, prefix), start


def _matching(names: Iterable[str], prefix: str) -> list[str]:
    hidden = "" if prefix.startswith("_") else "_"
    matches = [name for name in names if name.startswith(prefix) and not (hidden and name.startswith(hidden))]
    return sorted(matches)[:_LIMIT]


class Key(str):
    """A step to an item, as ["trainers"]; others are attributes."""

    __slots__ = ()


def _steps(path: str) -> list[str]:
    """Return the steps of `actors["trainers"].model`."""
    return [step[2] if step[2] is not None else Key(step[1]) for step in _STEP.finditer(path)]


def resolve(path: Sequence[str], namespace: Mapping[str, Any]) -> Any:
    """Return what a dotted name means; MISSING when only running code would tell."""
    first, *rest = path
    value = namespace.get(first, getattr(builtins, first, MISSING))
    for name in rest:
        value = _item(value, name) if isinstance(name, Key) else _attribute(value, name)
        if value is MISSING:
            return MISSING
    return value


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute that is stored, not computed."""
    value = stored(owner, name)
    computed = isinstance(value, property) or inspect.isdatadescriptor(value)
    return MISSING if computed else value


def stored(owner: Any, name: str) -> Any:
    """Return an attribute as its owner or the owner's class has it: a method is a function, a property itself."""
    own = own_dictionary(owner)
    if name in own:
        return own[name]
    for dictionary in _torch_dictionaries(own):
        if name in dictionary:
            return dictionary[name]
    return inspect.getattr_static(owner, name, MISSING)


def _attributes(owner: Any) -> set[str]:
    own = own_dictionary(owner)
    names = set(own)
    for dictionary in _torch_dictionaries(own):
        names.update(dictionary)
    if isinstance(owner, ModuleType):
        return names
    for kind in type.mro(owner) if isinstance(owner, type) else type.mro(type(owner)):
        names.update(vars(kind))
    return names


def own_dictionary(owner: Any) -> dict[str, Any]:
    """Return the attributes that an object has itself."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return dict(own)


def _torch_dictionaries(own: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [own[name] for name in _TORCH_DICTIONARIES if type(own.get(name)) is dict]


def _item(owner: Any, key: str) -> Any:
    return owner.get(key, MISSING) if type(owner) in _MAPPINGS else MISSING


def _keys(value: Any) -> list[str]:
    return [key for key in value if isinstance(key, str)] if type(value) in _MAPPINGS else []
