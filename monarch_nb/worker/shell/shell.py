"""The IPython shell of a rank: made once in the template, kept from keeping anything alive."""

import atexit
import base64
import builtins
import contextlib
import inspect
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, NoReturn

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from monarch_nb.config import FACTS_MIME, patience
from monarch_nb.errors import NotFinite, ProcessGroupAborted
from monarch_nb.ground.code_names import code_label, not_first
from monarch_nb.proto.run_pb2 import Display
from monarch_nb.worker.shell import streams
from monarch_nb.worker.shell.compiler import BoundedCompiler
from monarch_nb.worker.shell.facts import facts_of
from monarch_nb.worker.shell.last_error import LastError, release_frames
from monarch_nb.worker.user_code import UserCode, cut_middle, error_chain

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
        data, metadata = shell.display_formatter.format(result)  # type: ignore[no-untyped-call]
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
                file = os.path.abspath(os.path.expanduser(path))
                if not os.path.isfile(file):
                    raise UsageError(f"there is no {file}")
                self.user_ns["__file__"] = file
                self.safe_execfile(file, self.user_ns, self.user_ns)  # type: ignore[no-untyped-call]
        finally:
            sys.argv = argv
            self.user_ns["__name__"] = name

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """What user code calls to run a cell inside its own."""
        self._nested_cells += 1
        try:
            return super().run_cell(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._nested_cells -= 1

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """What `%reset` calls: clear the namespace, but for what every rank starts with."""
        names = ("rank", "world_size", "local_rank", "device", "dist")
        kept = {name: self.user_ns[name] for name in names if name in self.user_ns}
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
        elif hasattr(error, "_render_traceback_") and not isinstance(error, (NotFinite, ProcessGroupAborted)):
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
        return bool(DisplayHook.semicolon_at_end_of_expression(code))  # type: ignore[no-untyped-call]
    except (tokenize.TokenError, SyntaxError):
        return False


def _raised_by_compiler(error: SyntaxError) -> bool:
    """Return whether an error is the cell's own syntax, rather than that of a module which the cell imports."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or os.path.dirname(trace.tb_frame.f_code.co_filename) == os.path.dirname(INTERACTIVESHELL_FILE)
