"""What a rank keeps of the error that a run failed with: `%tb` and `sys.last_…`, as IPython does it.

Except for what the frames hold: IPython keeps that alive until another cell fails, and then a cell that ran out of
memory, or was interrupted, can not be repeated with less. It is released when the next run begins, unless that one
looks at the error.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from types import TracebackType

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
                trace.tb_frame.clear()
            trace.tb_frame.f_locals  # noqa: B018 -- before Python 3.13 a copy, which this brings up to date
            trace = trace.tb_next
