"""Variables that a notebook pushes. Functions and classes of its `__main__` arrive as if a cell of the ranks had
defined them: their globals are the ranks'. What they need and the ranks lack comes along; what both have is the ranks'.

A class of that name which the ranks have stands for the notebook's, so that `isinstance` holds: unless it is pushed
itself and is another one by now.
"""

from __future__ import annotations

import builtins
import enum
import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any

from monarch_nb.ground.code_names import Sources, remember_sources, sources_of
from monarch_nb.ground.pickling import Cached, Pickler

_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset)
_LOOKED_INTO, _DEEPEST = 1000, 5
"""Larger and deeper ones, which may hold themselves, are as equal as their types."""
_theirs: set[int] = set()
"""Ids of the receiver's classes that stand for one that is being unpickled: they stay as they are."""

_came_along: dict[str, object] = {}
"""Functions that the receiver has from an earlier push alone: who edits one and pushes again means the new one."""


class PushPickler(Pickler):
    """Pickles variables for `arrive`.

    Args:
        file: what is written to.
        variables: by name.
        left_out: globals that can not be pickled, and why.
        needed: gets the other globals that functions need.
    """

    def __init__(
        self,
        file: io.BytesIO,
        variables: Mapping[str, Any],
        left_out: Mapping[str, str],
        needed: dict[str, Any],
        **options: Any,
    ) -> None:
        super().__init__(file, **options)
        self._main: dict[str, object] = vars(sys.modules["__main__"])
        self.globals_ref[id(self._main)] = _Namespace()  # where cloudpickle looks up what becomes a function's globals
        self._variables, self._left_out, self._needed = variables, left_out, needed
        self._files: dict[str, FunctionType] = {}
        self._cells: dict[int, _Lazily] = {}
        self._globals = {id(value) for value in self._main.values()}

    def dump_variables(self) -> None:
        """Write them, what they need, and the source of all functions."""
        self.dump(_Lazily(lambda: (arrive, (dict(self._variables), _Lazily(self._missed), _Lazily(self._sources)))))

    def reducer_override(self, value: Any) -> Any:
        """As cloudpickle's; a class of `__main__` is the receiver's of that name.

        Raises:
            pickle.PicklingError: it would be looked up by a name of `__main__`, which the receiver may not have.
        """
        reduced = super().reducer_override(value)
        is_global = id(value) in self._globals and not isinstance(value, (type, FunctionType))
        if reduced is NotImplemented and is_global and type(value) not in self.dispatch_table:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if isinstance(reduced, str) and pickle.whichmodule(value, reduced) == "__main__":  # type: ignore[attr-defined]
                raise pickle.PicklingError("it pickles only by its name")
        if isinstance(value, type) and value.__module__ == "__main__" and self._main.get(value.__name__) is value:
            make, arguments, state, _, _, set_state = reduced
            is_pushed = any(each is value for each in self._variables.values())
            only = _fingerprint(value) if is_pushed else None
            return _their_class, (value.__name__, only, make, arguments), (set_state, state), None, None, _set_state
        return reduced

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        """As cloudpickle's. What it needs comes with each function: it may be called before all is unpickled."""
        make, arguments, (attributes, slots), _, _, set_state = super()._dynamic_function_reduce(function)
        self._files.setdefault(function.__code__.co_filename, function)
        needed = {}
        if function.__globals__ is self._main:
            own, slots = slots["__globals__"], slots | {"__globals__": {}}
            self._needed.update({name: value for name, value in own.items() if name not in self._variables})
            needed = {name: self._variables.get(name, own[name]) for name in own if name not in self._left_out}
        return make, arguments, (set_state, (attributes, slots), needed), None, None, _set_function_state

    def _function_getnewargs(self, function: FunctionType) -> Any:
        """As cloudpickle's, but functions that share a variable go on to share it."""
        code, own, name, defaults, closure = super()._function_getnewargs(function)
        if closure is not None:
            cells = function.__closure__ or ()
            closure = tuple(self._cells.setdefault(id(each), _Lazily(lambda: (CellType, ()))) for each in cells)
        return code, own, name, defaults, closure

    def _missed(self) -> Any:
        return dict, ({name: why for name, why in self._left_out.items() if name in self._needed},)

    def _sources(self) -> Any:
        return dict, (list(sources_of(self._files).items()),)


