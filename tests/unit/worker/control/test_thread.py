"""The rank's control thread, without a rank."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.proto.worker_pb2 import ControlReply, ControlRequest, GetWhere, InterruptRun
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


@pytest.mark.parametrize("busy", ["", "an actor", "a debugger", "a task", "a save", "a thread"])
def test_what_may_call_collectives_besides_the_main_thread(busy: str, tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()
    scope: dict[str, Any] = {}
    file = "torch/distributed/checkpoint/x.py" if busy == "a thread" else "mine.py"
    exec(compile("def save(begun, ended):\n    begun.set()\n    ended.wait()", str(tmp_path / file), "exec"), scope)
    name = "monarch_nb-save" if busy == "a save" else "mine"
    thread = threading.Thread(target=scope["save"], args=(begun, ended), name=name)
    thread.start()
    begun.wait()
    with socket.socket() as listener:
        control = made(
            listener,
            executions=[object()] if busy == "an actor" else [],
            debugger=SimpleNamespace(stops=lambda: [object()] if busy == "a debugger" else []),
            interrupter=SimpleNamespace(active=None, has_tasks=lambda: busy == "a task"),
        )
        reply = ControlReply()
        control._fill(reply, ControlRequest(where=GetWhere()))
    ended.set()
    thread.join()
    assert reply.where.busy_besides == bool(busy)
