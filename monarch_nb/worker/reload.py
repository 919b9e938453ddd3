"""The notebook's files as a rank sees them: where it imports from, and modules that changed are reloaded.

`install` notes what every module of the user's was when it was executed, in the template too. Once a run brings
another version of the files, each is compared with what its file is now.

A module's new code is executed in the module that lives (`reload`): its functions and classes stay the objects that
they are. A class statement that is executed again changes the class that exists, so instances, subclasses, pickles and
names imported elsewhere follow. IPython's `superreload` makes a second class and moves to it the instances that it
finds: afterwards `isinstance(model, Net)` is false for a `Net` that a cell has imported, pickling fails, `super()` in
a method that had none raises, and what was made in the template before the fork is not found. It also empties the
module first, under the feet of threads.
"""

import ast
import builtins
import enum
import functools
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import FileFinder, SourceFileLoader
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from monarch_nb.proto.run_pb2 import Tree
from monarch_nb.worker.shell import failures
from monarch_nb.worker.shell.shell import RankShell
from monarch_nb.worker.user_code import UserCode, is_library, library_directories

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
        successor = dict(vars(new))
        _write(old, successor)
        for function in _functions(successor.values()):
            _replace_in_closure(function, new, old)
        for name, value in successor.items():
            if hasattr(type(value), "__set_name__"):
                value.__set_name__(old, name)
        derived: type
        for derived in type.__subclasses__(new):
            derived.__bases__ = tuple(old if base is new else base for base in derived.__bases__)
        return True


# ---- classes ----


def _is_compatible(old: type, new: type) -> bool:
    if issubclass(new, enum.Enum):  # its members are of one class for ever
        return False
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
    captured = old.__code__.co_freevars  # "__class__" of a method that calls super()
    if captured not in ((), ("__class__",)) or captured != new.__code__.co_freevars:
        return False
    if old.__globals__ is not new.__globals__:
        return False
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


_STAR = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]*[*]", re.MULTILINE)
Signature = tuple[int, int, int]
"""Modification time in ns, size and inode number: a file that is written or replaced gets another."""


@dataclass(frozen=True)
class _Executed:
    """A module's file when the module was executed last."""

    path: str
    signature: Signature


_executed: dict[str, _Executed] = {}
"""By module name; the user's modules only. A fork copies it, as it copies the modules."""


def install() -> None:
    """Note from now on what is executed. The loader asks for a file's time and size before it reads the file, so a
    change in between is seen as one; and no frame of ours is on the stack of an import that fails."""
    library_directories()  # finding them imports modules
    SourceFileLoader.path_stats = _path_stats  # type: ignore[method-assign]


def _path_stats(self: SourceFileLoader, path: str) -> dict[str, Any]:
    status = os.stat(path)
    if not is_library(path):
        _executed[self.name] = _Executed(path, (status.st_mtime_ns, status.st_size, status.st_ino))
    return {"mtime": status.st_mtime, "size": status.st_size}