def arrive(variables: dict[str, Any], missed: Mapping[str, str], sources: Sources) -> dict[str, Any]:
    """In pickles: return what was pushed.

    Args:
        missed: what it needs and could not be pickled, and why.

    Raises:
        NameError: some of that is not here.
    """
    for name, why in missed.items():
        if name not in _namespace():
            raise NameError(f"what is pushed needs {name}, and {name} {why}; define it on the ranks first")
    remember_sources(sources)
    return variables


class _Lazily:
    """Reduced when the pickler comes to it."""

    def __init__(self, reduce: Callable[[], tuple[Any, ...]]) -> None:
        self._reduce = reduce

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduce()


class _Namespace(dict[str, Any]):
    """Arrives as the globals of the receiver's `__main__`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _namespace, ()


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _set_function_state(
    made: FunctionType, state: tuple[Callable[[FunctionType, Any], object], Any, Mapping[str, Any]]
) -> None:
    set_state, own, needed = state
    set_state(made, own)
    made.__globals__["__builtins__"] = builtins  # cloudpickle makes it a dictionary
    for name, value in needed.items():
        known = _came_along.get(name)
        if name not in made.__globals__ or (known is not None and made.__globals__[name] is known):
            made.__globals__[name] = value
            if isinstance(value, (FunctionType, Cached)):
                _came_along[name] = value


def _their_class(name: str, only: object, make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """Return the class of that name, if there is one (and if given, if it is `only` this one); else make it."""
    there = _namespace().get(name)
    if isinstance(there, type) and there.__module__ == "__main__" and only in (None, _fingerprint(there)):
        _theirs.add(id(there))
        return there
    return make(*arguments)


def _set_state(made: type, state: tuple[Callable[[type, Any], object], Any]) -> None:
    if id(made) in _theirs:
        _theirs.discard(id(made))
    else:
        state[0](made, state[1])


def _fingerprint(kind: type) -> object:
    """Return what is equal for classes whose bodies are: code wherever it stood, and plain values."""
    members = {
        name: _print_of(value)
        for name, value in vars(kind).items()
        if name not in _OF_A_PLACE and type(value) is not MemberDescriptorType  # of __slots__, which cloudpickle drops
    }
    return [base.__qualname__ for base in kind.__bases__], members


_OF_A_PLACE = (
    *("__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__annotate_func__", "_abc_impl"),
    *("__orig_bases__", "__slotnames__"),  # which appears when an instance is pickled
)


_WRAPPERS = (
    *(staticmethod, classmethod, property, Cached),
    *(functools.cached_property, functools.partialmethod, functools.singledispatchmethod),
)
_WRAPPED = ("__func__", "fget", "func", "__wrapped__")
"""Where these have their function."""


def _print_of(value: Any, depth: int = 0) -> object:
    while isinstance(value, _WRAPPERS):
        value = next(getattr(value, name) for name in _WRAPPED if hasattr(value, name))
    if isinstance(value, FunctionType):
        value = value.__code__
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_varnames, [_print_of(each) for each in value.co_consts]
    if isinstance(value, enum.Enum):
        return value.name, _print_of(value.value)
    if type(value) in _CONTAINERS and len(value) <= _LOOKED_INTO and depth < _DEEPEST:
        items = value.items() if isinstance(value, dict) else value
        printed = [_print_of(each, depth + 1) for each in items]
        return sorted(printed, key=repr) if isinstance(value, (set, frozenset)) else printed
    return value if type(value) in _SIMPLE else type(value).__qualname__
