"""Profiles of ranks become one trace and one report."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.instruments import profiles
from monarch_nb.client.instruments.profiles import ProfileReport, merge, rank_profiles, said, straggler_among
from monarch_nb.worker.instruments.traces import Shares, line


def told(**changes: Any) -> dict[str, Any]:
    operators = [("aten::mm", 40_000.0, 15), ("gloo:all_reduce", 10_000.0, 10)]
    shares = (0.5, 0.25, 0.05, 0.2)
    facts = {"host": "host1", "seconds": 0.4, "steps": 5, "on_device": False, "shares": shares, "operators": operators}
    return facts | {"problem": "", "note": ""} | changes


def test_traces_are_one_file_and_the_clock_of_a_host_is_set_right(tmp_path: Path) -> None:
    first = [
        {"ph": "M", "name": "process_name", "pid": 1000},
        {"ts": 4877108283558.653, "ph": "X", "pid": 1000, "dur": 2},
    ]
    second = [{"ts": 4877108283000.001, "ph": "X", "pid": 2000, "dur": 2}]
    lines = [gzip.compress("".join(map(line, events)).encode()) for events in (first, second)]
    path = tmp_path / "traces" / "run1.pt.trace.json.gz"
    merge(path, [(lines[0], 0.0), (lines[1], 558.652)], {"schemaVersion": 1})
    with gzip.open(path) as file:
        trace = json.load(file)
    assert trace == {"schemaVersion": 1, "traceEvents": [*first, {**second[0], "ts": 4877108283558.653}]}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_trace_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Not a gzipped file"):
        merge(tmp_path / "a.gz", [(b"no", 0.0)], {"schemaVersion": 1})
    assert not list(tmp_path.iterdir())


def test_clocks_are_asked_for_only_where_hosts_differ() -> None:
    asked: list[int] = []

    def look(rank: int) -> int:
        asked.append(rank)
        return time.time_ns() + (3_000_000_000 if rank == 4 else 0)

    assert profiles.clocks_of({0: "a", 1: "a"}, look) == {"a": profiles.Clock(0.0, 0.0)}
    assert not asked
    found = profiles.clocks_of({0: "a", 1: "a", 4: "b", 5: "b"}, look)
    assert set(asked) == {0, 4}
    ahead_ns = found["b"].ahead_ns - found["a"].ahead_ns
    assert abs(ahead_ns - 3_000_000_000) <= found["a"].error_ns + found["b"].error_ns


def test_the_report_averages_operators_per_step_and_names_who_has_none() -> None:
    found = {
        0: told(),
        4: told(
            host="host2", operators=[("aten::mm", 20_000.0, 15)], note="the cell ended", shares=(0.1, 0.6, 0.1, 0.2)
        ),
        8: {"host": "host3", "problem": "no room"},
        12: {"host": "host4", "problem": "no room"},
    }
    ranks = rank_profiles(found)
    assert str(ProfileReport(ranks, None, tuple(said(found)), others=6)).splitlines() == [
        "profile of ranks 0,4: 5 steps of 80.0 ms",
        "  rank         time of  compute  communication  overlap  idle",
        "  0 (host1) ←  CPU      50.0%    25.0%          5.0%     20.0%",
        "  4 (host2)    CPU      10.0%    60.0%          10.0%    20.0%",
        "of these ranks, rank 0 was waited for: it computed 55% of the time, rank 4 waited (60% in communication)",
        "  operator         own time per step  share  calls per step",
        "  aten::mm         6.00 ms            85.7%  3",
        "  gloo:all_reduce  1.00 ms            14.3%  1",
        "rank 4: the cell ended",
        "ranks 8,12: no room",
    ]
    whole = ProfileReport(rank_profiles({0: told(steps=0, on_device=True)}), None)
    assert whole.title == "profile of rank 0: 0.4 s"
    assert whole.operator_rows()[:2] == [
        ("operator", "GPU time", "share", "calls"),
        ("aten::mm", "40.0 ms", "80.0%", "15"),
    ]
    assert str(ProfileReport((), None, ("rank 0: no room",))) == "nothing was profiled\nrank 0: no room"


def test_who_was_waited_for_is_named_where_the_shares_make_it_clear() -> None:
    waits, loads = Shares(0.2, 0.7, 0.0, 0.1), Shares(0.2, 0.05, 0.0, 0.75)
    said = "ranks 1,3 were waited for: they were idle 75% of the time, ranks 0,2,4 waited (70% in communication)"
    assert str(straggler_among({0: waits, 1: loads, 2: waits, 3: loads, 4: waits})) == said
    assert straggler_among({0: waits, 1: waits}) is None
    assert straggler_among({0: loads, 1: loads._replace(communication=0.2)}) is None
    assert straggler_among({0: waits, 1: loads, 2: loads}) is None, "most do not wait"
    assert straggler_among({0: waits}) is None


def test_where_no_operator_ran_one_line_says_so() -> None:
    report = ProfileReport(rank_profiles({0: told(operators=[], steps=0, seconds=3.0)}), None)
    assert str(report) == "profile of rank 0: no operator of torch ran in 3.0 s"
