"""Stacks of a rank's threads as text that is equal on ranks that do the same: no addresses, no ids, no times."""

import linecache
import sys
import threading
from types import FrameType

from monarch_nb.worker.user_code import PACKAGE, UserCode


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
