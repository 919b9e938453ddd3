"""Requests of clients, as the node's service takes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from monarch_nb.allocator.api import service
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.service import AllocatorService
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2, state_pb2
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, spawn, submit

OF_MESH = pb.SessionRequest(branches=pb.Branches(mesh_id=MESH, ranks_per_node=2))


class TestSession:
    async def test_a_run_is_written_down_before_the_only_one_who_could_submit_it_again_is_gone(
        self, node: NodeWithoutProcesses
    ) -> None:
        """Else it is lost with its results when the allocator is killed in the next moments."""

        def written() -> list[str]:
            return [record.submit.run.run_id for _, record in node.records.database.read("run", state_pb2.RunRecord)]

        async def requests() -> AsyncIterator[pb.SessionRequest]:
            run = run_pb2.RunSpec(run_id="a")
            submit = pb.Submit(mesh_id=MESH, run=run, all_ranks=[0, 1], give_number=True)
            yield OF_MESH
            yield pb.SessionRequest(submit=submit)
            written_while_it_is_there.extend(written())

        await spawn(node)
        written_while_it_is_there: list[str] = []
        access = Access(node)
        context = AsyncMock(peer=lambda: "unix:", invocation_metadata=tuple)
        await AllocatorService(node, access).Session(requests(), context)
        assert (written_while_it_is_there, written()) == ([], ["a"])

    async def test_what_was_shown_is_remembered_as_long_as_the_run(self, node: NodeWithoutProcesses) -> None:
        """It may be said after the run was forgotten, or of none: nobody would ever forget that."""

        async def requests() -> AsyncIterator[pb.SessionRequest]:
            yield OF_MESH
            for run_id in ("a", "none"):
                shown = pb.Shown(run_id=run_id, cursors={0: run_pb2.Cursor(stdout_bytes=3)})
                yield pb.SessionRequest(shown=shown)

        await spawn(node)
        submit(node, "a")
        runs = node.state.meshes[MESH].runs
        access = Access(node)
        context = AsyncMock(peer=lambda: "unix:", invocation_metadata=tuple)
        await AllocatorService(node, access).Session(requests(), context)
        submit(node, "none")
        shown = {run_id: [cursor.stdout_bytes for cursor in run.shown.values()] for run_id, run in runs.items()}
        assert shown == {"a": [3], "none": []}


async def test_who_is_second_to_tell_of_a_reservations_nodes_waits_until_groups_are_aborted(
    node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the cell that a client runs when it has replaced a node loses its new groups."""

    async def control_ranks(_: object, request: pb.ControlRanksRequest) -> None:
        aborted.append(request.question.abort_groups.reason)
        begun.set()
        await may_go_on.wait()

    await spawn(node)
    monkeypatch.setattr(service, "control_ranks", control_ranks)
    aborted, begun, may_go_on = list[str](), asyncio.Event(), asyncio.Event()
    told = AllocatorService(node, Access(node))
    here = files_pb2.Peer(node_id="node0", address=node.identity.address)
    change = pb.ChangeMembersRequest(reservation_id="r", revision=1, nodes=[here], reason="host2 has gone")
    first, second = (asyncio.create_task(told.ChangeMembers(change, AsyncMock())) for _ in range(2))
    await begun.wait()
    assert await asyncio.wait([first, second], timeout=0.05) == (set(), {first, second})
    may_go_on.set()
    await asyncio.gather(first, second)
    assert aborted == ["host2 has gone"], "once, and for whom it was news"


class SlowFile:
    """Notes which threads wait for it."""

    def __init__(self, path: Path, threads: set[int]) -> None:
        self.path, self.threads, self.unlink = path, threads, path.unlink

    def open(self, mode: str) -> SlowFile:
        self.threads.add(threading.get_ident())
        self.file: Any = self.path.open(mode)
        return self

    def write(self, data: bytes) -> int:
        self.threads.add(threading.get_ident())
        return int(self.file.write(data))

    def read(self, size: int) -> bytes:
        self.threads.add(threading.get_ident())
        return bytes(self.file.read(size))

    def close(self) -> None:
        if not self.file.closed:
            self.threads.add(threading.get_ident())
        self.file.close()

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


async def test_a_value_on_a_slow_disk_holds_up_nobody_else(
    node: NodeWithoutProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    service_ = AllocatorService(node, Access(node))
    monkeypatch.setattr(service_, "_blob_path", lambda *_: SlowFile(tmp_path / "blob", threads))

    async def chunks() -> AsyncIterator[pb.BlobChunk]:
        for data in (b"one", b"two"):
            yield pb.BlobChunk(mesh_id="m", blob="b", data=data)

    assert (await service_.PutBlob(chunks(), AsyncMock())).size_bytes == 6
    read = service_.ReadBlob(pb.ReadBlobRequest(mesh_id="m", blob="b"), AsyncMock())
    assert [chunk.data async for chunk in read] == [b"onetwo"]
    assert threads
    assert threading.get_ident() not in threads
