"""The record of who reserved what: whole lines, whatever happens to the file and to the disk."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.leases import record as records
from monarch_nb.allocator.leases.record import Record


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    made = Record(tmp_path / "record.jsonl")
    yield made
    made.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(record: Record) -> None:
    """Wait until all that was noted is written."""
    record.close()


def test_only_the_allocators_user_reads_it(record: Record) -> None:
    assert record.path is not None
    record.path.touch(0o644)
    record.note("shared", to="bob", right="read", empty="")
    written(record)
    (line,) = lines(record.path)
    assert {key: line[key] for key in line if key != "time"} == {"event": "shared", "to": "bob", "right": "read"}
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600


def test_whoever_renames_the_file_gets_a_new_one(record: Record, tmp_path: Path) -> None:
    assert record.path is not None
    record.note("first")
    written(record)
    record.note("second")
    written(record)
    record.path.rename(tmp_path / "record.jsonl.1")
    record.note("third")
    written(record)
    assert [line["event"] for line in lines(tmp_path / "record.jsonl.1")] == ["first", "second"]
    assert [line["event"] for line in lines(record.path)] == ["third"]


def test_a_file_that_nobody_rotates_does_not_grow_for_ever(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LARGEST_BYTES", 200)
    for number in range(20):
        record.note("run", number=number + 1)
        if number % 3 == 2:
            written(record)
    written(record)
    assert record.path is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.jsonl", "record.jsonl.1"]
    assert lines(record.path)[-1]["number"] == 20
    assert record.path.stat().st_size < 600


def test_missing_lines_are_counted(record: Record) -> None:
    assert record.path is not None
    record.path.mkdir()
    record.note("lost")
    record.note("lost")
    record._left_out = 3  # as when they come faster than they can be written
    written(record)
    record.path.rmdir()
    record.note("there is room")
    written(record)
    assert [(line["event"], line.get("lines")) for line in lines(record.path)] == [
        ("lines are missing", 5),
        ("there is room", None),
    ]


def test_it_is_read_with_the_files_that_were_rotated(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    told = [
        {"time": f"2026-11-26T0{hour}:00:00.000Z", "event": kind, "reservation": "r", "owner": "alice"}
        for hour, kind in ((1, "reserved"), (2, "held"), (3, "released"))
    ]
    with gzip.open(tmp_path / "record.jsonl.2.gz", "wt") as file:
        file.write(json.dumps(told[0]) + "\n")
    os.utime(tmp_path / "record.jsonl.2.gz", (1, 1))
    (tmp_path / "record.jsonl-20261126").write_text(json.dumps(told[1]) + "\n{torn\n")
    os.utime(tmp_path / "record.jsonl-20261126", (2, 2))
    path.write_text(json.dumps(told[2]) + "\n")
    record = Record(path)
    record.read()
    (used,) = record.ledger.used(0.0, 2e9)
    assert (used.owner, used.node_s) == ("alice", 7200.0)