class Reloader:
    """Brings the modules of this rank up to date.

    Args:
        shell: whose namespace may hold what modules defined.
        user_code: names files and trims tracebacks.
        workspace: the node's copy of the notebook's files; empty when it sees the files themselves.
        for_script: the rank runs a script, for which Python's own order counts, not the kernel's.
    """

    def __init__(self, shell: RankShell, user_code: UserCode, workspace: str, *, for_script: bool = False) -> None:
        self._shell = shell
        self._user_code = user_code
        self._workspace = workspace
        self._for_script = for_script
        self._seen = ("", False)
        self._import_paths: list[str] = []
        self._last_paths: list[str] = []
        self._set_for: tuple[Tree, list[str]] | None = None  # the tree that named paths last; sys.path then
        self._starred: set[str] = set()
        self._told: dict[str, tuple[Signature | None, str]] = {}  # modules that failed -> what was said, of which file

    def note_stars(self, code: str) -> None:
        """From now on the cells get names that are new in a module of which code imports all: `from train import *`."""
        if "import" in code and "*" in code:
            self._starred.update(_STAR.findall(code))

    def follow(self, tree: Tree) -> None:
        """See a version of the files; whoever sees the files themselves, whatever they are now."""
        told_now: set[str] = set()
        if not self._workspace or (tree.version, tree.reload) != self._seen:
            self._set_import_paths(tree)
            self._look_again()
            if tree.reload:
                told_now = self._reload_changed()
            self._seen = tree.version, tree.reload
        if tree.reload and self._told:
            self._say_old(self._told.keys() - told_now)

    def _set_import_paths(self, tree: Tree) -> None:
        """Import from where the kernel does; in a workspace from the copies, and last from the workspace itself."""
        if not self._workspace and self._set_for == (tree, sys.path):
            return  # before every run
        copies = {copy.directory: copy.mount for copy in tree.copies} if self._workspace else {}
        wanted = [self._copied(path, copies) for path in tree.import_paths]
        last = [self._workspace] if self._workspace else list(tree.last_import_paths)
        if self._for_script:  # which replaces the first by its own directory, where it may find them no more
            own = [self._copied(path, copies) for path in sys.path[1:]]
            sys.path[1:] = own + [path for path in dict.fromkeys([*wanted, *last]) if path not in own]
            return
        ours = {*self._import_paths, *self._last_paths, *wanted, *last}
        others = [path for path in sys.path[1:] if path not in ours and not _is_below(path, copies)]
        self._import_paths = list(dict.fromkeys(path for path in wanted if path not in sys.path[:1]))
        self._last_paths = [path for path in last if path not in (*sys.path[:1], *self._import_paths, *others)]
        sys.path[1:] = [*self._import_paths, *others, *self._last_paths]
        self._set_for = tree, list(sys.path)

    def _copied(self, path: str, copies: Mapping[str, str]) -> str:
        """Return where the copy of one of the client's paths lies."""
        for directory, mount in copies.items():
            if path == directory or path.startswith(os.path.join(directory, "")):
                return os.path.normpath(os.path.join(self._workspace, mount, os.path.relpath(path, directory)))
        return path

    def _look_again(self) -> None:
        """Have the next import list the user's directories again: times of directories are too coarse to tell every
        change. Not those of libraries: there are hundreds, and this may be done before every run."""
        directories = {
            *sys.path[:1],
            *self._import_paths,
            *self._last_paths,
            *(os.path.dirname(one.path) for one in _executed.values()),
        }
        if self._workspace:
            directories.update(path for path in sys.path_importer_cache if path.startswith(self._workspace))
        for directory in directories:
            finder = sys.path_importer_cache.get(directory)
            if isinstance(finder, FileFinder):
                finder.invalidate_caches()
            else:  # it may have been no directory
                sys.path_importer_cache.pop(directory, None)

    def _say_old(self, names: Iterable[str]) -> None:
        """Say of modules whose failure was told at an earlier run that they are not what their files say."""
        paths = {_executed[name].path for name in names if name in sys.modules}
        if files := sorted(self._user_code.file_name(path) for path in paths if os.path.exists(path)):
            sys.stderr.write(f"{', '.join(files)} still can not be reloaded: the ranks run the version before\n")

    def _reload_changed(self) -> set[str]:
        """Reload the modules that changed; return those that failed and whose failure was told."""
        told: set[str] = set()
        changed = self._changed()
        if not changed:
            return told
        places = dict.fromkeys(changed, 0)
        if len(changed) > 1:  # a module comes after what it imports; a rank has 2 ms of work to look at them all
            places = {name: place for place, name in enumerate(sys.modules)}
        pending = sorted(changed, key=places.__getitem__)
        while pending:
            errors: dict[str, BaseException] = {}
            last = 0
            for name in pending:
                error = self._reload(name, sys.modules[name])
                if error is None:
                    last = places[name]
                else:
                    errors[name] = error
            # Before the edit they may have been imported in another order than they need now.
            pending = [name for name in errors if places[name] < last]
            told.update(name for name in errors.keys() - pending if self._report(name, errors[name]))
            for error in errors.values():
                self._shell.drop_error(error)
        return told

    def _changed(self) -> list[str]:
        """Return the loaded modules whose files changed, and those that failed and may not now."""
        names = []
        for name, executed in list(_executed.items()):
            module = sys.modules.get(name)
            if not isinstance(module, ModuleType) or getattr(module, "__file__", None) != executed.path:
                continue
            try:
                status = os.stat(executed.path)
            except OSError:  # gone: the module stays as it is
                continue
            signature = status.st_mtime_ns, status.st_size, status.st_ino
            if signature != executed.signature or name in self._told:
                names.append(name)
        return names

    def _reload(self, name: str, module: ModuleType) -> BaseException | None:
        """Reload a module; return what it raised."""
        path = _executed[name].path
        _remove_bytecode(path)
        linecache.checkcache(path)
        before = {*vars(module)}
        try:
            reloaded = reload(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- of the user's
            return error
        except BaseException:  # an interrupt: again at the next run
            self._told.setdefault(name, (None, ""))
            raise
        self._told.pop(name, None)
        self._rebind(name, reloaded.replaced)
        if name in self._starred:
            for key in _public(module) - before:
                self._shell.user_ns.setdefault(key, vars(module)[key])
        if reloaded.abandoned:
            names = ", ".join(reloaded.abandoned)
            file = self._user_code.file_name(path)
            sys.stderr.write(
                f"{file}: objects of {names} made before keep their old code, because the new class has other bases or "
                "slots, or is an enumeration: make them again\n"
            )
        return None

    def _report(self, name: str, error: BaseException) -> bool:
        """Show why a module could not be reloaded; return whether it was not shown before."""
        executed = _executed[name]
        file = self._user_code.file_name(executed.path)
        trace = failures.describe(self._shell, self._user_code, error, only_users=False).traceback
        text = f"{file} could not be reloaded; the ranks still run the version before\n{trace}\n"
        is_new = self._told.get(name) != (executed.signature, text)
        if is_new:
            self._told[name] = executed.signature, text
            sys.stderr.write(text)
        return is_new

    # ---- names imported from a module ----

    def _rebind(self, name: str, replaced: dict[str, tuple[Any, Any]]) -> None:
        """Let names that were imported from a module mean what its names mean now.

        Functions and classes mostly are the same objects still. In a module a `from ... import` proves for all other
        values that they came from there; in the namespace of the cells only functions and classes tell whence they are.
        """
        namespace = self._shell.user_ns
        successors = {id(old): new for old, new in replaced.values() if is_own(old, name)}
        for key, value in list(namespace.items()):
            if id(value) in successors:
                namespace[key] = successors[id(value)]
        for importer in list(_executed):
            module = sys.modules.get(importer)
            if importer != name and isinstance(module, ModuleType):
                rebound = _rebind_in(importer, module, name, replaced)
                if rebound:
                    self._rebind(importer, rebound)


def _public(module: ModuleType) -> set[str]:
    """Return the names that `from module import *` brings."""
    names = vars(module)
    return {name for name in names.get("__all__", names) if name in names and ("__all__" in names or name[:1] != "_")}


def _rebind_in(
    importer: str, module: ModuleType, source: str, replaced: dict[str, tuple[Any, Any]]
) -> dict[str, tuple[Any, Any]]:
    """Rebind what a module imported from another; return its names with their values before and now."""
    olds = {id(old) for old, _ in replaced.values()}
    if not any(id(value) in olds for value in list(vars(module).values())):
        return {}
    executed = _executed[importer]
    rebound = {}
    for origin, names in _imports_of(executed.path, executed.signature, module.__package__ or ""):
        for name, alias in names:
            pairs = replaced.items() if name == "*" else [(alias, replaced[name])] if name in replaced else []
            for target, (old, new) in pairs:
                if origin == source and vars(module).get(target) is old and old is not new:
                    vars(module)[target] = new
                    rebound[target] = old, new
    return rebound


@functools.lru_cache(maxsize=1000)
def _imports_of(path: str, _: Signature, package: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the `from` imports of a file: module, and its names with those that they get."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        (importlib.util.resolve_name("." * node.level + (node.module or ""), package), _aliases(node))
        for node in _import_statements(tree, package)
    ]


def _import_statements(tree: ast.Module, package: str) -> Iterator[ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (package or not node.level))


def _aliases(node: ast.ImportFrom) -> list[tuple[str, str]]:
    return [(alias.name, alias.asname or alias.name) for alias in node.names]


# ---- files ----


def _is_below(path: str, directories: Iterable[str]) -> bool:
    """Return whether an entry of sys.path lies in one of some directories; an environment in there does not count."""
    directory = os.path.join(path, "")
    return directory.startswith(tuple(os.path.join(each, "") for each in directories)) and not is_library(directory)


def _remove_bytecode(path: str) -> None:
    """Remove a file's bytecode: it knows the time in seconds and the size only, and a second edit may have both."""
    try:
        os.unlink(importlib.util.cache_from_source(path))
    except (OSError, NotImplementedError):
        pass  # there is none
