"""Stacks and errors of torch.distributed, without torch: functions and classes that look like its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.groups import calls

TORCH = "/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
DDP = f"{TORCH}/nn/parallel/distributed.py"
LOGGER = (f"{TORCH}/distributed/c10d_logger.py", "wrapper")
OURS = "/x/monarch_nb/worker/groups"


def stack(*functions: tuple[str, str]) -> Any:
    """Return the innermost frame of a stack of (file, function), outermost first."""
    frame = None
    for path, name in functions:
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=path, co_name=name), f_back=frame, f_lasti=-1)
    return frame


def test_the_collective_of_a_stack() -> None:
    rendezvous = (f"{TORCH}/distributed/rendezvous.py", "rendezvous"), (f"{OURS}/rendezvous.py", "agree")
    backward = (f"{TORCH}/_tensor.py", "backward"), (f"{TORCH}/autograd/graph.py", "_engine_run_backward")
    stacks: list[tuple[list[tuple[str, str]], str | None]] = [
        ([LOGGER, (C10D, "all_reduce")], "all_reduce"),
        ([LOGGER, (C10D, "broadcast_object_list"), LOGGER, (C10D, "broadcast")], "broadcast_object_list"),
        ([(C10D, "new_group"), (C10D, "_new_group_with_tag"), (C10D, "_new_process_group_helper")], "new_group"),
        (
            [(f"{OURS}/forming.py", "init_process_group"), LOGGER, (C10D, "init_process_group"), *rendezvous],
            "init_process_group",
        ),
        ([*backward], "backward"),
        ([(DDP, "__init__"), (f"{TORCH}/distributed/utils.py", "_sync")], "DistributedDataParallel"),
        ([(C10D, "all_reduce"), ("/home/me/train.py", "hook")], None),
        ([("/home/me/train.py", "all_reduce")], None),
    ]
    for functions, name in stacks:
        assert calls._innermost(calls.outwards(stack(*functions))) == name


def like_torchs(name: str, method: str) -> Any:
    """Return an instance of a class of torch's; its method says what is seen of its caller."""
    kind = type(name, (), {"__module__": "torch._C._distributed_c10d"})
    instance = kind()
    setattr(instance, method, lambda *_: calls.collective(sys._getframe(1)))
    return instance


def test_waiting_for_work_and_for_a_store_is_seen_at_the_call() -> None:
    work, store, mine = like_torchs("Work", "wait"), like_torchs("Store", "get"), like_torchs("Mine", "wait")
    works, plain, other = [work], mine.wait, like_torchs("Work", "result")
    holder = SimpleNamespace(work=work, store=store)
    seen = [work.wait(), holder.work.wait(), works[0].wait()]  # nobody can tell of what kind the last one is
    seen += [each.wait() for each in works]
    found = work.wait(
        5,
    )
    assert [*seen, found] == ["wait"] * 5
    seen = [store.get("key"), holder.store.get("key"), [holder][0].store.get("key")]
    assert seen == ["store wait", "store wait", None]
    seen = [mine.wait(), other.result(), plain()]
    assert seen == [None, None, None]


def raised_in(path: str, name: str, error: BaseException) -> BaseException:
    """Return `error`, raised by a function that seems to lie in another file."""
    space: dict[str, Any] = {}
    exec(compile(f"def {name}(error):\n    raise error\n", path, "exec"), space)
    with pytest.raises(type(error)) as caught:
        space[name](error)
    return caught.value


def test_errors_of_groups_are_known() -> None:
    closed = RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5")
    timed_out = RuntimeError("[/third_party/gloo/gloo/x.cc] Timed out waiting 1000ms for recv operation to complete")
    distributed = type("DistNetworkError", (RuntimeError,), {"__module__": "torch.distributed"})("Failed to recv")
    for error in (closed, timed_out, distributed):
        assert calls.is_group_error(error)
    for other in (RuntimeError("shape mismatch"), ValueError("NCCL"), KeyboardInterrupt()):
        assert not calls.is_group_error(other)
    assert calls.is_lost_connection(closed)
    refused = "[/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused"
    assert calls.is_lost_connection(RuntimeError(f"Gloo connectFullMesh failed with {refused}"))
    store = RuntimeError("The client socket has failed to connect to node7:29500 (errno: 111 - Connection refused).")
    assert not calls.is_lost_connection(store), "its address may be wrong"
    assert not calls.is_lost_connection(timed_out)


def test_where_an_error_was_raised_also_while_another_was_handled() -> None:
    interrupt, error = KeyboardInterrupt(), raised_in(C10D, "barrier", RuntimeError("Connection reset by peer"))
    interrupt.__context__ = error
    error.__context__ = interrupt  # a circle
    assert calls.is_group_error(interrupt)
    assert [calls.collective_of(each) for each in (interrupt, error)] == ["barrier"] * 2
    assert calls.collective_of(RuntimeError("never raised")) is None
    forward = raised_in(DDP, "forward", RuntimeError("x"))
    assert [calls.in_wrapped_model(each) for each in (error, forward)] == [False, True]
