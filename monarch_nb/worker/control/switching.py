"""How soon a thread that looks gets the interpreter from one that executes Python.

Python's own 5 ms are too long: code that runs for less than that between two calls of torch, which give the interpreter
away, would never be seen, and torch would be blamed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_asked: list[float] = []
_before_s = _set_s = 0.0


@contextmanager
def switching_within(seconds: float) -> Iterator[None]:
    """Have threads switch at least so soon while the block is executed, on whichever thread. What the user's code sets
    meanwhile stays."""
    global _before_s
    with _lock:
        if not _asked:
            _before_s = sys.getswitchinterval()
        _asked.append(seconds)
        _set()
    try:
        yield
    finally:
        with _lock:
            _asked.remove(seconds)
            if sys.getswitchinterval() == _set_s:
                _set()


def _set() -> None:
    global _set_s
    sys.setswitchinterval(min([_before_s, *_asked]))
    _set_s = sys.getswitchinterval()
