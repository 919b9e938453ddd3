"""What a node writes down, also when there is no room for it."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from monarch_nb.allocator.memory import records
from monarch_nb.proto import state_pb2
from unit.allocator.idle_node import make_node, reserve


async def test_what_found_no_room_is_written_when_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "TRY_AGAIN_S", 0.01)
    node = make_node(tmp_path)
    database = node.records.database
    flush, attempts, written = database.flush, [0], asyncio.Event()

    def flush_the_third_time() -> None:
        attempts[0] += 1
        if attempts[0] < 3:
            raise sqlite3.OperationalError("database or disk is full")
        flush()
        written.set()

    monkeypatch.setattr(database, "flush", flush_the_third_time)
    reserve(node)
    await asyncio.wait_for(written.wait(), 10)
    assert ("lease", "r") in database._written
    await node.close(end_processes=True)


async def test_a_mesh_takes_nothing_of_another_whose_id_begins_as_its(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    for mesh_id in ("m", "more"):
        node.records.save_rank(state_pb2.RankRecord(mesh_id=mesh_id, rank=0))
    node.records.delete_mesh("m")
    node.records.flush()
    assert [key for key, _ in node.records.database.read("rank", state_pb2.RankRecord)] == ["more/0"]
    await node.close(end_processes=True)
