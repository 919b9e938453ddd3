"""Where somebody's code has called ours, in a traceback."""

from __future__ import annotations

from types import TracebackType

_OURS = __name__.partition(".")[0]
_BETWEEN = "IPython"


def end_at_caller(trace: TracebackType | None) -> None:
    """Cut a traceback where our code begins, and IPython's that ran a magic of ours: a debugger begins at its end."""
    last: TracebackType | None = None
    while trace is not None:
        package = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0]
        if package == _OURS and last is not None:
            last.tb_next = None
            return
        if package != _BETWEEN or last is None:
            last = trace
        trace = trace.tb_next
