"""Releasing: everything of a reservation goes, whatever else goes on or fails meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.errors import MeshNotFound, MonarchNbError, ReservationNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from unit.allocator.idle_node import (
    MESH,
    NodeWithoutProcesses,
    assert_nothing_left,
    fails_on_disk,
    make_node,
    reserve,
    spawn,
    spawn_request,
    store_request,
)


class TestRelease:
    async def test_everything_goes(self, node: NodeWithoutProcesses, caplog: pytest.LogCaptureFixture) -> None:
        await spawn(node)
        (node.files.workspaces.directory("r") / "result").write_text("42")
        with caplog.at_level("INFO"):
            assert await node.leases.release("r") == 2
        [kept] = node.paths.kept.iterdir()
        assert str(kept) in caplog.text, "where files of ranks are"
        assert node.supervisor.ended == [0, 1]
        assert_nothing_left(node)
        assert await node.leases.release("r") == 0

    async def test_a_workspace_that_can_not_be_removed_holds_no_slots(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)
        node.files.workspaces.directory("r")
        monkeypatch.setattr(node.files.workspaces, "release", fails_on_disk)
        await node.leases.release("r")
        assert_nothing_left(node)

    @pytest.mark.parametrize("held_up", ["warm", "may_fork"])
    @pytest.mark.parametrize("call", ["host_store", "spawn"])
    async def test_while_ranks_are_being_started(self, node: NodeWithoutProcesses, call: str, held_up: str) -> None:
        """A notebook's `%mesh reserve` was interrupted: the call goes on here, its client does not."""
        reserve(node)
        if call == "spawn":
            await node.stores.host(store_request())
        getattr(node.supervisor, held_up).clear()
        work: Any = node.stores.host(store_request()) if call == "host_store" else node.forking.spawn(spawn_request())
        node.supervisor.asked.clear()
        task = asyncio.create_task(work)
        await node.supervisor.asked.wait()
        await node.leases.release("r")
        assert "r" not in node.state.leases, "a slow start does not hold the slots up"
        getattr(node.supervisor, held_up).set()
        with pytest.raises(ReservationNotFound):
            await task
        assert_nothing_left(node)

    async def test_while_ranks_are_being_restarted(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_fork.clear()
        node.supervisor.asked.clear()
        task = asyncio.create_task(node.forking.restart(MESH, [0, 1]))
        await node.supervisor.asked.wait()
        release = asyncio.create_task(node.leases.release("r"))
        await asyncio.sleep(0)
        node.supervisor.may_fork.set()
        with pytest.raises(MonarchNbError):
            await task
        await release
        assert_nothing_left(node)

    async def test_a_workspace_that_nobody_holds_goes_when_the_node_starts(self, tmp_path: Path) -> None:
        killed = make_node(tmp_path)
        reserve(killed)
        killed.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
        for reservation_id in ("r", "gone"):
            (killed.files.workspaces.directory(reservation_id) / "result").write_text("42")
        killed.records.database.close()
        node = make_node(tmp_path)
        await node.start()
        try:
            assert node.files.workspaces.reservations() == ["r"]
            assert [path.name for path in node.paths.workspaces.iterdir()] == ["r"]
            assert [(path / "result").read_text() for path in node.paths.kept.iterdir()] == ["42"]
        finally:
            await node.close(end_processes=False)

    async def test_twice_at_once_and_its_client_may_go_away(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_end.clear()
        first, second, abandoned = (asyncio.create_task(node.leases.release("r")) for _ in range(3))
        node.supervisor.asked.clear()
        await node.supervisor.asked.wait()
        await asyncio.sleep(0)
        abandoned.cancel()
        assert not second.done(), "the slots are free only when the ranks have ended"
        assert "r" in node.state.leases
        with pytest.raises(ReservationNotFound):
            await node.forking.spawn(spawn_request())
        node.supervisor.may_end.set()
        assert await asyncio.gather(first, second) == [2, 2]
        assert_nothing_left(node)

    async def test_a_sync_that_comes_too_late_makes_no_workspace(self, node: NodeWithoutProcesses) -> None:
        """It was waiting while the workspace was removed."""
        await spawn(node)
        node.files.workspaces.directory("r")
        entered, may_go = threading.Event(), threading.Event()
        remove = node.files.workspaces.release

        def slow(reservation_id: str, name: str) -> object:
            entered.set()
            may_go.wait(10)
            return remove(reservation_id, name)

        node.files.workspaces.release = slow  # type: ignore[method-assign,assignment]
        releasing = asyncio.create_task(node.leases.release("r"))
        await asyncio.to_thread(entered.wait, 10)
        request = files_pb2.SyncTreeRequest(reservation_id="r", change={"version": "v", "whole": True})
        syncing = asyncio.create_task(node.files.sync(request, asyncio.Event()))
        await asyncio.sleep(0)
        may_go.set()
        await releasing
        reply = await syncing
        assert "released" in reply.nodes[0].error_json
        assert node.files.workspaces.reservations() == []
        node.files.removal.finish()
        assert list(node.paths.workspaces.iterdir()) == []

    async def test_at_the_end_processes_go_before_big_trees(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)
        removing, may_go = threading.Event(), threading.Event()

        def release(*_: object) -> None:
            removing.set()
            may_go.wait(10)

        monkeypatch.setattr(node.files.workspaces, "release", release)
        releasing = node.leases.start_release("r")
        await asyncio.to_thread(removing.wait, 10)
        closed = asyncio.Event()

        async def close(**_: object) -> None:
            closed.set()

        monkeypatch.setattr(node.supervisor, "close", close)
        closing = asyncio.create_task(node.close(end_processes=True))
        await asyncio.wait_for(closed.wait(), 10)
        assert not releasing.done()
        may_go.set()
        await closing
        assert not node.paths.workspaces.exists()
        monkeypatch.setattr(node, "close", close)  # once is enough


class TestMeshBesideMain:
    """What `spawn_procs` adds to a reservation, and `stop` ends."""

    SECOND = "s" * 32

    def request(self, ranks: int = 3) -> pb.SpawnRequest:
        return pb.SpawnRequest(
            reservation_id="r", mesh_id=self.SECOND, name="evaluators", ranks=ranks, world_size=ranks
        )

    async def test_it_is_not_counted_and_its_end_is_not_that_of_main(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        await node.forking.spawn(self.request(ranks=3))
        assert sorted(node.state.meshes) == [MESH, self.SECOND]
        with pytest.raises(UsageError, match="release the reservation"):
            await node.leases.stop_mesh(MESH, "alice")
        await node.leases.stop_mesh(self.SECOND, "alice")
        assert list(node.state.meshes) == [MESH]
        assert sorted(node.supervisor.ranks) == [(MESH, 0), (MESH, 1)]
        assert not node.paths.mesh(self.SECOND).exists()
        await node.leases.stop_mesh(self.SECOND, "bob")  # fine
        with pytest.raises(MeshNotFound, match="evaluators of r was stopped by alice, and its ranks have ended"):
            node.state.mesh(self.SECOND)

    async def test_stopped_while_it_is_being_started_and_it_goes_with_its_reservation(self, node: Any) -> None:
        await spawn(node)
        node.supervisor.may_fork.clear()
        node.supervisor.asked.clear()
        task = asyncio.create_task(node.forking.spawn(self.request()))
        await node.supervisor.asked.wait()
        await node.leases.stop_mesh(self.SECOND, "alice")
        node.supervisor.may_fork.set()
        with pytest.raises(MeshNotFound):
            await task
        assert sorted(node.supervisor.ranks) == [(MESH, 0), (MESH, 1)]
        assert self.SECOND not in node.records.meshes
        beside = self.request()
        beside.mesh_id = "t" * 32
        await node.forking.spawn(beside)
        assert await node.leases.release("r") == 5
        assert_nothing_left(node)
