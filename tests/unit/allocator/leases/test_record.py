"""The record of who reserved what: whole lines, whatever happens to the file and to the disk."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
