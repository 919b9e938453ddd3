"""NCCL's flight recorder, whose calls of aborted groups stay open."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.groups import c10d


def test_what_was_open_before_the_groups_were_made_is_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = [{"record_id": 4}, {"record_id": 7}]

    def dump(*, includeCollectives: bool = True, onlyActive: bool = False) -> bytes:
        return json.dumps({"entries": entries}).encode()

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_nccl_trace_json=dump))
    monkeypatch.setattr(c10d, "_first_record", 0)
    assert [each["record_id"] for each in c10d.open_on_gpu()] == [4, 7]
    c10d.begin_records()
    assert c10d.open_on_gpu() == []
    entries.append({"record_id": 8})
    assert c10d.open_on_gpu() == [{"record_id": 8}]
    assert len(c10d.recorded()) == 3, "there is no recorder of others"


def test_where_torch_has_no_such_recorder_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())
    c10d.begin_records()
    assert (c10d.open_on_gpu(), c10d.recorded()) == ([], [])
