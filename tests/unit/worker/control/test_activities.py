"""How an interrupt sees what the main thread does."""

from __future__ import annotations

import threading

from monarch_nb.worker.control.activities import thread_state


def test_the_state_of_a_thread() -> None:
    state, ticks = thread_state(threading.get_native_id())
    assert state == "R"
    assert ticks >= 0
    assert thread_state(2**22 + 1) == ("", -1)
