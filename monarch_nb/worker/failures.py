"""From an exception in user code to the Failure that the notebook shows."""

from types import TracebackType

from monarch_nb.proto.run_pb2 import Failure
from monarch_nb.worker import process_groups
from monarch_nb.worker.shell import RankShell
from monarch_nb.worker.user_code import UserCode

_MESSAGE_CHARACTERS = 20_000


class RunInterrupted(KeyboardInterrupt):
    """Raised in user code by an interrupt of its run. Shown as the KeyboardInterrupt that it is."""


RunInterrupted.__name__ = RunInterrupted.__qualname__ = "KeyboardInterrupt"
RunInterrupted.__module__ = "builtins"


def interruption(collective: str, group_aborted: bool) -> RunInterrupted:
    """Return the error of an interrupted run.

    Args:
        collective: the one that it was freed from; empty when it was none.
        group_aborted: whether process groups were broken for it.
    """
    if not group_aborted:
        return RunInterrupted("interrupted")
    return RunInterrupted(
        f"interrupted in {collective or 'a collective'}; process group aborted, call dist.init_process_group() again; "
        "models wrapped in DistributedDataParallel must be wrapped again"
    )


def explain_exit(error: SystemExit) -> SystemExit:
    """Return the error of a cell that tried to end its process."""
    asked = "" if error.code is None else f" with {error.code!r}"
    message = f"the cell asked to exit{asked}; the rank stays alive (use %mesh restart for a fresh one)"
    return SystemExit(message).with_traceback(error.__traceback__)


def readable(error: BaseException) -> BaseException:
    """Return `error`, or one readable error in place of what breaking a process group caused."""
    return process_groups.readable(error) or error


def describe(shell: RankShell, user_code: UserCode, error: BaseException, *, only_users: bool = False) -> Failure:
    """Return what people get to see of an error.

    Args:
        shell: renders the traceback.
        user_code: knows the user's frames.
        error: the error.
        only_users: leave out the library frames inside the innermost user line.
    """
    where = user_code.line_of_traceback(error.__traceback__)
    if isinstance(error, SyntaxError) and not where and error.filename:
        where = user_code.line(error.filename, error.lineno or 1)
    trace = _from_first_user_frame(user_code, error.__traceback__)
    if only_users:
        trace = user_code.only_users(trace)
    return Failure(
        name=type(error).__name__,
        message=_message(error),
        traceback=_render(shell, error.with_traceback(trace)),
        where=where,
    )


def _render(shell: RankShell, error: BaseException) -> str:
    try:
        return shell.render(error)
    except Exception as problem:  # noqa: BLE001 -- a broken __str__ or source: an error must be shown anyhow
        return f"{type(error).__name__}: {_message(error)}\n(the traceback can not be rendered: {problem!r})"


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as problem:  # noqa: BLE001 -- the user's __str__
        text = f"<its message can not be shown: {type(problem).__name__}>"
    if len(text) <= _MESSAGE_CHARACTERS:
        return text
    return f"{text[:_MESSAGE_CHARACTERS]}… ({len(text):,} characters)"


def _from_first_user_frame(user_code: UserCode, trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without IPython's frames and ours at its beginning."""
    while trace is not None and not user_code.is_users(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
