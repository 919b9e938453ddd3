"""A rank's trace: read in pieces, cut by time, renamed so that it can be one of many."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest

from monarch_nb.worker.instruments import traces

EVENTS: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "GPU 1"}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.5, "dur": 3.25},
    {"ph": "X", "cat": "cpu_op", "name": 'a "traceEvents": [ in } a name', "pid": 555, "tid": 555, "ts": 10, "dur": 9},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 555, "tid": 555, "ts": 11, "id": 42},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 20.5, "id": 42, "bp": "e"},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler", "pid": "Spans", "tid": "Profiler", "ts": 1, "dur": 2},
    {"ph": "M", "name": "thread_name", "pid": 555, "tid": 555, "args": {"name": "thread 555 (python)"}},
]


@pytest.fixture(params=[7, 4096])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A trace as torch writes it, which is read in pieces of a size."""
    monkeypatch.setattr(traces, "_READ_BYTES", request.param)
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 3}}
    tail = {"traceName": "x", "baseTimeNanoseconds": 5_000}
    text = (
        json.dumps(head, indent=2)[:-2]
        + ',\n  "traceEvents": [\n'
        + ",\n".join(json.dumps(e, indent=1) for e in EVENTS)
    )
    return io.StringIO(f"{text}\n  ],\n{json.dumps(tail, indent=2)[1:]}")


def written(file: io.StringIO, rank: int) -> tuple[list[dict[str, Any]], traces.Written, Any]:
    lines: list[str] = []
    seen: list[dict[str, Any]] = []
    told = traces.write_lines(file, lines.append, rank=rank, name=f"rank {rank} (host2)", own_pid=555, see=seen.append)
    assert all(line.endswith("\n") and "\n" not in line[:-1] for line in lines)
    assert all(line.startswith('{"ts":') for line in lines if '"ts"' in line)
    return [json.loads(line) for line in lines], told, seen


def test_all_events_are_read_in_pieces_of_any_size(file: io.StringIO) -> None:
    trace = traces.TraceFile(file)
    assert list(trace.events()) == EVENTS
    facts = {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceName": "x", "baseTimeNanoseconds": 5_000}
    assert trace.facts == facts


def test_processes_and_flows_have_numbers_of_their_rank_and_only_used_ones_are_named(file: io.StringIO) -> None:
    events, told, seen = written(file, 3)
    assert (told.events, told.base_ns, len(seen)) == (4, 5_000, 4)
    assert {event["pid"] for event in events} == {4000, 4001}
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {4000: "rank 3 (host2)", 4001: "rank 3 (host2) GPU 0"}
    assert [event["id"] for event in events if "id" in event] == [(3 << 32) + 42] * 2
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["thread 555 (python)"]


def test_steps_touch_and_do_not_overlap() -> None:
    boundaries_ns = [4876939919631312, 4876939974360492, 4876940039852205, 4876940039852207]
    events = [event for event in traces.step_events(boundaries_ns, 2, 1) if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    ends = [(round(each["ts"] * 1000), round(each["ts"] * 1000) + round(each["dur"] * 1000)) for each in events]
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    assert ends[-1][1] == boundaries_ns[-1]
