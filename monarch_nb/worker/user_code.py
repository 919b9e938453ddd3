"""Which stack frames are the user's, and what their lines are called.

Frames of the standard library, of installed packages, of IPython and of this package are not: what a person wants to
know is the innermost line of their own code, "train.py:41" or "Cell In[7]:3".
"""

import functools
import linecache
import os
import re
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from IPython.utils.path import compress_user

CellLabel = Callable[[str], str | None]
"""Returns "Cell In[7]" for the file name of a cell's code, else None."""

_FILE = r'(File (?:\x1b\[[0-9;]*m)*"?)'
"""What comes before a file's name in a traceback, of Python's or IPython's."""
_KERNEL_CELL = re.compile(r"[\\/]ipykernel_\d+[\\/]\d+\.py$")
"""What ipykernel calls the code of its cells."""
_MAX_FRAMES = 200
_MAX_RECURSION_FRAMES = 2_000
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@functools.cache
def library_directories() -> tuple[str, ...]:
    """Return the directories whose files are not the user's, each with a slash at its end."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = {sysconfig.get_path(name) for name in names} | {*site.getsitepackages(), site.getusersitepackages()}
    return (PACKAGE, *(os.path.join(path, "") for path in paths if path))


def is_library(path: str) -> bool:
    """Return whether a file is not the user's. One environment may build on another, whose directory Python does not
    name: what packages are installed in is called the same everywhere."""
    return path.startswith(library_directories()) or "/site-packages/" in path or "/dist-packages/" in path


def is_standard(path: str) -> bool:
    """Return whether a file is of the standard library."""
    return path.startswith(("<frozen ", _STANDARD_LIBRARY)) and "-packages" not in path


class UserCode:
    """Tells the user's frames from others.

    Args:
        cell_label: names the file of a cell's code.
        directory: the rank's directory: files in it are named relative to it.
        workspace: the node's copy of the notebook's files, if it has one: other files in it are named relative to it.
    """

    def __init__(self, cell_label: CellLabel, directory: str = "", workspace: str = "") -> None:
        self._cell_label = cell_label
        self._directory = os.path.join(directory, "")
        self._workspace = os.path.join(workspace, "")

    def is_cell(self, filename: str) -> bool:
        """Return whether a file name is that of a cell's code."""
        return self._cell_label(filename) is not None

    def is_users(self, filename: str) -> bool:
        """Return whether code from `filename` is the user's own."""
        if self._cell_label(filename):
            return True
        return not filename.startswith("<") and not is_library(os.path.abspath(filename))

    def owns(self, frame: FrameType) -> bool:
        """Return whether a frame executes the user's own code. What runs as `__main__` does, also a module of an
        installed package (`python -m`)."""
        filename = frame.f_code.co_filename
        is_main = frame.f_globals.get("__name__") == "__main__" and not filename.startswith(PACKAGE)
        return is_main or self.is_users(filename)

    def file_name(self, filename: str) -> str:
        """Return "Cell In[7]", or the file's path, relative where it lies in the rank's directory. What a kernel has
        sent of its own cells, such as a class of actors, has a file name that says nothing."""
        if label := self._cell_label(filename):
            return label
        if _KERNEL_CELL.search(filename):
            return "notebook cell"
        for root in (self._directory, self._workspace):
            if filename.startswith(root):
                return filename[len(root) :]
        return filename

    def name_files(self, trace: str) -> str:
        """Return a rendered traceback in which the files of a workspace have the names that the user gave them: where
        the copy lies says nothing, and differs from node to node."""
        if self._workspace:
            for root in (self._directory, self._workspace):
                for spelled in (root, compress_user(root)):
                    trace = re.sub(rf"{_FILE}{re.escape(spelled)}", r"\1", trace)
        return trace

    def line(self, filename: str, number: int) -> str:
        """Return "train.py:41" or "Cell In[7]:3"."""
        name = self.file_name(filename)
        return f"{os.path.basename(name) if os.path.isabs(name) else name}:{number}"

    def line_of_stack(self, frames: Iterable[FrameType]) -> str:
        """Return the innermost line of user code of a stack, given innermost first; empty when there is none."""
        for each in frames:
            if self.owns(each):
                return self.line(each.f_code.co_filename, each.f_lineno)
        return ""

    def line_of_traceback(self, trace: TracebackType | None) -> str:
        """Return the innermost line of user code of a traceback; empty when there is none."""
        found = ""
        for each in _each(trace):
            if self.owns(each.tb_frame):
                found = self.line(each.tb_frame.f_code.co_filename, each.tb_lineno)
        return found

    def owns_end_of(self, trace: TracebackType | None) -> bool:
        """Return whether user code itself raised, and nothing that it called."""
        frames = [each.tb_frame for each in _each(trace)]
        return bool(frames) and self.owns(frames[-1])

    def trim(self, trace: TracebackType | None, *, only_users: bool = False) -> TracebackType | None:
        """Return a traceback without this package's frames and without those before the first of the user's.

        Args:
            trace: the traceback.
            only_users: leave out the library frames inside the innermost user line too: ranks that were interrupted
                at different depths of one call then report equally.
        """
        kept: list[TracebackType] = []
        for each in _each(trace):
            filename = each.tb_frame.f_code.co_filename
            if self.owns(each.tb_frame) or (kept and not filename.startswith(PACKAGE)):
                kept.append(each)
        while only_users and kept and not self.owns(kept[-1].tb_frame):
            kept.pop()
        return _chained(kept)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame executes this package's code, or IPython's."""
    module = str(frame.f_globals.get("__name__", ""))
    return frame.f_code.co_filename.startswith(PACKAGE) or module.partition(".")[0] == "IPython"


def cut_middle(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback that is quickly rendered, and how many frames in its middle are left out.

    A place in the code takes milliseconds, one that recursion comes through again tenths of one: those are shown once.
    """
    frames = list(_each(trace))
    places = {(each.tb_frame.f_code, each.tb_lineno) for each in frames}
    most = _MAX_RECURSION_FRAMES if len(places) <= _MAX_FRAMES else _MAX_FRAMES
    left_out = len(frames) - most
    if left_out <= 0:
        return trace, 0
    return _chained(frames[: most // 2] + frames[-most // 2 :]), left_out


def _each(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _chained(traces: list[TracebackType]) -> TracebackType | None:
    result: TracebackType | None = None
    for each in reversed(traces):
        result = TracebackType(result, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return result


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def unbroken(do: Callable[[], None]) -> None:
    """Call what an exception would spoil in its middle: an interrupt of the run comes after it."""
    do()


def is_unbroken(frames: Iterable[FrameType]) -> bool:
    """Return whether a thread, whose frames these are, is in `unbroken`."""
    return any(each.f_code is unbroken.__code__ for each in frames)


def awaited_frames(awaitable: Any) -> list[FrameType]:
    """Return the frames of a suspended coroutine and of what it awaits, innermost first."""
    frames: list[FrameType] = []
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None:
            frames.insert(0, frame)
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return frames


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def describe_threads(
    user_code: UserCode, main: list[FrameType] | None, others: list[tuple[str, list[FrameType]]]
) -> str:
    """Return the main thread's stack and those of the other threads that run user code, most recent call last.

    Args:
        user_code: knows the user's frames.
        main: the main thread's frames, innermost first; None when it is idle, which is said when others are, too.
        others: of other threads what they are called, and their frames, innermost first.
    """
    parts = ["\n".join(describe_stack(user_code, main))] if main is not None else []
    for name, frames in others:
        if lines := describe_stack(user_code, frames):
            parts.append("\n".join([f"{name}:", *lines]))
    return "\n\n".join(parts or ["idle"]) + "\n"


def describe_stack(user_code: UserCode, frames: list[FrameType]) -> list[str]:
    """Return lines for each frame from the outermost of user code inwards, without this package's; empty when there is
    no user code.

    Args:
        frames: innermost first.
    """
    frames = list(frames)
    while frames and not user_code.owns(frames[-1]):
        frames.pop()
    lines = []
    for each in reversed(frames):
        if each.f_code.co_filename.startswith(PACKAGE):
            continue
        code, number = each.f_code, each.f_lineno or each.f_code.co_firstlineno
        lines.append(f'  File "{user_code.file_name(code.co_filename)}", line {number}, in {code.co_name}')
        if source := linecache.getline(code.co_filename, number).strip():
            lines.append(f"    {source}")
    return lines


def other_threads(ours: set[int]) -> list[tuple[str, FrameType]]:
    """Return names and innermost frames of the Python threads that are neither the main thread nor in `ours`."""
    frames = sys._current_frames()
    main = threading.main_thread().ident
    return [
        (thread.name, frames[thread.ident])
        for thread in threading.enumerate()
        if thread.ident in frames and thread.ident != main and thread.ident not in ours
    ]
