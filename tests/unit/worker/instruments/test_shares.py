"""Where the time of a trace goes: shares, and operators by their own time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_nb.worker.instruments.traces import Collected, Operator, Shares, without


def op(name: str, begin: float, duration: float, thread: int = 1, kind: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 9, "tid": thread, "ts": begin, "dur": duration, "args": args}


def usage(*events: dict[str, Any], windows: Sequence[tuple[float, float]] = ()) -> Any:
    collected = Collected()
    for event in events:
        collected.add(event)
    return collected.usage(windows)


def test_a_collective_beside_the_backward_is_overlap_and_one_within_it_is_no_compute() -> None:
    found = usage(
        op("aten::mm", 0, 40),
        op("Backward", 50, 40, thread=2),
        op("c10d::allreduce_", 60, 10, thread=2),  # the hook of DDP, on the thread of the backward
        op("gloo:all_reduce", 65, 25, thread=3, kind="user_annotation"),
        op("DistributedDataParallel.forward", 0, 100, kind="user_annotation"),  # says nothing of its own
        {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}},
        windows=[(0, 100)],
    )
    assert found.shares == Shares(compute=0.5, communication=0.1, overlap=0.2, idle=0.2)
    assert not found.on_device


def test_a_time_that_is_recorded_beside_the_steps_does_not_count() -> None:
    events = (op("aten::mm", 0, 50), op("aten::add", 90, 20))
    assert usage(*events, windows=[(40, 100)]).shares == Shares(0.3333, 0.0, 0.0, 0.6667)
    assert usage(*events, windows=[(0, 10), (95, 105)]).shares == Shares(1.0, 0.0, 0.0, 0.0)  # it has paused
    assert usage().shares == Shares(0.0, 0.0, 0.0, 1.0)


def test_an_operator_has_the_time_that_none_within_it_has() -> None:
    found = usage(
        op("aten::linear", 0, 100),
        op("aten::addmm", 10, 60),
        op("aten::copy_", 20, 10),
        op("aten::linear", 200, 5),
        op("aten::copy_", 0, 7, thread=2),
    )
    assert found.operators == (
        Operator("aten::addmm", 50, 1),
        Operator("aten::linear", 45, 2),
        Operator("aten::copy_", 17, 2),
    )


def test_on_a_gpu_kernels_count_for_what_launched_them() -> None:
    found = usage(
        op("aten::mm", 0, 5, **{"External id": 7}),
        op("ampere_sgemm_32x32", 10, 30, thread=7, kind="kernel", **{"External id": 7, "correlation": 3}),
        op("c10d::allreduce_", 6, 1, **{"External id": 8}),
        op("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 30, 40, 20, "kernel", **{"External id": 8}),
        op("Memcpy HtoD", 90, 10, thread=7, kind="gpu_memcpy"),
        windows=[(0, 100)],
    )
    assert found.on_device
    assert found.shares == Shares(compute=0.3, communication=0.3, overlap=0.1, idle=0.3)
    assert found.operators == (
        Operator("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 1),
        Operator("aten::mm", 30, 1),
        Operator("Memcpy HtoD", 10, 1),
    )


def test_intervals_without_others() -> None:
    assert without([(0, 10), (20, 30)], [(0, 1), (5, 25), (29, 40)]) == [(1, 5), (25, 29)]
    assert without([(0, 10)], [(0, 10)]) == []
