"""The IPython shell of a rank: made once in the template, kept from keeping anything alive.

It keeps the source of what it compiles for tracebacks, but not of every run for ever. What it keeps of the error that a
run failed with are `%tb` and `sys.last_…`, as IPython does it, except for what the frames hold: IPython keeps that
alive until another cell fails, and then a cell that ran out of memory, or was interrupted, can not be repeated with
less. It is released when the next run begins, unless that one looks at the error.
"""

import atexit
import base64
import builtins
import contextlib
import inspect
import json
import linecache
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tokenize
import traceback
import warnings
import zipimport
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NoReturn

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.syspathcontext import prepended_to_syspath
from traitlets import Type
from traitlets.config import Config

from monarch_nb.config import FACTS_MIME, PRESETS, patience
from monarch_nb.errors import NoProcessGroup, NotFinite, ProcessGroupAborted
from monarch_nb.ground.code_names import Kind, code_label, code_name, not_first
from monarch_nb.proto.run_pb2 import Display
from monarch_nb.worker.shell import patches, streams
from monarch_nb.worker.shell.facts import facts_of
from monarch_nb.worker.user_code import UserCode, cut_middle, error_chain

_LOOKS = re.compile(
    r"\blast_(exc|type|value|traceback)\b|\bpm\(|^[ \t]*(%(tb|debug)\b|(tb|debug)[ \t]*$)", re.MULTILINE
)


class LastError:
    """Knows what the last error keeps alive, and releases it. The names in `sys` are set by whoever shows an error."""

    def __init__(self) -> None:
        self._traces: list[TracebackType] = []
        self._released: BaseException | None = None

    def keep(self, error: BaseException) -> None:
        """Note what an error keeps alive, before its traceback is shortened for people."""
        self._traces += _traces_of(error)

    def release(self, code: str) -> bool:
        """Release what the frames of the last error hold, unless `code`, which runs next, looks at it.

        Returns:
            Whether there was an error that is now released.
        """
        latest: BaseException | None = getattr(sys, "last_value", None)  # of a cell inside a cell too
        if (latest is self._released and not self._traces) or _LOOKS.search(code):
            return False
        _clear(self._traces)
        release_frames(latest)
        self._traces, self._released = [], latest
        return True


def release_frames(error: BaseException | None) -> None:
    """Drop what the frames of an error and of all that belong to it hold."""
    _clear(_traces_of(error))


def _traces_of(error: BaseException | None) -> Iterator[TracebackType]:
    """Yield the traceback of an error and those of all that belong to it."""
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]
        if each.__traceback__ is not None:
            yield each.__traceback__


def _clear(traces: Iterable[TracebackType]) -> None:
    """What rendered them (stack_data) keeps the frames themselves in cycles."""
    for first in traces:
        trace: TracebackType | None = first
        while trace is not None:
            with contextlib.suppress(RuntimeError):  # it still executes
                _clear_there(trace)
            trace.tb_frame.f_locals  # noqa: B018 -- before Python 3.13 a copy, which this brings up to date
            trace = trace.tb_next


def _clear_there(trace: TracebackType) -> None:
    """Clear a frame as if its own line did: of a coroutine that was never awaited, Python warns where it is dropped."""
    frame = trace.tb_frame
    code = _clear_frame.__code__.replace(
        co_filename=frame.f_code.co_filename, co_firstlineno=(trace.tb_lineno or 1) - 1
    )
    FunctionType(code, frame.f_globals)(frame)


def _clear_frame(frame: FrameType) -> None:
    frame.clear()


MAX_SOURCES = 200
"""So many of the newest, whatever they do."""
MAX_DEFINING_SOURCES = 2_000
"""So many that may define functions or classes: those are called later, and then their lines are wanted."""
MAX_SOURCE_CHARACTERS = 32_000_000


