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
import pkgutil
import runpy
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, ModuleType, TracebackType
from typing import Any

from monarch_nb.config import gap
from monarch_nb.errors import UsageError
from monarch_nb.ground.readable import readable
from monarch_nb.proto.run_pb2 import Script
from monarch_nb.worker import imports
from monarch_nb.worker.shell import patches
from monarch_nb.worker.shell.shell import RankShell

_FOR_CELLS = {"MPLBACKEND", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"}
"""Variables by which figures are shown inline, and a hanging collective is left for the user to interrupt."""


_OWN_THREADS = "monarch_nb"
"""How the names of our threads begin."""
INTERRUPTED = 128 + signal.SIGINT
TRACKER_S = gap(2.0)
"""A process that the program has left behind may keep multiprocessing's from ending: it is waited for no longer."""
MAIN_HAS_ANNOTATIONS_BEFORE_PYTHON_3_14 = sys.version_info < (3, 14)
_OUTPUT_LOST = 120
"""What Python ends with when standard output or error can not be written."""


class Program:
    """A script and its arguments.

    Args:
        script: what to run.
        directory: the rank's, where relative paths begin.
    """

    def __init__(self, script: Script, directory: str) -> None:
        self._script, self._directory = script, directory
        self._arguments = arguments_of(script)
        self._pid = os.getpid()
        self._given_way = imports.GivenWay()

    def run(self) -> tuple[int, BaseException | None]:
        """Run it to its end, as a real interpreter does: the hook for its error, its threads and exit functions, what
        it has not written yet. Return its exit status, and what it raised, SystemExit too."""
        error: BaseException | None = None
        if self._script.HasField("umask"):
            os.umask(self._script.umask)
        try:
            if self._script.shell:
                self._become([shutil.which("bash") or "sh", "-c", self._script.path])
            if self._script.executable:
                self._become([self._script.path, *self._arguments])
            self._run_main()
        except BaseException as raised:  # noqa: BLE001 -- KeyboardInterrupt and SystemExit of the program too
            error = raised.with_traceback(_from_the_program(raised.__traceback__))
        status = _tell(error, is_shown=os.getpid() == self._pid)
        for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
            try:
                call(step)
            except BaseException as raised:  # noqa: BLE001 -- an interrupt; else as Python, which goes on
                if error is None and isinstance(raised, KeyboardInterrupt):
                    status, error = INTERRUPTED, raised
                else:
                    _print(raised)
        for stream in (sys.stdout, sys.stderr):
            if not _is_flushed(stream):
                status = _OUTPUT_LOST
        if status == 0:  # else what a traceback shows is kept, which Python deletes now as well
            error = None
            for name in ("__main__", "__mp_main__"):
                sys.modules.pop(name, None)
            call(gc.collect)  # calls destructors
        self._given_way.end()
        _write_open_files()
        if os.getpid() == self._pid:
            _end_resource_tracker()
        return status, error

    def _run_main(self) -> None:
        code, main = self._load_module() if self._script.module else self._load_file()
        call(imports.customize, os.environ)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        call(exec, code, main.__dict__)

    def _load_file(self) -> tuple[CodeType, ModuleType]:
        path = self._script.path
        whole = os.path.join(self._directory, os.path.expanduser(path))
        if pkgutil.get_importer(whole) is not None:
            return self._load_directory(os.path.normpath(whole) if path == "." else whole)
        try:
            with io.open_code(whole) as file:
                source = file.read()
        except OSError as error:
            raise UsageError(f"can not open {path}: {error.strerror}") from None
        self._set_command(path)
        self._set_first_path(os.path.dirname(os.path.realpath(whole)))
        try:
            code = compile(source, whole, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise error.with_traceback(None) from None
        loader = importlib.machinery.SourceFileLoader("__main__", whole)
        return code, _main_module(__file__=whole, __cached__=None, __loader__=loader, __package__=None, __spec__=None)

    def _load_directory(self, path: str) -> tuple[CodeType, ModuleType]:
        """Load the `__main__` of a directory or a zip file, which is on `sys.path` whatever PYTHONSAFEPATH says."""
        self._set_command(self._script.path)
        sys.path[:1] = [path]
        self._given_way.begin()
        find: Callable[..., tuple[str, Any, CodeType]] = runpy._get_main_module_details  # type: ignore[attr-defined]
        try:
            _, spec, code = call(find, _NoSuchModule)
        except _NoSuchModule as error:
            raise UsageError(str(error)) from None
        return code, _of_spec(spec)

    def _load_module(self) -> tuple[CodeType, ModuleType]:
        self._set_command("-m")
        self._set_first_path(os.getcwd())
        find: Callable[..., tuple[str, Any, CodeType]] = runpy._get_module_details  # type: ignore[attr-defined]
        try:
            _, spec, code = call(find, self._script.path, _NoSuchModule)
        except _NoSuchModule as error:
            raise UsageError(f"-m {self._script.path}: {error}") from None
        self._set_command(spec.origin)
        return code, _of_spec(spec)

    def _set_command(self, name: str) -> None:
        sys.argv = [name, *self._arguments]
        options = ["-m"] if self._script.module else []
        sys.orig_argv = [sys.executable, "-u", *options, self._script.path, *self._arguments]

    def _set_first_path(self, directory: str) -> None:
        sys.path[:1] = [] if imports.is_safe(os.environ) else [directory]
        self._given_way.begin()

    def _become(self, command: list[str]) -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)  # Python ignores them, and other programs do not expect that
        try:
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            raise UsageError(f"can not run {command[0]}: {error.strerror}") from None


class _NoSuchModule(ImportError):
    """The module to be run is not there, or can not be run."""


def arguments_of(script: Script) -> list[str]:
    """Return a program's arguments as `sys.argv` has them."""
    return [os.fsdecode(each) for each in script.arguments]


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
    _hide_own_threads()


def _hide_own_threads() -> None:
    """Let the program count its own threads alone: it may wait until the main thread is the only one."""
    of_all = threading.enumerate

    def of_program() -> list[threading.Thread]:
        return [thread for thread in of_all() if not thread.name.startswith(_OWN_THREADS)]

    threading.enumerate = of_program
    threading.active_count = lambda: len(of_program())


def exit_status(error: BaseException | None) -> int:
    """Return what Python ends with after an error, and print what it prints for `sys.exit("text")`."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return 0 if error is None else 1
    if error.code is None or isinstance(error.code, int):
        code = error.code or 0
        return (code if -sys.maxsize <= code <= sys.maxsize else -1) & 0xFF
    _say(f"{error.code}\n")
    return 1


def _tell(error: BaseException | None, *, is_shown: bool) -> int:
    """Do what Python does when a program has raised: let `sys.excepthook` know. Return the exit status.

    Args:
        is_shown: Python's own hook has nothing to do: the failure of the run has the traceback. A forked child's has
            not.
    """
    if error is None or isinstance(error, (SystemExit, UsageError)):
        return exit_status(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error  # type: ignore[attr-defined, unused-ignore]  # since Python 3.12
    try:
        hook = getattr(sys, "excepthook", _say)
        if hook is _say:
            _say("sys.excepthook is missing\n")
        elif hook is not sys.__excepthook__ or not is_shown:
            call(hook, type(error), error, error.__traceback__)
    except SystemExit as chosen:
        return exit_status(chosen)
    except BaseException as raised:  # noqa: BLE001 -- as Python
        _say("Error in sys.excepthook:\n")
        _print(raised.with_traceback(_from_the_program(raised.__traceback__)))
        _say("\nOriginal exception was:\n")
        _print(error)
    return exit_status(error)


def _say(text: str) -> None:
    """Write to standard error, as Python: to its descriptor when `sys.stderr` is None or closed, else nowhere. The end
    goes on."""
    try:
        sys.stderr.write(text)
    except Exception:  # noqa: BLE001 -- a stream of the program's
        with suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))


def _print(error: BaseException) -> None:
    if sys.stderr is not None:
        _say("".join(traceback.format_exception(error)))


def _from_the_program(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this file that the program was run by: it begins as Python's."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _is_flushed(stream: Any) -> bool:
    """Flush one of the program's standard streams; return False, having said so, when its reader is gone."""
    try:
        if stream is not None and not getattr(stream, "closed", False):
            call(stream.flush)
    except BaseException as error:  # noqa: BLE001 -- as Python
        _say(f"Exception ignored in: {stream!r}\n")
        _print(error.with_traceback(None))
        return False
    return True


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that runs user code: an interrupt may raise in there."""
    return function(*arguments)


def _main_module(**attributes: Any) -> ModuleType:
    main = ModuleType("__main__")
    vars(main).update(attributes, __builtins__=builtins)
    if MAIN_HAS_ANNOTATIONS_BEFORE_PYTHON_3_14:
        main.__annotations__ = {}
    return main


def _of_spec(spec: Any) -> ModuleType:
    return _main_module(
        __file__=spec.origin, __cached__=spec.cached, __loader__=spec.loader, __package__=spec.parent, __spec__=spec
    )


def _write_open_files() -> None:
    """Python closes what a program has left open."""
    for each in gc.get_objects():
        if type(each) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not each.closed:
            with suppress(OSError, ValueError):
                each.flush()


def _end_resource_tracker() -> None:
    """Have multiprocessing's process that watches over shared memory say now what was left: it does once this process
    has ended, and then nobody listens any more."""
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    if tracker is None or tracker._fd is None or tracker._pid is None:
        return
    with suppress(OSError):  # it is dead already
        os.close(tracker._fd)
        tracker._fd = None
        readable([os.pidfd_open(tracker._pid)], TRACKER_S)
