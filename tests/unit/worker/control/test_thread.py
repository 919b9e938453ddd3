"""The rank's control thread, without a rank."""

import socket
from typing import Any

from monarch_nb.worker.control.thread import ControlThread


def test_runs_that_print_one_after_the_other_do_not_put_flushing_off() -> None:
    """Their files stay open until then: a few thousand runs without a pause used up all descriptors of a rank."""
    nothing: Any = None
    parts = (
        "activities",
        "executions",
        "actors",
        "withdraw",
        "interrupter",
        "user_code",
        "namespace",
        "debugger",
        "post",
    )
    options = dict.fromkeys((*parts, "on_work", "on_abort", "on_exit"), nothing)
    with socket.socket() as listener:
        control = ControlThread(listener, entries=set(), **options)
        control.wake_for_text()
        control._woken()
        first = control._flush_at
        control.wake_for_text()
        control._woken()
        assert control._flush_at == first
