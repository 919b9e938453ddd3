"""Stacks and errors of torch.distributed, without torch: functions and classes that look like its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.groups import collectives

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


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (stack(LOGGER, (C10D, "all_reduce")), "all_reduce"),
        (stack(LOGGER, (C10D, "broadcast_object_list"), LOGGER, (C10D, "broadcast")), "broadcast_object_list"),
        (stack((C10D, "new_group"), (C10D, "_new_group_with_tag"), (C10D, "_new_process_group_helper")), "new_group"),
        (
            stack(
                (f"{OURS}/forming.py", "init_process_group"),
                LOGGER,
                (C10D, "init_process_group"),
                (f"{TORCH}/distributed/rendezvous.py", "rendezvous"),
                (f"{OURS}/rendezvous.py", "agree"),
            ),
            "init_process_group",
        ),
        (
            stack((f"{TORCH}/_tensor.py", "backward"), (f"{TORCH}/autograd/graph.py", "_engine_run_backward")),
            "backward",
        ),
        (stack((DDP, "__init__"), (f"{TORCH}/distributed/utils.py", "_sync")), "DistributedDataParallel"),
        (stack((C10D, "all_reduce"), ("/home/me/train.py", "hook")), None),
        (stack(("/home/me/train.py", "all_reduce")), None),
    ],
)
def test_the_collective_of_a_stack(frame: Any, name: str | None) -> None:
    assert collectives._innermost(collectives._outwards(frame)) == name


def like_torchs(name: str, method: str) -> Any:
    """Return an instance of a class of torch's; its method says what is seen of its caller."""
    kind = type(name, (), {"__module__": "torch._C._distributed_c10d"})
    instance = kind()
    setattr(instance, method, lambda *_: collectives.collective(sys._getframe(1)))
    return instance


def test_waiting_for_work_is_seen_at_the_call() -> None:
    work = like_torchs("Work", "wait")
    works = [work]
    holder = SimpleNamespace(work=work)
    seen = [work.wait(), holder.work.wait(), works[0].wait()]  # nobody can tell of what kind the last one is
    seen += [each.wait() for each in works]
    found = work.wait(
        5,
    )
    assert [*seen, found] == ["wait"] * 5


def test_waiting_for_a_store_is_seen_at_the_call() -> None:
    store = like_torchs("Store", "get")
    holder = SimpleNamespace(store=store)
    seen = [store.get("key"), holder.store.get("key"), [holder][0].store.get("key")]
    assert seen == ["store wait", "store wait", None]


def test_other_methods_are_no_collectives() -> None:
    mine, work = like_torchs("Mine", "wait"), like_torchs("Work", "result")
    plain = mine.wait
    seen = [mine.wait(), work.result(), plain()]
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
        assert collectives.is_group_error(error)
    for other in (RuntimeError("shape mismatch"), ValueError("NCCL"), KeyboardInterrupt()):
        assert not collectives.is_group_error(other)
    assert collectives.is_lost_connection(closed)
    refused = "[/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused"
    assert collectives.is_lost_connection(RuntimeError(f"Gloo connectFullMesh failed with {refused}"))
    store = RuntimeError("The client socket has failed to connect to node7:29500 (errno: 111 - Connection refused).")
    assert not collectives.is_lost_connection(store), "its address may be wrong"
    assert not collectives.is_lost_connection(timed_out)


def test_errors_raised_while_a_group_error_was_handled() -> None:
    interrupt = KeyboardInterrupt()
    interrupt.__context__ = raised_in(C10D, "barrier", RuntimeError("Connection reset by peer"))
    assert collectives.is_group_error(interrupt)
    assert collectives.collective_of(interrupt) == "barrier"
    interrupt.__context__.__context__ = interrupt  # a circle
    assert collectives.is_group_error(interrupt)


def test_where_an_error_was_raised() -> None:
    error = raised_in(C10D, "barrier", RuntimeError("x"))
    assert collectives.collective_of(error) == "barrier"
    assert not collectives.in_wrapped_model(error)
    assert collectives.in_wrapped_model(raised_in(DDP, "forward", RuntimeError("x")))
    assert collectives.collective_of(RuntimeError("never raised")) is None
