"""What a node says of processes that do not answer."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.api import control
from monarch_nb.proto import allocator_pb2 as pb


@pytest.fixture
def without_handler() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


async def where(pid: int, *, interrupted_at: float | None, is_open: bool = False) -> pb.RankReply:
    async def silent(*_: object) -> None: ...

    link = SimpleNamespace(control=silent, is_open=is_open)
    record = SimpleNamespace(process=SimpleNamespace(pid=pid))
    process = SimpleNamespace(link=link, record=record, interrupted_at=interrupted_at)
    node: Any = SimpleNamespace(supervisor=SimpleNamespace(ranks={("run", 0): process}))
    mesh: Any = None
    return await control._control_rank(node, pb.ControlRanksRequest(run_id="run", question={"where": {}}), mesh, 0)


async def test_another_program_that_catches_its_interrupt_handles_it(without_handler: int) -> None:
    now = time.monotonic()
    reply = await where(os.getpid(), interrupted_at=now)
    assert reply.answered
    assert reply.reply.where.HasField("handles_s")
    assert not (await where(os.getpid(), interrupted_at=None)).answered
    assert not (await where(os.getpid(), interrupted_at=now, is_open=True)).answered  # C code holds the interpreter
    assert not (await where(without_handler, interrupted_at=now)).answered
