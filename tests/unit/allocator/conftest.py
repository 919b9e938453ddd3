"""Fixtures of all rooms of the allocator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from monarch_nb.allocator.processes import processes
from monarch_nb.proto import state_pb2
from unit.allocator.idle_node import NodeWithoutProcesses, make_node


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeWithoutProcesses]:
    identity = state_pb2.ProcessIdentity(pid=1, start_ticks=1, boot_id="b")
    monkeypatch.setattr(processes, "identify", lambda _: identity)
    made = make_node(tmp_path)
    made.supervisor.keep_warm("python", [])
    yield made
    await made.close(end_processes=False)