class BoundedCompiler(CachingCompiler):
    """Names code after its cell, run or pull.

    Attributes:
        kind: what is compiled now.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind: Kind = "cell"
        self._sources: dict[str, int] = {}  # the newest last, with how long they are
        self._defining: dict[str, int] = {}
        self._characters = 0

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of code."""
        return code_name(self.kind, number, transformed_code)

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return what people call it, in two words."""
        return code_label(name)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Keep the source of code that is about to be compiled; return its file name."""
        name = self.get_code_name("", transformed_code, number)
        lines = [f"{line}\n" for line in transformed_code.splitlines()]
        linecache.cache[name] = len(transformed_code), None, lines, name  # without a time it is never out of date
        for kept in (self._sources, self._defining):
            self._characters -= kept.pop(name, 0)
        defines = any(word in transformed_code for word in ("def", "class", "lambda"))
        kept = self._defining if defines else self._sources
        kept[name] = len(transformed_code)
        self._characters += len(transformed_code)
        self._forget_old(name)
        return name

    def _forget_old(self, newest: str) -> None:
        while len(self._sources) > MAX_SOURCES:
            self._forget(self._sources)
        while len(self._defining) > MAX_DEFINING_SOURCES:
            self._forget(self._defining)
        for kept in (self._sources, self._defining):
            while self._characters > MAX_SOURCE_CHARACTERS and kept and next(iter(kept)) != newest:
                self._forget(kept)

    def _forget(self, kept: dict[str, int]) -> None:
        name = next(iter(kept))
        self._characters -= kept.pop(name)
        linecache.cache.pop(name, None)


_SIGINT_GRACE_S = patience(0.5)
_FILE = re.compile(r'File "(<[^"\n]+>)"')
_NO_ARGUMENTS = "(***failed resolving arguments***)"
"""What IPython says of a function whose frame was released."""
_format_warning = warnings.formatwarning
INTERACTIVESHELL_FILE = InteractiveShell.run_code.__code__.co_filename
_CELL_RUNNERS = {getattr(InteractiveShell, f"run_{name}").__code__ for name in ("code", "ast_nodes", "cell_async")}
_SCRIPT_RUNNERS = {
    getattr(InteractiveShell, f"safe_{name}").__code__ for name in ("execfile", "execfile_ipy", "run_module")
}
_SHOWN_WITH_CODE = (NoProcessGroup, NotFinite, ProcessGroupAborted)
"""Of our errors those which are raised below a line of the user's that people want to see."""


