"""File descriptors of the standard streams, which user code may close, and point elsewhere."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable

plain_dup2 = os.dup2


def tell_of_moves(before: Callable[[], None], after: Callable[[int], None]) -> None:
    """Call `before` and `after` when Python code points descriptor 1 or 2 elsewhere, or back: what silences C code, as
    capfd and wurlitzer do, is meant to silence Python, too."""

    @functools.wraps(plain_dup2)
    def dup2(fd: int, fd2: int, inheritable: bool = True) -> int:
        if fd2 not in (1, 2):
            return plain_dup2(fd, fd2, inheritable)
        before()
        made = plain_dup2(fd, fd2, inheritable)
        after(fd2)
        return made

    os.dup2 = dup2


def above_standard(descriptor: int) -> int:
    """Move a descriptor out of the place of a standard stream that user code has closed."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


@functools.cache
def nowhere() -> int:
    """Return a descriptor that takes what can not be written; one for all, opened while there are some."""
    return above_standard(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))


def is_same_file(descriptor: int, other: int) -> bool:
    """Return whether two descriptors are of one file."""
    try:
        return os.path.sameopenfile(descriptor, other)
    except OSError:  # user code has closed it
        return False
