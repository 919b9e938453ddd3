"""Nodes that tell of themselves in a directory that all share."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from monarch_nb.trust.published import STALE_S, SUFFIX, Published, overwritten_by, publish, published, withdraw

NODE = Published("host1", "host1:7878", "0.1.0", ["NVIDIA H200"], 64, heartbeat=0.0)


def test_what_a_node_tells_is_found(tmp_path: Path) -> None:
    publish(tmp_path / "nodes", NODE)
    (found,) = published(tmp_path / "nodes")
    assert replace(found, heartbeat=0.0, age_s=0.0) == NODE
    assert not found.is_stale
    withdraw(tmp_path / "nodes", NODE)
    withdraw(tmp_path / "nodes", NODE)
    assert published(tmp_path / "nodes") == []


def test_one_that_was_not_written_for_long_is_stale(tmp_path: Path) -> None:
    publish(tmp_path, NODE)
    path = tmp_path / f"host1{SUFFIX}"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "heartbeat": time.time() - 2 * STALE_S}))
    assert [node.is_stale for node in published(tmp_path)] == [True]
    path.write_text(json.dumps({**told, "heartbeat": time.time() + 60.0}))
    assert [node.is_stale for node in published(tmp_path)] == [False], "its clock is ahead"


def test_what_is_no_nodes_file_is_passed_over(tmp_path: Path) -> None:
    publish(tmp_path, NODE)
    (tmp_path / f"a{SUFFIX}").write_text("{")
    (tmp_path / f"b{SUFFIX}").write_text("[]")
    (tmp_path / f"c{SUFFIX}").write_text('{"address": "x:1", "heartbeat": "soon"}')
    (tmp_path / "notes.txt").write_text("ours")
    assert [node.node_id for node in published(tmp_path)] == ["host1"]
    assert published(tmp_path / "nowhere") == []


def test_a_node_notices_another_one_of_its_name_and_tells_of_itself_beside_it(tmp_path: Path) -> None:
    other = replace(NODE, address="host9:7878")
    publish(tmp_path, NODE)
    assert overwritten_by(tmp_path, NODE) == ""
    publish(tmp_path, other)
    assert overwritten_by(tmp_path, NODE) == "host9:7878"
    publish(tmp_path, NODE, beside=True)
    assert sorted(node.address for node in published(tmp_path)) == ["host1:7878", "host9:7878"]
    withdraw(tmp_path, NODE)
    assert [node.address for node in published(tmp_path)] == ["host9:7878"], "not the other one's"
