"""A program in a process that was forked for it: what `python train.py` or `python -m package` does.

The process is a rank that was forked from the template. Before the program begins it gives up what makes ranks
notebooks; afterwards it does what Python does when a program has ended, but for its own end: the allocator sees to that
when it has the result.
"""

import atexit
import builtins
import gc
import importlib.machinery
import io
import multiprocessing.process
import os
import runpy
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from monarch_nb.errors import UsageError
from monarch_nb.proto.run_pb2 import Script
from monarch_nb.worker.shell import patches
from monarch_nb.worker.shell.shell import RankShell

_FOR_CELLS = {"MPLBACKEND", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"}
"""Variables by which figures are shown inline, and a hanging collective is left for the user to interrupt."""


class Program:
    """A script and its arguments.

    Args:
        script: what to run.
        directory: the rank's, where relative paths begin.
    """

    def __init__(self, script: Script, directory: str) -> None:
        self._script, self._directory = script, directory

    def run(self) -> BaseException | None:
        """Run it to its end, with its threads and exit functions; return what it raised, SystemExit too."""
        error: BaseException | None = None
        try:
            if self._script.shell:
                self._become([shutil.which("bash") or "sh", "-c", self._script.path])
            if self._script.executable:
                self._become([self._script.path, *self._script.arguments])
            code, main = self._load_module() if self._script.module else self._load_file()
            sys.modules["__main__"] = main
            call(exec, code, main.__dict__)
        except BaseException as raised:  # noqa: BLE001 -- KeyboardInterrupt and SystemExit of the program too
            error = raised
        for step in (threading._shutdown, atexit._run_exitfuncs, _write_open_files):  # type: ignore[attr-defined]
            try:
                call(step)
            except BaseException as raised:  # noqa: BLE001 -- an interrupt; else as Python, which goes on
                if error is None and isinstance(raised, KeyboardInterrupt):
                    error = raised
                else:
                    traceback.print_exception(raised)
        return error

    def _load_file(self) -> tuple[CodeType, ModuleType]:
        path = self._script.path
        whole = os.path.join(self._directory, os.path.expanduser(path))
        try:
            with io.open_code(whole) as file:
                source = file.read()
        except OSError as error:
            raise UsageError(f"can not open {path}: {error.strerror}") from None
        self._set_command(path)
        sys.path[0] = os.path.dirname(os.path.realpath(whole))
        try:
            code = compile(source, whole, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise error.with_traceback(None) from None
        loader = importlib.machinery.SourceFileLoader("__main__", whole)
        return code, _main_module(__file__=whole, __cached__=None, __loader__=loader, __package__=None, __spec__=None)

    def _load_module(self) -> tuple[CodeType, ModuleType]:
        self._set_command("-m")
        find: Callable[..., tuple[str, Any, CodeType]] = runpy._get_module_details  # type: ignore[attr-defined]
        try:
            _, spec, code = call(find, self._script.path, _NoSuchModule)
        except _NoSuchModule as error:
            raise UsageError(f"-m {self._script.path}: {error}") from None
        self._set_command(spec.origin)
        main = _main_module(
            __file__=spec.origin,
            __cached__=spec.cached,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        return code, main

    def _set_command(self, name: str) -> None:
        arguments = self._script.arguments
        sys.argv = [name, *arguments]
        options = ["-m"] if self._script.module else []
        sys.orig_argv = [sys.executable, "-u", *options, self._script.path, *arguments]

    def _become(self, command: list[str]) -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them, and other programs do not expect that
        try:
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            raise UsageError(f"can not run {command[0]}: {error.strerror}") from None


class _NoSuchModule(ImportError):
    """The module to be run is not there, or can not be run."""


def be_plain(shell: RankShell, environment: Mapping[str, str], directory: str) -> None:
    """Give up all by which a program could tell that this process is not Python's own.

    Args:
        shell: the template's, no longer to be found.
        environment: of the process, as it was asked for.
        directory: where the process has started.
    """
    shell.hide()
    patches.undo()
    for name in _FOR_CELLS - environment.keys():
        os.environ.pop(name, None)
    multiprocessing.process.ORIGINAL_DIR = directory  # type: ignore[attr-defined]


def exit_status(error: BaseException | None) -> int:
    """Return what Python would end with, and print what it would print for `sys.exit("text")`."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if not isinstance(error, SystemExit):
        return 0 if error is None else 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that runs user code: an interrupt may raise in there."""
    return function(*arguments)


def _main_module(**attributes: Any) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(attributes, __builtins__=builtins)
    return main


def _write_open_files() -> None:
    """Python closes what a program has left open."""
    for each in gc.get_objects():
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not each.closed:
            with suppress(OSError, ValueError):
                each.flush()
