"""Who gets the signals of an engine."""

from __future__ import annotations

import os
import signal

from monarch_nb.allocator.ranks.signals import is_caught


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
