"""The rank's control thread, without a rank."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.proto.worker_pb2 import ControlReply, ControlRequest, InterruptRun
from monarch_nb.worker.control.thread import ControlThread


def made(listener: socket.socket, **parts: Any) -> ControlThread:
    """A control thread that is not started, with what it needs for a test."""
    names = "activities executions actors withdraw interrupter user_code namespace debugger post keeper"
    nothing: Any = None
    options = dict.fromkeys((*names.split(), "on_work", "on_abort", "on_exit"), nothing) | parts
    return ControlThread(listener, entries=set(), **options)


def test_runs_that_print_one_after_the_other_do_not_put_flushing_off() -> None:
    """Their files stay open until then: a few thousand runs without a pause used up all descriptors of a rank."""
    with socket.socket() as listener:
        control = made(listener)
        control.wake_for_text()
        control._woken()
        first = control._flush_at
        control.wake_for_text()
        control._woken()
        assert control._flush_at == first


@pytest.mark.parametrize(("run_id", "is_executed"), [("calls", True), ("", True), ("another", False)])
def test_what_ends_because_the_message_that_it_waits_for_is_withdrawn_was_interrupted(
    run_id: str, is_executed: bool
) -> None:
    executed = ["calls"]

    def of_run(run_id: str) -> list[str]:
        return [each for each in executed if run_id in ("", each)]

    with socket.socket() as listener:
        control = made(
            listener,
            executions=SimpleNamespace(of_run=of_run, request=lambda run_id: bool(of_run(run_id))),
            interrupter=SimpleNamespace(active=None, request=lambda *_: False),
            withdraw=lambda _: executed.clear(),
        )
        reply = ControlReply()
        control._fill(reply, ControlRequest(interrupt=InterruptRun(run_id=run_id)))
        assert reply.ok == is_executed
