"""Connecting to a store that may not be there yet, or not at all: in short attempts, so that an interrupt gets through.

Torch tries on for half an hour in C++, which no interrupt ends, and prints a page of its stack at each attempt. This is
no part of the rendezvous, where interrupts wait: here nothing is noted yet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from monarch_nb.config import cadence
from monarch_nb.ground import interrupting
from monarch_nb.times import duration

_ATTEMPT_S = cadence(2.0)
_PATIENCE_S = cadence(4.0)
"""Before it is said that no store answers: one that nobody has asked so far imports torch first."""
_PAUSE_S = cadence(0.3)
"""Between attempts, in Python: here an interrupt gets through, which is tried again every tenth of a second."""


@interrupting.waits
def pause(time_s: float) -> None:
    """Wait, here in Python, where an interrupt gets through."""
    time.sleep(time_s)


def connect(
    attempt: Callable[[timedelta], Any], where: str, timeout: timedelta, quietly: AbstractContextManager[Any]
) -> Any:
    """Return a store once an attempt succeeds; say in a line that there is none when they fail for a while.

    Args:
        attempt: makes a store that is connected, within the time that it is given, or raises RuntimeError.
        where: the store's address, for people.
        timeout: what the last attempt fails after; also the store's from then on.
        quietly: what attempts are made in.
    """
    began = time.monotonic()
    deadline = began + timeout.total_seconds()
    said = False
    while True:
        left_s = deadline - time.monotonic()
        try:
            with quietly:
                store = attempt(timedelta(seconds=min(max(left_s, 0.001), _ATTEMPT_S)))
        except RuntimeError:
            if time.monotonic() >= deadline:
                raise
            if not said and time.monotonic() - began >= _PATIENCE_S:
                said = True
                sys.stderr.write(f"no store answers at {where} yet: trying for {duration(timeout.total_seconds())}\n")
            pause(_PAUSE_S)
        else:
            store.set_timeout(timeout)
            return store
