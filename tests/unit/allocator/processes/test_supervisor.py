"""The processes of a node, played by others."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from leaks import wait_for_end
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.links import RankLink
from monarch_nb.allocator.processes.processes import ProcessWatch
from monarch_nb.allocator.processes.supervisor import RankProcess, Supervisor
from monarch_nb.config import NodePaths
from monarch_nb.errors import SpawnError
from monarch_nb.ground.frames import encode_frame
from monarch_nb.proto import state_pb2
from monarch_nb.proto import worker_pb2 as wire

Sleepers = list[subprocess.Popen[bytes]]


def supervisor_of(paths: NodePaths) -> Supervisor:
    return Supervisor(Mock(paths=paths))


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    """Processes that sleep, and are ended with the test."""
    made = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.wait()


async def test_what_an_allocator_forked_and_had_no_time_to_note_is_ended(tmp_path: Path, sleepers: Sleepers) -> None:
    paths, (known, unknown) = NodePaths(tmp_path), sleepers
    paths.sockets.mkdir(parents=True)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = wire.TemplateReady(children=[known.pid, unknown.pid])
        writer.write(encode_frame(wire.FromTemplate(ready=ready).SerializeToString()))
        writer.close()

    record = state_pb2.TemplateRecord(key="key")
    record.process.CopyFrom(processes.identify(os.getpid()))
    supervisor = supervisor_of(paths)
    async with await asyncio.start_unix_server(serve, paths.template_socket("key")):
        await supervisor.templates.adopt(record, {known.pid})
    wait_for_end(unknown.pid, 10)
    assert not processes.is_alive(processes.identify(unknown.pid))
    assert processes.is_alive(processes.identify(known.pid))
    await supervisor.close(end_processes=False)


async def test_a_store_that_ended_just_at_the_release_does_not_fail_it(tmp_path: Path, sleepers: Sleepers) -> None:
    """Its template has reaped it, and its pid may be another process's."""
    supervisor, store = supervisor_of(NodePaths(tmp_path)), sleepers[0]
    supervisor.watch_store("mesh", store.pid)
    store.kill()
    store.wait()
    await supervisor.end_store("mesh")
    assert store.pid not in ProcessWatch.watched
    await supervisor.close(end_processes=False)


class SlowTemplate:
    """Forks a store when it is allowed to."""

    def __init__(self, pid: int) -> None:
        self.asked, self.may_fork, self.pid = asyncio.Event(), asyncio.Event(), pid

    async def fork_store(self, *_: object) -> tuple[int, int]:
        self.asked.set()
        await self.may_fork.wait()
        return self.pid, 1


async def test_what_is_just_being_forked_ends_with_the_rest_and_nothing_is_forked_later(
    tmp_path: Path, sleepers: Sleepers
) -> None:
    supervisor = supervisor_of(NodePaths(tmp_path))
    template: Any = SlowTemplate(sleepers[0].pid)
    fork = asyncio.create_task(supervisor.fork_store("m", template, "127.0.0.1"))
    await template.asked.wait()
    closing = asyncio.create_task(supervisor.close(end_processes=True))
    while not supervisor._is_ending:
        await asyncio.sleep(0)
    with pytest.raises(SpawnError, match="shut down"):
        await supervisor.fork_store("later", template, "127.0.0.1")
    template.may_fork.set()
    await closing
    await fork
    with pytest.raises(ProcessLookupError):  # and it was reaped
        os.kill(template.pid, 0)


async def test_what_a_cancelled_caller_had_forked_ends_with_the_rest(tmp_path: Path, sleepers: Sleepers) -> None:
    """Scripts that are being started are cancelled first; a process that nobody knows would hold its GPUs."""
    supervisor = supervisor_of(NodePaths(tmp_path))
    template: Any = SlowTemplate(sleepers[0].pid)
    fork = asyncio.create_task(supervisor.fork_store("m", template, "127.0.0.1"))
    await template.asked.wait()
    fork.cancel()
    closing = asyncio.create_task(supervisor.close(end_processes=True))
    while not supervisor._is_ending:
        await asyncio.sleep(0)
    template.may_fork.set()
    await closing
    with pytest.raises(ProcessLookupError):
        os.kill(template.pid, 0)


async def test_ranks_whose_places_were_taken_meanwhile_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleepers: Sleepers
) -> None:
    """Else nobody would know of those that have them, nor end them."""

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(RankLink, "connect", nothing)
    monkeypatch.setattr(RankLink, "control", nothing)
    supervisor, ranks = supervisor_of(NodePaths(tmp_path)), list(sleepers)

    class Template:
        async def fork_ranks(self, _: object) -> list[int]:
            return [ranks.pop().pid]

    template: Any = Template()
    plan: Any = [(state_pb2.RankRecord(mesh_id="m", rank=0), wire.RankSpec())]
    [first] = await supervisor.fork_ranks(template, plan)
    plan = [(state_pb2.RankRecord(mesh_id="m", rank=0, incarnation=1), wire.RankSpec())]
    with pytest.raises(SpawnError, match="other ranks took their places"):
        await supervisor.fork_ranks(template, plan)
    assert list(supervisor.ranks.values()) == [first]
    assert [process.poll() is None for process in sleepers] == [False, True]
    await supervisor.close(end_processes=True)


async def test_the_processes_of_a_node_are_looked_at_once_for_all_that_die_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[list[str]] = []
    monkeypatch.setattr(processes, "kill_trees", lambda trees: looked.append([token for _, token in trees]))
    supervisor, ended = supervisor_of(NodePaths(tmp_path)), asyncio.Event()
    watch: Any = SimpleNamespace(ended=ended, pid=1 << 29, exit_status=lambda: 9, close=lambda: None)
    link: Any = SimpleNamespace(close=lambda: None)
    for rank in range(3):
        record = state_pb2.RankRecord(mesh_id="m", rank=rank, token=f"token {rank}")
        supervisor._supervise(RankProcess("m", rank, record, link, watch, 0))
    ended.set()
    await asyncio.gather(*supervisor._tasks)
    assert looked == [["token 0", "token 1", "token 2"]]
    assert not supervisor.ranks
    await supervisor.close(end_processes=False)