class LastValue(DisplayHook):
    """Keeps the value of a cell's last expression until the cell's end; IPython's keeps it in `_`, `Out` and more."""

    exec_result = None
    tells_facts = False
    """Whether its facts go with a value: the rank is one of so many that values may have to fold."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.clear()

    def clear(self) -> None:
        """Forget the value."""
        self.value: Any = None
        self.bundle: dict[str, Any] = {}

    def __call__(self, result: Any = None) -> None:
        if streams.is_captured():  # in a debugger: no value of the cell's
            if result is not None:
                sys.stdout.write(f"{result!r}\n")
            return
        shell = self.shell
        assert isinstance(shell, RankShell)
        if result is None or _ends_with_semicolon(shell.running_code):
            return
        self.value = result
        assert shell.display_formatter is not None
        data, metadata = shell.display_formatter.format(result)
        if data:
            self.bundle = {"data": clean_data(data), "metadata": metadata}
            if self.tells_facts and "text/plain" in data and (facts := facts_of(result)):
                self.bundle["data"][FACTS_MIME] = facts


class FilePublisher(DisplayPublisher):
    """Stores what `display()` shows in the marks of the run that shows it."""

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        content = {"data": clean_data(data), "metadata": metadata or {}, "transient": transient or {}}
        kind = Display.KIND_UPDATE if update else Display.KIND_SHOW
        told = Display(content_json=to_json(content), kind=kind)
        output = streams.current_output()
        if not (output.shows((transient or {}).get("display_id"), told.content_json) and update):
            output.display(told)

    def clear_output(self, wait: bool = False) -> None:
        content = json.dumps({"wait": bool(wait)})
        output = streams.current_output()
        output.shown.clear()
        output.display(Display(content_json=content, kind=Display.KIND_CLEAR))


class RankShell(InteractiveShell):
    """InteractiveShell without a terminal, history, output cache or exit."""

    displayhook_class = Type(LastValue)
    display_pub_class = Type(FilePublisher)
    compiler_class = Type(BoundedCompiler)
    # These (and LastValue.exec_result) are no traits here: setting them took a fifth of an empty cell.
    execution_count = 1
    last_execution_succeeded = True
    last_execution_result: Any = None
    running_code = ""
    script_error: BaseException | None = None
    name_files: Callable[[str], str] = staticmethod(str)
    """Gives files in a rendered traceback the names that the user knows."""
    user_code: UserCode
    """Of the rank, once it is one."""
    _nested_cells = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        sys.modules["__mp_main__"] = sys.modules["__main__"]  # so spawned processes call it in what they send
        self._last_error = LastError()

    def take_script_error(self) -> BaseException | None:
        """Return what a script of `%run` raised in this cell, once: IPython only shows it."""
        error, self.script_error = self.script_error, None
        return error

    def run_program(self, path: str, arguments: list[str], is_module: bool) -> None:
        """Run a script, or a module, in the namespace of the cells, as `%run -i` does. Nobody reads its arguments on
        the way: the magic expands ~, $ and braces in them."""
        argv, name = sys.argv, self.user_ns["__name__"]
        sys.argv, self.user_ns["__name__"] = [path, *arguments], "__main__"
        try:
            if is_module:
                self.safe_run_module(path, self.user_ns)  # type: ignore[no-untyped-call]
            else:
                file = whole = os.path.abspath(os.path.expanduser(path))
                if (importer := pkgutil.get_importer(whole)) is not None:
                    file = os.path.join(whole, "__main__.py")
                self.user_ns["__file__"] = file
                if isinstance(importer, zipimport.zipimporter):
                    self._run_zip(importer, whole)
                elif os.path.isfile(file):
                    self.safe_execfile(file, self.user_ns, self.user_ns)
                else:
                    raise UsageError(f"there is no {file}")
        finally:
            sys.argv = argv
            self.user_ns["__name__"] = name

    def safe_execfile(self, fname: str, *args: Any, **kwargs: Any) -> None:
        """What runs a script's file, also for `%run`."""
        with patches.running_script(os.path.abspath(fname)):
            super().safe_execfile(fname, *args, **kwargs)  # type: ignore[no-untyped-call]

    def _run_zip(self, importer: zipimport.zipimporter, path: str) -> None:
        importer.invalidate_caches()  # it may be another file by now
        with prepended_to_syspath(path):
            try:
                exec(importer.get_code("__main__"), self.user_ns)
            except SystemExit as status:
                if status.code:
                    raise

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """What user code calls to run a cell inside its own."""
        self._nested_cells += 1
        try:
            return super().run_cell(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._nested_cells -= 1

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """What `%reset` calls: clear the namespace, but for what every rank starts with."""
        kept = {name: self.user_ns[name] for name in PRESETS if name in self.user_ns}
        super().reset(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.user_ns.update(kept)

    def cell_label(self, filename: str) -> str | None:
        """Return "Cell In[7]" (or "Run 46", for a script's code) for the file name of a cell's code, else None."""
        label = code_label(filename)
        return " ".join(label) if label else None

    def format_warning(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        """As Python does it, with the name that tracebacks have for a cell."""
        line = linecache.getline(filename, lineno) if line is None else line
        return _format_warning(message, category, self.cell_label(filename) or filename, lineno, line)

    def system(self, cmd: str) -> None:
        """Run `!cmd`: it writes straight to the run's files, and an interrupt ends it with all that it started."""
        command = self.var_expand(cmd, depth=1)  # type: ignore[no-untyped-call]
        sys.stdout.flush()
        executable = os.environ.get("SHELL")
        environment = {"PYTHONUNBUFFERED": "1", **os.environ}  # else `!python train.py` shows nothing for long
        with subprocess.Popen(command, shell=True, executable=executable, env=environment, process_group=0) as process:
            try:
                code = process.wait()
            except BaseException:
                _end_group(process)
                raise
        # As IPython: the code, or the negative signal when a shell reports one.
        self.user_ns["_exit_code"] = code if code <= 128 else 128 - code

    def hide(self) -> None:
        """Be found by nobody: a script's process is Python's own. Its errors are still rendered here."""
        vars(builtins).setdefault("get_ipython", None)  # the trap takes away what may be hidden already
        for trap in (self.display_trap, self.builtin_trap):
            trap.__exit__(None, None, None)
        for name in ("__IPYTHON__", "display"):
            vars(builtins).pop(name, None)
        for name in ("ps1", "ps2", "ps3"):
            vars(sys).pop(name, None)
        warnings.formatwarning = _format_warning
        atexit.unregister(self.atexit_operations)
        type(self).clear_instance()

    def ask_exit(self) -> NoReturn:
        """What `exit` and `quit` call."""
        raise SystemExit

    def enable_gui(self, gui: str | None = None) -> None:
        """A rank has no display."""
        if gui:
            sys.stderr.write(f"a rank has no display for {gui}: figures are shown inline\n")

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Print a traceback, but not the cell's own or its script's: that one becomes the run's failure."""
        caller = sys._getframe(1).f_code
        last: BaseException | None = getattr(sys, "last_value", None)
        if caller in _SCRIPT_RUNNERS:
            self.script_error = sys.exception()
        elif self._is_cells_own(caller):
            pass
        elif last is not None and sys.exception() is None and not (args or kwargs):  # %tb
            sys.stderr.write(f"{self.render(last)}\n")
        else:
            super().showtraceback(*args, **kwargs)

    def showsyntaxerror(self, *args: Any, **kwargs: Any) -> None:
        """As `showtraceback`."""
        if not self._is_cells_own(sys._getframe(1).f_code):
            super().showsyntaxerror(*args, **kwargs)  # type: ignore[no-untyped-call]

    def showindentationerror(self) -> None:
        """As `showtraceback`."""
        if not self._is_cells_own(sys._getframe(1).f_code):
            super().showindentationerror()  # type: ignore[no-untyped-call]

    def _is_cells_own(self, caller: CodeType) -> bool:
        return caller in _CELL_RUNNERS and not self._nested_cells

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        sys.stderr.write(f"{self.name_files(self.InteractiveTB.stb2text(stb))}\n")

    def render(self, error: BaseException) -> str:
        """Return the traceback of an error as IPython shows it, with colours."""
        whole = [(each, each.__traceback__) for each in error_chain(error)]
        left_out = 0
        try:
            for each, trace in whole:
                each.__traceback__, more = cut_middle(trace)
                left_out += more
            text = self.name_files(self._rendered(error)).replace(_NO_ARGUMENTS, "(…)")
        finally:
            for each, trace in whole:
                each.__traceback__ = trace
        return f"… {left_out:,} frames in the middle left out …\n{text}" if left_out else text

    def _rendered(self, error: BaseException) -> str:
        kind, trace = type(error), error.__traceback__
        if isinstance(error, UsageError):
            return f"UsageError: {error}"
        if isinstance(error, SyntaxError) and _raised_by_compiler(error):
            lines = self.SyntaxTB.structured_traceback(kind, error, None)
        elif isinstance(error, BaseExceptionGroup) or isinstance(error.__context__, BaseExceptionGroup):
            return self._with_labels("".join(traceback.format_exception(kind, error, trace)))
        elif hasattr(error, "_render_traceback_") and not isinstance(error, _SHOWN_WITH_CODE):
            lines = error._render_traceback_()
        else:
            with _quick_getmodule():
                lines = self.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=0)
        return str(self.InteractiveTB.stb2text(lines))

    def _with_labels(self, text: str) -> str:
        """Return what Python's own traceback module wrote, with cells called as IPython's tracebacks call them."""
        return _FILE.sub(lambda match: self.cell_label(match[1]) or match[0], text)

    def keep_error(self, error: BaseException) -> None:
        """Note what the error of a run keeps alive. Before `remember_error`, which gets what people see of it."""
        self._last_error.keep(error)

    def remember_error(self, shown: BaseException) -> None:
        """Let `%tb` and `sys.last_…` find an error. One that refuses a debugger leaves them the one to be debugged."""
        if not isinstance(shown, StdinNotImplementedError):
            self._get_exc_info((type(shown), shown, shown.__traceback__))  # type: ignore[no-untyped-call]

    def release_error(self, code: str) -> None:
        """Release what the last error keeps alive, unless `code`, which runs next, looks at it."""
        if self._last_error.release(code):
            self._forget_rendered()

    def drop_error(self, error: BaseException) -> None:
        """Release everything that an error which was rendered keeps alive."""
        release_frames(error)
        self._forget_rendered()

    def _forget_rendered(self) -> None:
        self.last_execution_result = None
        self.InteractiveTB.tb = None
        self.SyntaxTB.last_syntax_error = None


def make_shell() -> RankShell:
    """Return the one shell of this process, warmed up: what a first cell, value or traceback imports is imported."""
    HistoryManager.enabled = False  # type: ignore[assignment]  # its saver is a thread
    config = Config()
    config.InteractiveShell.cache_size = 0
    config.InteractiveShell.colors = "neutral"
    shell = RankShell.instance(config=config)
    register: Any = shell.register_magic_function  # IPython's has no types
    register(_refuse_mesh, "line", "%mesh")
    for name in ("In", "Out"):
        shell.user_ns.pop(name, None)  # always empty, and in the way of completion
    warnings.formatwarning = shell.format_warning
    for callbacks in shell.events.callbacks.values():
        callbacks.clear()  # IPython's own: an interrupt that is raised in one of them would be lost
    shell.builtin_trap.__enter__()  # for ever: entering and leaving it was part of every cell
    shell.display_trap.__enter__()
    _warm_up(shell)
    return shell


def _refuse_mesh(_: str) -> NoReturn:
    """In the middle of a cell, which has come here whole, IPython takes it for a line's magic of this name."""
    raise UsageError(not_first("mesh"))


def _warm_up(shell: RankShell) -> None:
    """Run a cell that fails, so that formatters and the renderer of tracebacks are imported before ranks are forked."""
    code = "1/0 if True else await None"
    assert isinstance(shell.displayhook, LastValue)
    shell.displayhook(shell)
    with contextlib.suppress(StopIteration):
        shell.run_cell_async(code, transformed_cell=code).send(None)
    assert shell.last_execution_result is not None
    error = shell.last_execution_result.error_in_exec
    assert error is not None
    shell.render(error)
    shell.drop_error(error)
    shell.displayhook.clear()
    linecache.clearcache()


@contextlib.contextmanager
def _quick_getmodule() -> Iterator[None]:
    """Give `inspect.getmodule` no reason to look at every imported module, several times a frame: in a forked rank that
    copies thousands of pages."""
    original = inspect.getmodule
    inspect.getmodule = _module_of  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = original


def _module_of(item: Any, _: str | None = None) -> ModuleType | None:
    """Return what `inspect.getmodule` does for a frame: nothing for a cell's."""
    name = getattr(item, "f_globals", {}).get("__name__") or getattr(item, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_SIGINT_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def clean_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return a MIME bundle as JSON can hold it: binary values in base 64."""
    return {mime: _clean(value) for mime, value in data.items()}


def to_json(value: Any) -> str:
    """Return JSON; what it can not hold is shown as text."""
    return json.dumps(value, default=str)


def _clean(value: Any) -> Any:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _ends_with_semicolon(code: str) -> bool:
    if ";" not in code.rstrip().rpartition("\n")[2]:
        return False
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(code))
    except (tokenize.TokenError, SyntaxError):
        return False


def _raised_by_compiler(error: SyntaxError) -> bool:
    """Return whether an error is the cell's own syntax, rather than that of a module which the cell imports."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or os.path.dirname(trace.tb_frame.f_code.co_filename) == os.path.dirname(INTERACTIVESHELL_FILE)
