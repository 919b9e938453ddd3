"""The notebook's files as a rank sees them: where it imports from, and modules that changed are reloaded.

`install` notes what every module of the user's was when it was executed, in the template too. Once a run brings another
version of the files, each is compared with what its file is now.
"""

import ast
import functools
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from monarch_nb.proto.run_pb2 import Tree
from monarch_nb.worker.reload import live_update
from monarch_nb.worker.shell import failures
from monarch_nb.worker.shell.shell import RankShell
from monarch_nb.worker.user_code import UserCode, is_library, library_directories

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
        self._told: dict[str, tuple[Signature | None, str]] = {}  # modules that failed -> what was said, of which file

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
        try:
            reloaded = live_update.reload(module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- of the user's
            return error
        except BaseException:  # an interrupt: again at the next run
            self._told.setdefault(name, (None, ""))
            raise
        self._told.pop(name, None)
        self._rebind(name, reloaded.replaced)
        if reloaded.abandoned:
            names = ", ".join(reloaded.abandoned)
            file = self._user_code.file_name(path)
            sys.stderr.write(
                f"{file}: objects of {names} made before keep their old code, because the new class has other bases or "
                "slots: make them again\n"
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
        successors = {id(old): new for old, new in replaced.values() if live_update.is_own(old, name)}
        for key, value in list(namespace.items()):
            if id(value) in successors:
                namespace[key] = successors[id(value)]
        for importer in list(_executed):
            module = sys.modules.get(importer)
            if importer != name and isinstance(module, ModuleType):
                rebound = _rebind_in(importer, module, name, replaced)
                if rebound:
                    self._rebind(importer, rebound)


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
