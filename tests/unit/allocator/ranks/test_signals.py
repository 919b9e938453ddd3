"""Who gets the signals of an engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from monarch_nb.allocator.ranks.signals import is_caught, thread_named


def test_what_has_no_handler_is_not_told() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert not is_caught(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert is_caught(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not is_caught(2**22 + 1, signal.SIGUSR1), "there is no such process"


def test_a_thread_is_found_by_what_the_kernel_calls_it() -> None:
    main = Path("/proc/self/comm").read_text().rstrip()
    found = thread_named(os.getpid(), main)
    assert Path(f"/proc/self/task/{found}/comm").read_text().rstrip() == main
    assert thread_named(os.getpid(), "nobody") is None
    assert thread_named(2**22 + 1, main) is None, "there is no such process"
