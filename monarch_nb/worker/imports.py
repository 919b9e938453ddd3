"""What a process imports that was forked: from where, what is patched once it is imported, and what was set too late.

`sys.path` is as Python would have made it of the process's environment (`paths_of`). The template itself has been
started so that it finds this package first. So it asks its interpreter what it has on `sys.path` beside a script's
directory and PYTHONPATH: the standard library, site-packages and what `.pth` files add.

What the template has imported gives way to modules of the same names that stand before it for the program, as
`statistics.py` beside a script does under `python` (`GivenWay`).

LateVariables are those that a program sets before it imports what reads them, and too late all the same: its process
was forked from one that has imported it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pkgutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter
from itertools import takewhile
from types import FrameType, FunctionType, ModuleType
from typing import Any

from monarch_nb.config import patience
from monarch_nb.ground.read_at_start import is_read_at_import


def after_import(name: str, patch: Callable[[Any], None]) -> None:
    """Call `patch` with a module: now if it is imported, else when it is."""
    if module := sys.modules.get(name):
        patch(module)
    else:
        sys.meta_path.insert(0, _AfterImport(name, patch))


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the module once, and patches it when it has been executed."""

    def __init__(self, module: str, patch: Callable[[Any], None]) -> None:
        self._module, self._patch = module, patch

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._patch(module)


_packages: set[str] = set()
_read: set[str] = set()


def learn(modules: Iterable[str], read: Collection[str]) -> None:
    """In the template: what it has imported, and which variables that has read."""
    _packages.update(module.partition(".")[0] for module in modules)
    _read.update(read)


class LateVariables:
    """Notes, from now on, which of them are set before the program has imported anything of the template's."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._known = {*sys.modules}
        put = os.putenv

        def putenv(name: Any, value: Any) -> None:
            self._note(os.fsdecode(name), os.fsdecode(value))
            put(name, value)

        if _packages:
            os.putenv = putenv

    def hint(self) -> str:
        """Return what was too late and what to do; empty when nothing was.

        Example: "TORCH_LOGS was set after ranks had imported what reads it, and does not count: --env TORCH_LOGS=…".
        """
        if not self._names:
            return ""
        options = " ".join(f"--env {name}=…" for name in self._names)
        were = "was" if len(self._names) == 1 else "were"
        does = "does" if len(self._names) == 1 else "do"
        return (
            f"{', '.join(self._names)} {were} set after ranks had imported what reads it, "
            f"and {does} not count: {options}"
        )

    def _note(self, name: str, value: str) -> None:
        if is_read_at_import(name, _read) and os.environ.get(name) != value and not self._is_imported():
            self._names[name] = None

    def _is_imported(self) -> bool:
        """Whether the program has imported what the template has, and so would be too late by itself."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if _is_of_packages(frame.f_globals.get("__name__")):
                return True
            frame = frame.f_back
        news = [module for name, module in list(sys.modules.items()) if name not in self._known]
        return any(map(_has_imported, [sys.modules.get("__main__"), *news]))


