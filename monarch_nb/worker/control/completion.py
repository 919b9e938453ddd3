"""Tab and Shift+Tab from the live namespace, without running user code: no property, no __getattr__, no __repr__.

The repr of a tensor waits for its GPU, and here the thread works that must be there to free the rank.
"""

import builtins
import inspect
import keyword
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter
from types import BuiltinFunctionType, FunctionType, GenericAlias, MethodType, ModuleType, UnionType
from typing import Any

from IPython.core.oinspect import _render_signature

from monarch_nb.worker.runs.values import LiveActors
from monarch_nb.worker.user_code import UserCode

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


_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_SIZED = (list, tuple, dict, set, frozenset, str, bytes)
_MAX_CHARACTERS = 200
_RED, _DEFAULT = "\x1b[31m", "\x1b[39m"


def describe(name: str, namespace: Mapping[str, Any], user_code: UserCode) -> str:
    """Return lines such as "Signature: step(x)"; empty when there is no such name.

    Args:
        name: may have dots.
        namespace: the user's.
        user_code: names files.
    """
    *owners, last = name.split(".")
    owner = resolve(owners, namespace) if owners else MISSING
    value = resolve([last], namespace) if not owners else MISSING if owner is MISSING else stored(owner, last)
    if value is MISSING:
        return ""
    function, is_bound = _function(owner, last, value)
    fields = {
        "Init signature" if isinstance(value, type) else "Signature": _signature(last, function, is_bound),
        "Type": "method" if is_bound and inspect.isroutine(value) else _type_name(value),
        "String form": repr(value)[:_MAX_CHARACTERS] if type(value) in _SCALARS else "",
        "Length": f"{len(value):,}" if isinstance(value, _SIZED) and type(value) in _SIZED else "",
        "File": _file(function, user_code),
        "Docstring": _documentation(owner, last, value),
    }
    width = max(len(head) for head in fields) + 2
    return "\n".join(
        f"{_RED}{head}:{_DEFAULT}" + (f"\n{text}" if "\n" in text else f"{' ' * (width - len(head) - 1)}{text}")
        for head, text in fields.items()
        if text
    )


def _function(owner: Any, name: str, value: Any) -> tuple[Any, bool]:
    """Return what a call of `value` calls, and whether that gets its first argument by itself."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__, isinstance(value, classmethod)
    if isinstance(value, property):
        return value.fget, True
    if isinstance(value, FunctionType):
        of_class = owner is not MISSING and name not in own_dictionary(owner)
        return value, of_class and not isinstance(owner, (type, ModuleType))
    if isinstance(value, (type, MethodType, BuiltinFunctionType)) or inspect.isroutine(value):
        return value, False
    is_module = "_modules" in own_dictionary(value)  # torch's: its __call__ takes anything
    call = stored(type(value), "forward" if is_module else "__call__")
    return (call, True) if isinstance(call, FunctionType) else (value, False)


def _signature(name: str, function: Any, is_bound: bool) -> str:
    if not isinstance(function, (type, MethodType)) and not inspect.isroutine(function):
        return ""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # native code without one
        return ""
    parameters = list(signature.parameters.values())
    if is_bound and parameters and parameters[0].kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        del parameters[0]
    plain = [each.replace(default=_plain(each.default), annotation=_unquoted(each.annotation)) for each in parameters]
    returned = _unquoted(signature.return_annotation)
    rendered: str = _render_signature(signature.replace(parameters=plain, return_annotation=returned), name)
    return rendered


class _Text(str):
    """Shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(value: Any) -> Any:
    """Return a default or an annotation, or in its place something that is safely shown."""
    if type(value) in _SCALARS or isinstance(value, (GenericAlias, UnionType)) or type(value).__module__ == "typing":
        return value
    if isinstance(value, type):  # Parameter.empty, too
        return value
    return _Text(f"<{_type_name(value)}>")


def _unquoted(annotation: Any) -> Any:
    return _Text(annotation) if isinstance(annotation, str) else _plain(annotation)


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _file(function: Any, user_code: UserCode) -> str:
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, FunctionType):
        return user_code.line(function.__code__.co_filename, function.__code__.co_firstlineno)
    module = function if isinstance(function, ModuleType) else None
    if isinstance(function, type):
        module = sys.modules.get(function.__module__)
    path = own_dictionary(module).get("__file__")
    return user_code.file_name(path) if isinstance(path, str) else ""


def _documentation(owner: Any, name: str, value: Any) -> str:
    """Return the docstring; that of a method may stand in a class further up."""
    if type(value) in _SCALARS + _SIZED:
        return ""
    kind = owner if isinstance(owner, type) else type(owner)
    inherited = [vars(each).get(name) for each in type.mro(kind)] if owner is not MISSING else []
    for each in [value, *inherited]:
        text = inspect.getattr_static(each, "__doc__", None)
        if inspect.isroutine(each) or isinstance(each, (property, staticmethod, classmethod)):
            text = each.__doc__
        if each is not None and isinstance(text, str):
            return inspect.cleandoc(text)
    return ""
