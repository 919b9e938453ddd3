"""Executing a module's new code in the module that lives: its functions and classes stay the objects that they are.

A class statement that is executed again changes the class that exists, so instances, subclasses, pickles and names
imported elsewhere follow. IPython's `superreload` makes a second class and moves to it the instances that it finds:
afterwards `isinstance(model, Net)` is false for a `Net` that a cell has imported, pickling fails, `super()` in a method
that had none raises, and what was made in the template before the fork is not found. It also empties the module first,
under the feet of threads.
"""

import builtins
import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

_ABSENT: Any = object()
_FIXED = {"__dict__", "__weakref__", "__module__", "_abc_impl"}
"""What a class keeps for its life."""
_REFER_TO_THEIR_CLASS = "__pydantic_core_schema__"
"""Marks classes that compiled code constructs: it knows one class object alone."""


@dataclass
class Reloaded:
    """What came of executing a module again.

    Attributes:
        replaced: by name, the module's value before and now, where these are different objects.
        abandoned: classes of which a second one had to be made: objects of the first keep their old code.
    """

    replaced: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    abandoned: list[str] = field(default_factory=list)


def reload(module: ModuleType) -> Reloaded:
    """Execute a module's source file again; when that raises, the module is as it was.

    Raises:
        BaseException: what the module raised.
    """
    execution = _Execution(module)
    try:
        execution.run()
        return execution.commit()
    except BaseException:
        execution.undo()
        raise


def execute(module: ModuleType) -> None:
    """Run the module's code. An interrupt may raise in there, but nowhere else in a reload."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)


def is_own(value: Any, module: str) -> bool:
    """Return whether a value is a function or a class of a module, or what a decorator made of one."""
    try:
        return bool(value.__module__ == module) and isinstance(value.__qualname__, str)
    except Exception:  # noqa: BLE001 -- attributes of a value may be user code, e.g. of a proxy without a target
        return False


def _is_class(value: Any) -> bool:
    return issubclass(type(value), type)  # isinstance() asks the value


class _Execution:
    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._before = dict(vars(module))
        self._classes: dict[type, tuple[dict[str, Any], tuple[type, ...]]] = {}  # changed -> contents and bases before
        self._build_class: Callable[..., Any] = builtins.__build_class__

    def run(self) -> None:
        """Execute the module. Names that its code does not assign stay: threads go on, a package keeps submodules."""
        builtins.__build_class__ = self._continue_class
        try:
            execute(self._module)
        finally:
            builtins.__build_class__ = self._build_class

    def undo(self) -> None:
        """Make everything what it was."""
        for kind, (contents, bases) in self._classes.items():
            if kind.__bases__ != bases:
                kind.__bases__ = bases
            _write(kind, contents)
        namespace = vars(self._module)
        namespace.update(self._before)
        for name in namespace.keys() - self._before.keys():
            del namespace[name]

    def commit(self) -> Reloaded:
        """Let functions follow too, and forget those functions and classes that the module no longer has."""
        result = Reloaded()
        namespace = vars(self._module)
        kept: dict[int, Any] = {}  # id of a new object -> the old one that became it
        taken: set[int] = set()
        made = dict(namespace)  # as long as it lives no id is used twice
        for name, old in self._before.items():
            if name not in made:
                continue
            new = made[name]
            if new is old:
                if self._is_stale(name, old):
                    del namespace[name]
                continue
            if id(new) not in kept and id(old) not in taken and self._follows(old, new):
                kept[id(new)] = old
                taken.add(id(old))
            namespace[name] = now = kept.get(id(new), new)
            if now is not old:
                result.replaced[name] = old, now
                if _is_class(old) and _is_class(now) and self._is_class_of_module(old, name):
                    result.abandoned.append(name)
        for kind, (contents, _) in self._classes.items():
            _keep_functions(kind, contents)
        return result

    def _continue_class(self, body: Any, name: str, /, *bases: Any, **keywords: Any) -> Any:
        """What a class statement calls: return the living class of that name, now with the new contents."""
        made = self._build_class(body, name, *bases, **keywords)
        if body.__globals__ is vars(self._module) and isinstance(made, type):
            living = self._living_class(body.__qualname__)
            if living is not None and self._become(living, made):
                if type(living) is type:  # registries of subclasses; a metaclass may have taken keywords away
                    super(living, living).__init_subclass__(**keywords)  # type: ignore[arg-type]
                return living
        return made

    def _living_class(self, qualified_name: str) -> type | None:
        first, *rest = qualified_name.split(".")
        found = self._before.get(first)
        for part in rest:
            found = vars(found).get(part) if isinstance(found, type) else None
        return found if isinstance(found, type) and self._is_class_of_module(found, qualified_name) else None

    def _is_class_of_module(self, kind: type, qualified_name: str) -> bool:
        return kind.__module__ == self._module.__name__ and kind.__qualname__ == qualified_name

    def _is_stale(self, name: str, value: Any) -> bool:
        """Return whether a value that the module's code did not make again is a function or class of that code."""
        if not issubclass(type(value), (type, FunctionType)) or value in self._classes:
            return False
        return bool(value.__module__ == self._module.__name__ and value.__qualname__ == name)

    def _follows(self, old: Any, new: Any) -> bool:
        """Make an old object of the module's what the new one of that name is; return whether that could be done."""
        name = self._module.__name__
        if not (is_own(old, name) and is_own(new, name)) or old.__qualname__ != new.__qualname__:
            return False
        if isinstance(old, type) and isinstance(new, type):  # made by a decorator, e.g. a dataclass with slots
            return self._become(old, new)
        return _update_function(old, new)

    def _become(self, old: type, new: type) -> bool:
        if old in self._classes or not _is_compatible(old, new):
            return False  # the module defines it twice, or objects of the old class could not be objects of the new
        contents, bases = dict(vars(old)), old.__bases__
        if bases != new.__bases__:
            try:
                old.__bases__ = new.__bases__
            except TypeError:
                return False
        self._classes[old] = contents, bases
        successor = _enum_contents(old, new) if issubclass(new, enum.Enum) else dict(vars(new))
        _write(old, successor)
        for function in _functions(successor.values()):
            _replace_in_closure(function, new, old)
        if not issubclass(old, enum.Enum):
            for name, value in successor.items():
                if hasattr(type(value), "__set_name__"):
                    value.__set_name__(old, name)
        derived: type
        for derived in type.__subclasses__(new):
            derived.__bases__ = tuple(old if base is new else base for base in derived.__bases__)
        return True