def _has_imported(module: object) -> bool:
    return isinstance(module, ModuleType) and any(
        _is_of_packages(getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", None))
        for value in list(vars(module).values())
        if isinstance(value, ModuleType | FunctionType | type)
    )


def _is_of_packages(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in _packages


_ASK_TIMEOUT_S = patience(30.0)

_own: list[str] = []
"""What this interpreter has by itself, then what the template has besides, in which this package is found."""
_at_start: set[str] = set()
"""What this interpreter has imported before any program begins."""


def learn_paths() -> None:
    """In the template, before it forks."""
    here = sys.path if sys.flags.safe_path else sys.path[1:]
    own, imported = _of_interpreter()
    _own[:] = own + [path for path in here if path not in own]
    _at_start.update(imported)


def _of_interpreter() -> tuple[list[str], list[str]]:
    """Return the paths and the modules that a new interpreter has; nothing where none starts, as on a disk that hangs:
    then the template's own paths are the best that is known."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONSAFEPATH"] = "1"  # no directory of a script
    question = r"import os, sys; os.write(1, os.fsencode('\0'.join(['', *sys.path, '', *sys.modules])))"
    command = [sys.executable, "-c", question]
    try:
        asked = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=_ASK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"sys.path of {sys.executable} is not known, the template's is taken: {error}\n")
        return [], []
    told = os.fsdecode(asked.stdout).split("\0")[1:]  # a sitecustomize may have printed before
    return told[: told.index("")], told[told.index("") + 1 :]


def paths_of(environment: Mapping[str, str]) -> list[str]:
    """Return what follows the directory of a script: PYTHONPATH, whose relative paths begin in the current directory,
    and the rest."""
    named = environment.get("PYTHONPATH", "")
    paths = dict.fromkeys(os.path.abspath(path) for path in named.split(os.pathsep)) if named else {}
    return [*paths, *(path for path in _own if path not in paths)]


def customize(environment: Mapping[str, str]) -> None:
    """Execute what PYTHONPATH has for the start of each Python (`sitecustomize`), and the template has not executed:
    tracers and coverage come so. As in Python, what it raises is told, and the program begins."""
    paths = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    for name in ("sitecustomize", "usercustomize"):
        spec = importlib.machinery.PathFinder.find_spec(name, paths)
        if spec is None or spec.loader is None or spec.origin == getattr(sys.modules.get(name), "__file__", None):
            continue
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # noqa: BLE001 -- of the user's
            del sys.modules[name]
            sys.stderr.write(f"Error in {name}; set PYTHONVERBOSE for traceback:\n{type(error).__name__}: {error}\n")


def is_safe(environment: Mapping[str, str]) -> bool:
    """Return whether the directory of a script is to be left out."""
    return bool(environment.get("PYTHONSAFEPATH"))


class GivenWay:
    """Modules of the template's that the program does not see while it runs, because it has its own of these names."""

    def __init__(self) -> None:
        self._hidden: dict[str, ModuleType] = {}

    def begin(self) -> None:
        """Hide them: what is found before the standard library counts, as if nothing were imported yet. A package with
        compiled parts stays, of which a process can load no second one, and so does what any Python has imported before
        its program."""
        before = list(takewhile(lambda path: path != sysconfig.get_path("stdlib"), sys.path))
        names = {name for path in before for name in _names_in(path)} & {*sys.modules} - _at_start
        if not _at_start or not (hidden := {name for name in names if _is_another(name, before)}):
            return
        if "torch" in sys.modules:  # else there is nothing to save
            saving = importlib.import_module("monarch_nb.worker.saving")
            for module in pkgutil.iter_modules(saving.__path__, f"{saving.__name__}."):
                importlib.import_module(module.name)  # late, it would import the program's modules
        self._hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in hidden}
        for name in self._hidden:
            del sys.modules[name]

    def end(self) -> None:
        """The program has ended: what is done now is ours."""
        sys.modules.update(self._hidden)


def _names_in(path: str) -> set[str]:
    """Return what the modules of a directory or a zip file may be called, at the top level."""
    try:
        return {name.partition(".")[0] for name in os.listdir(path)}
    except NotADirectoryError:
        return {module.name for module in pkgutil.iter_modules([path])}
    except OSError:
        return set()


def _is_another(name: str, paths: Sequence[str]) -> bool:
    """Return whether Python would find another module of this name there, and can have two of them in one process."""
    found = importlib.machinery.PathFinder.find_spec(name, paths)
    is_own = any(finder.find_spec(name) for finder in (BuiltinImporter, FrozenImporter))
    if found is None or found.origin is None or is_own or name == "monarch_nb":
        return False
    known = [module for part, module in list(sys.modules.items()) if part.partition(".")[0] == name]
    files = [str(getattr(module, "__file__", "")) for module in known]
    if name not in sys.stdlib_module_names and any(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files):
        return False
    return os.path.realpath(found.origin) not in map(os.path.realpath, files)
