"""From an exception in user code to the Failure that the notebook shows."""

import bdb
import os
import runpy
from types import CodeType

import IPython.core.error
from IPython.core.magics.execution import ExecutionMagics

from monarch_nb.errors import GROUP_ABORTED, NoProcessGroup, ProcessGroupAborted, UsageError
from monarch_nb.ground.printing import encodable
from monarch_nb.proto.run_pb2 import Call, Failure
from monarch_nb.worker.groups import breaking, calls
from monarch_nb.worker.shell.shell import RankShell
from monarch_nb.worker.user_code import UserCode, error_chain

_MESSAGE_CHARACTERS = 20_000
_TRACEBACK_CHARACTERS = 80_000
_FINDERS = {ExecutionMagics.run.__code__, runpy._get_module_details.__code__}  # type: ignore[attr-defined]
"""The code that looks for what `%run` is to run, and raises itself when there is none."""
_SAYS_ALL = (UsageError, IPython.core.error.UsageError)
_END_OF_INPUT = "EOF when reading a line"
"""What `input()` says."""
_QUIT = "quit in the debugger"
_CUDA_ERROR = "CUDA error: "
_CONTEXT_IS_LOST = (
    "device-side assert triggered",
    "illegal address",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "uncorrectable",
)
"""Of CUDA's errors those after which, as its runtime's documentation says, "the process must be terminated and
relaunched" (cudaErrorAssert, cudaErrorIllegalAddress, …)."""


class RunInterrupted(KeyboardInterrupt):
    """Raised in user code by an interrupt of its run. Shown as the KeyboardInterrupt that it is."""

    def __reduce__(self) -> tuple[type[KeyboardInterrupt], tuple[object, ...]]:
        return KeyboardInterrupt, self.args


RunInterrupted.__name__ = RunInterrupted.__qualname__ = "KeyboardInterrupt"
RunInterrupted.__module__ = "builtins"


def interruption(collective: str, group_aborted: bool, *, makes_another: bool = True, by: str = "") -> RunInterrupted:
    """Return the error of an interrupted run.

    Args:
        by: "by bob from b.ipynb": who wanted that and where, when that is news to who submitted the run.
        collective: the one that it was freed from; empty when it was none.
        group_aborted: whether process groups were broken for it.
        makes_another: whether the process can make another group: it goes on.
    """
    interrupted = f"interrupted {by}".strip()
    if not group_aborted:
        return RunInterrupted(interrupted)
    where = f"{interrupted} in {collective}" if collective else interrupted
    return RunInterrupted(f"{where}; {GROUP_ABORTED}" if makes_another else where)


def explain_exit(error: SystemExit) -> SystemExit:
    """Return the error of a cell that tried to end its process."""
    asked = "" if error.code is None else f" with {error.code!r}"
    message = f"the cell asked to exit{asked}; the rank stays alive (use %mesh restart for a fresh one)"
    return SystemExit(message).with_traceback(error.__traceback__)


def explain_status(error: SystemExit, status: int) -> SystemExit:
    """Return the error of a script that ended itself with a status other than 0."""
    said = "" if error.code is None or isinstance(error.code, int) else f": {error.code}"
    return SystemExit(f"exited with code {status}{said}").with_traceback(error.__traceback__)


def readable(error: BaseException, *, makes_another: bool = True) -> BaseException:
    """Return `error`, or one readable error in place of what breaking a process group caused, or the lack of one, or
    what `%run` says of a program that it does not find; raised where that was.

    Args:
        error: what user code raised.
        makes_another: whether the process can make another group: it goes on.
    """
    if type(error) in (Exception, ImportError) and _innermost_code(error) in _FINDERS:
        return UsageError(str(error)).with_traceback(error.__traceback__)
    if type(error) is EOFError and str(error) == _END_OF_INPUT:
        error.args = (f"{_END_OF_INPUT}: a rank's stdin is empty",)
    if type(error) is bdb.BdbQuit and not error.args:
        error.args = (_QUIT,)
    if makes_another and isinstance(error, RuntimeError) and (message := _message(error)).startswith(_CUDA_ERROR):
        error.args = (explain_cuda(message),)
    aborted = breaking.readable(error)
    if aborted is None:
        return NoProcessGroup().with_traceback(error.__traceback__) if breaking.lacks_group(error) else error
    if not makes_another:
        message = str(aborted).removesuffix(f"; {GROUP_ABORTED}")
        aborted = ProcessGroupAborted(message, aborted.collective, aborted.reason)
    return aborted.with_traceback(error.__traceback__)


def explain_cuda(message: str) -> str:
    """Return what CUDA says, with what helps where this process can use its GPU no more.

    Example: "CUDA error: misaligned address; this process can not use its GPU any more: %mesh restart -t 3".
    """
    said, newline, advice = message.partition("\n")
    if not any(sign in said for sign in _CONTEXT_IS_LOST):
        return message
    rank = os.environ.get("RANK", "0")
    return f"{said}; this process can not use its GPU any more: %mesh restart -t {rank}{newline}{advice}"


def is_refused_call(error: BaseException) -> bool:
    """Return whether a function of torch.distributed raised `error` itself, as for tensors of wrong shapes: what is
    inside it says nothing to who called it."""
    code = _innermost_code(error)
    return code is not None and code.co_filename.endswith(calls.FILE)


def _innermost_code(error: BaseException) -> CodeType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace and trace.tb_frame.f_code


def describe(shell: RankShell, user_code: UserCode, error: BaseException, *, only_users: bool = False) -> Failure:
    """Return what people get to see of an error. A UsageError that no line of theirs has raised is its message.

    Args:
        shell: renders the traceback.
        user_code: knows the user's frames.
        error: the error.
        only_users: leave out the library frames inside the innermost user line.
    """
    where = user_code.line_of_traceback(error.__traceback__)
    if isinstance(error, SyntaxError) and not where and error.filename:
        where = user_code.line(error.filename, error.lineno or 1)
    called = calls.of_error(error, error.collective or "") if isinstance(error, ProcessGroupAborted) else None
    for each in error_chain(error):
        each.__traceback__ = user_code.trim(each.__traceback__, only_users=only_users)
    failure = Failure(
        name=encodable(type(error).__name__),
        message=encodable(_named(user_code, error, _message(error))),
        traceback="" if isinstance(error, _SAYS_ALL) and not where else encodable(_render(shell, error)),
        where=encodable(where),
    )
    if called is not None:
        call, failure.call_number, failure.group_size = called
        failure.call.CopyFrom(Call(**vars(call)))
    return failure


def _named(user_code: UserCode, error: BaseException, message: str) -> str:
    """Return the message; a SyntaxError's names the file, which for a cell is no name that people know."""
    if isinstance(error, SyntaxError) and error.filename:
        return message.replace(error.filename, user_code.file_name(error.filename))
    return message


def _render(shell: RankShell, error: BaseException) -> str:
    try:
        whole = "" if not shell.initialized() else f" (%%mesh -t {os.environ.get('RANK', '0')} with %tb prints all)"
        return _shortened(shell.render(error), _TRACEBACK_CHARACTERS, whole)
    except Exception as problem:  # noqa: BLE001 -- a broken __str__ or source: an error must be shown anyhow
        return f"{type(error).__name__}: {_message(error)}\n(the traceback can not be rendered: {problem!r})"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 -- the user's __str__
        text = f"<its message can not be shown: {type(problem).__name__}>"
    return _shortened(text, _MESSAGE_CHARACTERS)


def _shortened(text: str, limit: int, whole: str = "") -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… {len(text) - limit:,} characters left out{whole} …\n{text[-limit // 2 :]}"