# ---- classes ----


def _is_compatible(old: type, new: type) -> bool:
    layouts = [
        (type(kind), kind.__basicsize__, kind.__dictoffset__, kind.__weakrefoffset__, vars(kind).get("__slots__"))
        for kind in (old, new)
    ]
    return layouts[0] == layouts[1] and _REFER_TO_THEIR_CLASS not in vars(new) and old not in new.__mro__


def _write(kind: type, contents: dict[str, Any]) -> None:
    """Make these the contents of a class, whatever its metaclass thinks of assignments."""
    for name in vars(kind).keys() - contents.keys():
        if not _is_fixed(name, vars(kind)[name]):
            type.__delattr__(kind, name)
    for name, value in contents.items():
        if not _is_fixed(name, value) and vars(kind).get(name, _ABSENT) is not value:
            type.__setattr__(kind, name, value)


def _is_fixed(name: str, value: Any) -> bool:
    return name in _FIXED or isinstance(value, (MemberDescriptorType, GetSetDescriptorType))


def _enum_contents(old: Any, new: Any) -> dict[str, Any]:
    """Return the contents of an enumeration, with the living members where their values are the same."""
    lives: dict[int, Any] = {}
    for name, member in new.__members__.items():
        living = old.__members__.get(name)
        if living is not None and type(living.value) is type(member.value) and living.value == member.value:
            lives[id(member)] = living
            continue
        lives[id(member)] = member
        if type(member) is new:
            member.__class__ = old
            member.__objclass__ = old
    contents = {name: lives.get(id(value), value) for name, value in vars(new).items()}
    for name in ("_member_map_", "_value2member_map_"):
        contents[name] = {key: lives.get(id(member), member) for key, member in contents[name].items()}
    for value in contents.values():
        if getattr(type(value), "__name__", "") == "property" and id(getattr(value, "member", None)) in lives:
            value.member = lives[id(value.member)]  # of a member with the name of a property
    return contents


# ---- functions ----


def _keep_functions(kind: type, before: dict[str, Any]) -> None:
    """Let the functions of a class be those that were there before, with the new code: callbacks hold them."""
    for name, old in before.items():
        new = vars(kind).get(name, _ABSENT)
        if new is old or type(old) is not type(new):
            continue
        functions = [each.__func__ if isinstance(each, (staticmethod, classmethod)) else each for each in (old, new)]
        if _update_function(*functions):
            type.__setattr__(kind, name, old)


def _update_function(old: Any, new: Any) -> bool:
    """Give an old function a new one's code; return whether that could be done."""
    if not isinstance(old, FunctionType) or not isinstance(new, FunctionType):
        return False
    if old.__code__.co_freevars != new.__code__.co_freevars or old.__globals__ is not new.__globals__:
        return False
    for name, old_cell, new_cell in zip(
        old.__code__.co_freevars, old.__closure__ or (), new.__closure__ or (), strict=True
    ):
        if name != "__class__" and (content := _content(new_cell)) is not _ABSENT:
            old_cell.cell_contents = content
    old.__code__ = new.__code__
    annotations = "__annotate__" if hasattr(new, "__annotate__") else "__annotations__"  # since Python 3.14 on demand
    for name in (
        "__defaults__",
        "__kwdefaults__",
        "__doc__",
        "__name__",
        "__qualname__",
        "__type_params__",
        annotations,
    ):
        if hasattr(new, name):
            setattr(old, name, getattr(new, name))
    old.__dict__.clear()
    old.__dict__.update(new.__dict__)
    return True


def _replace_in_closure(function: FunctionType, old: type, new: type) -> None:
    """Make `super()` and `__class__` in a method mean another class."""
    for cell in function.__closure__ or ():
        if _content(cell) is old:
            cell.cell_contents = new


def _functions(values: Iterable[Any]) -> Iterator[FunctionType]:
    """Yield the functions among some values and inside what decorators made of them."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        kind = type(value)
        if id(value) in seen or issubclass(kind, (type, ModuleType)):
            continue
        seen.add(id(value))
        if kind is FunctionType:
            yield value
            pending += [content for cell in value.__closure__ or () if (content := _content(cell)) is not _ABSENT]
        elif issubclass(kind, property):
            pending += [value.fget, value.fset, value.fdel]
        elif issubclass(kind, (staticmethod, classmethod)):
            pending.append(value.__func__)
        try:
            inner = object.__getattribute__(value, "__dict__")
        except AttributeError:
            continue
        pending += [each for each in inner.values() if type(each) is FunctionType]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return _ABSENT
