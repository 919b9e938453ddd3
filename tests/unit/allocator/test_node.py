"""A node between its state and its processes: what happens when calls overlap, fail or come again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb import config
from monarch_nb.allocator.files.node_files import SMALL_CHANGE_ENTRIES
from monarch_nb.allocator.files.workspace.pending import Pending
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.recovery.remember import read_state
from monarch_nb.allocator.serving.control import interrupt
from monarch_nb.allocator.sessions import expiry
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.supervisor import RankProcess
from monarch_nb.config import NodePaths
from monarch_nb.errors import MonarchNbError, ReservationExpired, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire

MESH = "m" * 32


class FakeLink:
    def __init__(self) -> None:
        self.runs: list[bytes] = []
        self.forgotten: list[str] = []
        self.told: list[wire.ControlRequest] = []

    def tell(self, request: wire.ControlRequest) -> None:
        self.told.append(request)

    def start(self, encoded: bytes) -> None:
        self.runs.append(encoded)

    def forget_results(self, run_ids: list[str]) -> None:
        self.forgotten += run_ids


class FakeSupervisor:
    """Ranks without processes. `warm` and `forked` can be cleared to hold calls up."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], Any] = {}
        self.leaving: list[Any] = []
        self.stores: set[str] = set()
        self.ended: list[int] = []
        self.asked = asyncio.Event()
        self.warm, self.may_fork, self.may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self.warm, self.may_fork, self.may_end):
            event.set()

    async def template(self, *_: object) -> None:
        self.asked.set()
        await self.warm.wait()

    async def fork_store(self, mesh_id: str, *_: object) -> tuple[int, int]:
        self.asked.set()
        await self.may_fork.wait()
        self.stores.add(mesh_id)
        return 1, 29500

    async def end_store(self, mesh_id: str) -> None:
        self.stores.discard(mesh_id)

    async def fork_ranks(self, _: object, planned: list[tuple[state_pb2.RankRecord, object]]) -> list[Any]:
        self.asked.set()
        await self.may_fork.wait()
        forked = [
            RankProcess(r.mesh_id, r.rank, r, FakeLink(), None, 0)  # type: ignore[arg-type]
            for r, _ in planned
        ]
        self.ranks |= {(rank.mesh_id, rank.rank): rank for rank in forked}
        return forked

    def retire(self, ranks: list[Any]) -> None:
        for rank in ranks:
            if self.ranks.get((rank.mesh_id, rank.rank)) is rank:
                del self.ranks[rank.mesh_id, rank.rank]
        self.leaving += [rank for rank in ranks if rank not in self.leaving]

    async def end(self, ranks: list[Any], **_: object) -> None:
        self.retire(ranks)
        self.asked.set()
        await self.may_end.wait()
        self.leaving = [rank for rank in self.leaving if rank not in ranks]
        self.ended += [rank.rank for rank in ranks]

    def kill(self, _: object) -> None:
        pass

    async def close(self, **_: object) -> None:
        pass


class NodeWithoutProcesses(Node):
    supervisor: Any


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodeWithoutProcesses]:
    identity = state_pb2.ProcessIdentity(pid=1, start_ticks=1, boot_id="b")
    monkeypatch.setattr(processes, "identify", lambda _: identity)
    made = NodeWithoutProcesses(NodePaths(tmp_path), "node0", procs=4, gpus=[], python="python", preload=[])
    made.supervisor = FakeSupervisor()
    made._warming = asyncio.create_task(made._warm())
    yield made
    await made.close(end_processes=False)


def reserve(node: Node, reservation_id: str = "r") -> None:
    node.reserve(pb.ReserveRequest(reservation_id=reservation_id, name=reservation_id, owner="me", procs=2))


def tell(node: NodeWithoutProcesses, result: run_pb2.RankResult) -> None:
    """A rank says what a run has come to."""
    node._on_result(node.supervisor.ranks[MESH, result.rank], result)


def store_request() -> pb.HostStoreRequest:
    return pb.HostStoreRequest(reservation_id="r", mesh_id=MESH)


def spawn_request() -> pb.SpawnRequest:
    return pb.SpawnRequest(reservation_id="r", mesh_id=MESH, name="main", ranks=2, world_size=2)


async def spawn(node: Node) -> None:
    reserve(node)
    await node.stores.host(store_request())
    await node.spawn(spawn_request())
    node.confirm(pb.ConfirmRequest(reservation_id="r"))


def submit(node: Node, run_id: str, session: Session | None = None, number: int = 0) -> Session:
    session = session or Session()
    node.sessions.add(session)
    session.run_ids.add(run_id)
    run = run_pb2.RunSpec(run_id=run_id, number=number)
    node.submit(session, pb.Submit(mesh_id=MESH, run=run, ranks=[0, 1], all_ranks=[0, 1], give_number=not number))
    return session


def events(session: Session, kind: str) -> list[Any]:
    return [getattr(event, kind) for event in session._events if event.HasField(kind)]  # type: ignore[arg-type]


def assert_nothing_left(node: NodeWithoutProcesses) -> None:
    assert (node.state.leases, node.state.meshes, node.mesh_records) == ({}, {}, {})
    assert (node.supervisor.ranks, node.supervisor.stores) == ({}, set())
    assert not node.paths.mesh(MESH).exists()
    node.flush()
    assert not node.database._written


def fails_on_disk(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


class TestRestart:
    async def test_fresh_ranks_are_ready_while_those_before_them_end(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        old = list(node.supervisor.ranks.values())
        node.supervisor.may_end.clear()
        assert [rank.rank for rank in await node.restarts.restart(MESH, [0, 1])] == [0, 1]
        assert node.supervisor.leaving == old
        left = node.database.read("leaving", state_pb2.RankRecord)
        assert sorted(record.token for _, record in left) == sorted(process.record.token for process in old)
        node.supervisor.may_end.set()
        await asyncio.gather(*node.restarts.ending)
        node.flush()
        assert (node.supervisor.leaving, list(node.database.read("leaving", state_pb2.RankRecord))) == ([], [])

    async def test_those_with_gpus_end_first(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.state.meshes[MESH].ranks[1].gpu_indices = [0]
        node.supervisor.may_end.clear()
        node.supervisor.asked.clear()
        restart = asyncio.create_task(node.restarts.restart(MESH, [0, 1]))
        await node.supervisor.asked.wait()
        left = (len(node.supervisor.leaving), len(node.supervisor.ranks))
        node.supervisor.may_end.set()
        await restart
        assert left == (2, 0)
        assert len(node.supervisor.ranks) == 2

    async def test_a_release_waits_for_those_that_are_leaving(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_end.clear()
        await node.restarts.restart(MESH, [0, 1])
        node.supervisor.asked.clear()
        await node.supervisor.asked.wait()
        node.supervisor.asked.clear()
        release = asyncio.create_task(node.release("r"))
        await node.supervisor.asked.wait()
        left = len(node.supervisor.leaving)
        node.supervisor.may_end.set()
        assert (await release, left) == (2, 4)
        assert_nothing_left(node)


class TestRelease:
    async def test_everything_goes(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        assert await node.release("r") == 2
        assert node.supervisor.ended == [0, 1]
        assert_nothing_left(node)
        assert await node.release("r") == 0

    @pytest.mark.parametrize("held_up", ["warm", "may_fork"])
    @pytest.mark.parametrize("call", ["host_store", "spawn"])
    async def test_while_ranks_are_being_started(self, node: NodeWithoutProcesses, call: str, held_up: str) -> None:
        """A notebook's `%mesh reserve` was interrupted: the call goes on here, its client does not."""
        reserve(node)
        if call == "spawn":
            await node.stores.host(store_request())
        getattr(node.supervisor, held_up).clear()
        work: Any = node.stores.host(store_request()) if call == "host_store" else node.spawn(spawn_request())
        node.supervisor.asked.clear()
        task = asyncio.create_task(work)
        await node.supervisor.asked.wait()
        await node.release("r")
        assert "r" not in node.state.leases, "a slow start does not hold the slots up"
        getattr(node.supervisor, held_up).set()
        with pytest.raises(ReservationNotFound):
            await task
        assert_nothing_left(node)

    async def test_while_ranks_are_being_restarted(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_fork.clear()
        node.supervisor.asked.clear()
        task = asyncio.create_task(node.restarts.restart(MESH, [0, 1]))
        await node.supervisor.asked.wait()
        release = asyncio.create_task(node.release("r"))
        await asyncio.sleep(0)
        node.supervisor.may_fork.set()
        with pytest.raises(MonarchNbError):
            await task
        await release
        assert_nothing_left(node)

    async def test_twice_at_once(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_end.clear()
        first = asyncio.create_task(node.release("r"))
        second = asyncio.create_task(node.release("r"))
        node.supervisor.asked.clear()
        await node.supervisor.asked.wait()
        await asyncio.sleep(0)
        assert not second.done(), "the slots are free only when the ranks have ended"
        assert "r" in node.state.leases
        with pytest.raises(ReservationNotFound):
            await node.spawn(spawn_request())
        node.supervisor.may_end.set()
        assert await asyncio.gather(first, second) == [2, 2]
        assert_nothing_left(node)

    async def test_its_client_may_go_away(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.supervisor.may_end.clear()
        node.supervisor.asked.clear()
        abandoned = asyncio.create_task(node.release("r"))
        await node.supervisor.asked.wait()
        abandoned.cancel()
        node.supervisor.may_end.set()
        assert await node.release("r") == 2
        assert_nothing_left(node)

    async def test_whoever_waits_for_a_run_is_told(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session = submit(node, "a")
        stranger = Session()
        node.sessions.add(stranger)
        await node.release("r")
        [refused] = events(session, "refused")
        assert refused.run_id == "a"
        assert "released" in refused.error_json
        assert events(stranger, "refused") == []

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
        releasing = asyncio.create_task(node.release("r"))
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

    async def test_down_in_the_middle_of_a_sync_leaves_nothing(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)
        node.files.workspaces.directory("r")
        entered, may_go = threading.Event(), threading.Event()
        prepare = Pending.prepare

        def slow(pending: Pending) -> list[bytes]:
            entered.set()
            may_go.wait(10)
            return prepare(pending)

        monkeypatch.setattr(Pending, "prepare", slow)
        names = [f"d{number}".encode() for number in range(SMALL_CHANGE_ENTRIES + 1)]
        kind = files_pb2.TreeEntry.KIND_DIRECTORY
        change = {
            "version": "v",
            "source": "s",
            "whole": True,
            "changed": [{"path": n, "kind": kind, "mode": 0o755} for n in names],
        }
        request = files_pb2.SyncTreeRequest(reservation_id="r", change=change)
        syncing = asyncio.create_task(node.files.sync(request, asyncio.Event()))
        await asyncio.to_thread(entered.wait, 10)
        closing = asyncio.create_task(node.files.close())
        done, _ = await asyncio.wait({closing}, timeout=0.1)
        assert not done
        may_go.set()
        await closing
        assert (await syncing).nodes[0].HasField("applied")

    @pytest.mark.parametrize("at", ["the lock", "prepare"])
    async def test_a_sync_that_nobody_waits_for_leaves_the_old_tree(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch, at: str
    ) -> None:
        await spawn(node)
        tree = node.files.workspaces.directory("r")
        gone = asyncio.Event()
        prepare = Pending.prepare

        def leaving(pending: Pending) -> list[bytes]:
            gone.set()
            return prepare(pending)

        if at == "prepare":
            monkeypatch.setattr(Pending, "prepare", leaving)
        entry = {"path": b"d", "kind": files_pb2.TreeEntry.KIND_DIRECTORY, "mode": 0o755}
        change = {"version": "v", "source": "s", "whole": True, "changed": [entry]}
        request = files_pb2.SyncTreeRequest(reservation_id="r", change=change)
        async with node.files._locks["r"]:
            syncing = asyncio.create_task(node.files.sync(request, gone))
            await asyncio.sleep(0)
            if at == "the lock":
                gone.set()
        await syncing
        assert list(tree.iterdir()) == []
        monkeypatch.undo()
        assert (await node.files.sync(request, asyncio.Event())).nodes[0].HasField("applied")
        assert [path.name for path in tree.iterdir()] == ["d"]

    async def test_a_workspace_that_can_not_be_removed_holds_no_slots(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)
        node.files.workspaces.directory("r")
        monkeypatch.setattr(node.files.workspaces, "release", fails_on_disk)
        await node.release("r")
        assert_nothing_left(node)

    async def test_at_the_end_processes_go_before_big_trees(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)
        removing, may_go = threading.Event(), threading.Event()

        def release(*_: object) -> None:
            removing.set()
            may_go.wait(10)

        monkeypatch.setattr(node.files.workspaces, "release", release)
        releasing = node.start_release("r")
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

    async def test_the_log_says_where_files_of_ranks_are(
        self, node: NodeWithoutProcesses, caplog: pytest.LogCaptureFixture
    ) -> None:
        await spawn(node)
        (node.files.workspaces.directory("r") / "result").write_text("42")
        with caplog.at_level("INFO"):
            await node.release("r")
        [kept] = node.paths.kept.iterdir()
        assert str(kept) in caplog.text

    async def test_a_workspace_that_nobody_holds_goes_when_the_node_starts(self, tmp_path: Path) -> None:
        def start() -> NodeWithoutProcesses:
            made = NodeWithoutProcesses(NodePaths(tmp_path), "node0", procs=4, gpus=[], python="python", preload=[])
            made.supervisor = FakeSupervisor()
            return made

        killed = start()
        reserve(killed)
        killed.confirm(pb.ConfirmRequest(reservation_id="r"))
        for reservation_id in ("r", "gone"):
            (killed.files.workspaces.directory(reservation_id) / "result").write_text("42")
        killed.database.close()
        node = start()
        await node.start()
        try:
            assert node.files.workspaces.reservations() == ["r"]
            assert [path.name for path in node.paths.workspaces.iterdir()] == ["r"]
            assert [(path / "result").read_text() for path in node.paths.kept.iterdir()] == ["42"]
        finally:
            await node.close(end_processes=False)

    async def test_a_disk_that_is_full(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        node.flush()
        node.database._connection.execute("PRAGMA max_page_count = 2")
        node.database.put("lease", "big", state_pb2.LeaseRecord(request={"name": "x" * 1_000_000}))
        assert await node.release("r") == 2
        assert (node.state.leases, node.state.meshes) == ({}, {})


class TestLimits:
    @staticmethod
    def start(tmp_path: Path) -> NodeWithoutProcesses:
        made = NodeWithoutProcesses(NodePaths(tmp_path), "node0", procs=4, gpus=[], python="python", preload=[])
        made.supervisor = FakeSupervisor()
        return made

    async def test_an_allocator_that_starts_again_remembers(self, tmp_path: Path) -> None:
        killed = self.start(tmp_path)
        killed.reserve(
            pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=3600.0, idle_s=7200.0)
        )
        peers = [files_pb2.Peer(node_id="node0"), files_pb2.Peer(node_id="node1", address="unix:there")]
        killed.confirm(pb.ConfirmRequest(reservation_id="r", nodes=peers))
        killed.expiry.extend("r", 5400.0)
        reserve(killed, "ended")
        await killed.release("ended", "nobody used it for 2 h")
        before = killed.state.leases["r"]
        killed.expiry.close()
        killed.database.close()
        node = self.start(tmp_path)
        await node.start()
        try:
            lease = node.state.leases["r"]
            assert (lease.limits.time_s, lease.limits.idle_s) == (5400.0, 7200.0)
            assert lease.limits.confirmed_s == before.limits.confirmed_s
            assert lease.nodes == peers
            with pytest.raises(ReservationExpired, match="nobody used it for 2 h"):
                node.state.lease("ended")
        finally:
            await node.close(end_processes=False)

    async def test_time_that_was_up_while_no_allocator_ran(self, tmp_path: Path) -> None:
        killed = self.start(tmp_path)
        killed.reserve(pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=1e-6))
        killed.confirm(pb.ConfirmRequest(reservation_id="r"))
        killed.expiry.close()
        killed.database.close()
        node = self.start(tmp_path)
        await node.start()
        try:
            async with asyncio.timeout(10):
                while node.state.leases:
                    await asyncio.sleep(0.001)
            assert node.state.procs_free == 4
            assert [ended.name for ended in node.state.ended.values()] == ["r"]
        finally:
            await node.close(end_processes=False)

    async def test_a_client_that_is_attached_or_a_cell_that_runs_is_use(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session = Session()
        node.sessions.add(session)
        assert node.expiry.idle_for_s("r") > 0
        node.expiry.attach(session, "r")
        assert node.expiry.idle_for_s("r") == 0
        node.expiry.detach(session, "r")
        assert node.expiry.idle_for_s("r") > 0
        submit(node, "run")
        assert node.expiry.idle_for_s("r") == 0
        for rank in (0, 1):
            tell(node, run_pb2.RankResult(run_id="run", rank=rank))
        assert 0 < node.expiry.idle_for_s("r") < 60

    async def test_attached_clients_are_told_what_others_say_of_the_files(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session, stranger = Session(), Session()
        node.sessions |= {session, stranger}
        node.expiry.attach(session, "r")
        assert not events(session, "files_changed"), "nobody said anything"
        added = files_pb2.AddedTree(name="library", source="here:/library")
        node.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", add=added))
        node.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", reload=False, client="me"))
        first, second = (event.files for event in events(session, "files_changed"))
        assert (list(first.added), first.HasField("reload")) == ([added], False)
        assert (list(second.added), second.reload, second.changed_by) == ([added], False, "me")
        assert second.revision > first.revision
        assert not events(stranger, "files_changed")
        node.expiry.attach(stranger, "r")
        assert [event.files for event in events(stranger, "files_changed")] == [second]
        again = NodeState(4)
        read_state(node.database, again, {})
        assert again.leases["r"].files == second, "an allocator that is started again knows it"
        node.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", remove="library"))
        assert not node.state.leases["r"].files.added

    async def test_attached_clients_are_warned_and_told_of_the_end(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session, stranger = Session(), Session()
        node.sessions |= {session, stranger}
        node.reserve(pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=3600.0))
        node.confirm(pb.ConfirmRequest(reservation_id="r"))
        node.expiry.attach(session, "r")
        assert not events(session, "time_left")
        now_s = processes.seconds_since_boot() + 3500
        monkeypatch.setattr(expiry, "seconds_since_boot", lambda: now_s)
        node.expiry._look("r")
        [warning] = events(session, "time_left")
        assert warning.nearly_up
        assert 90 < warning.left_s < 101
        late = Session()
        node.expiry.attach(late, "r")
        assert events(late, "time_left") == [warning]
        node.expiry.extend("r", 7200.0)
        assert not events(session, "time_left")[-1].nearly_up
        await node.release("r", "its time was up")
        assert events(session, "time_left")[-1].ended.why == "its time was up"
        assert not events(stranger, "time_left")


class TestProvisionalLease:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "PROVISIONAL_LEASE_S", 0.01)

    async def gone(self, node: Node) -> None:
        async with asyncio.timeout(10):
            while node.state.leases:
                await asyncio.sleep(0.001)

    async def test_nobody_confirms(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        await self.gone(node)
        assert_nothing_left(node)

    async def test_confirmed_it_stays(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        reserve(node, "other")
        node.confirm(pb.ConfirmRequest(reservation_id="r"))
        async with asyncio.timeout(10):
            while "other" in node.state.leases:
                await asyncio.sleep(0.001)
        assert "r" in node.state.leases

    async def test_a_slow_start_is_no_dead_client(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        node.supervisor.warm.clear()
        starting = asyncio.create_task(node.stores.host(store_request()))
        reserve(node, "other")
        async with asyncio.timeout(10):
            while "other" in node.state.leases:
                await asyncio.sleep(0.001)
        node.supervisor.warm.set()
        await starting
        await node.spawn(spawn_request())
        node.confirm(pb.ConfirmRequest(reservation_id="r"))
        assert node.state.leases["r"].confirmed

    async def test_a_client_that_died_after_the_store_was_forked(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        await node.stores.host(store_request())
        await self.gone(node)
        assert_nothing_left(node)

    async def test_a_client_that_died_after_the_ranks_were_forked(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        await node.stores.host(store_request())
        await node.spawn(spawn_request())
        await self.gone(node)
        assert_nothing_left(node)


class TestRuns:
    def result(self, run_id: str, rank: int = 0) -> run_pb2.RankResult:
        return run_pb2.RankResult(run_id=run_id, rank=rank, outcome=run_pb2.OUTCOME_OK)

    async def test_a_result_is_acknowledged_when_it_is_stored(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        tell(node, self.result("a"))
        link = node.supervisor.ranks[MESH, 0].link
        assert link.forgotten == []
        node.flush()
        assert link.forgotten == ["a"]

    async def test_an_interrupt_is_told_to_the_ranks_that_run_it_and_to_no_other(
        self, node: NodeWithoutProcesses
    ) -> None:
        await spawn(node)
        session = submit(node, "a")
        submit(node, "b", session)
        tell(node, self.result("a", rank=1))  # which goes on with the next
        for run_id, told in (("b", [[], ["b"]]), ("a", [["a"], ["b"]]), ("unknown", [["a"], ["b"]])):
            interrupt(node, run_id)
            links = [node.supervisor.ranks[MESH, rank].link for rank in (0, 1)]
            assert [[request.interrupt.run_id for request in link.told] for link in links] == told
        assert node.state.meshes[MESH].runs["b"].results[0].outcome == run_pb2.OUTCOME_CANCELLED

    async def test_what_a_small_result_showed_can_be_shown_again(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        for rank, bundle in ((0, "small"), (1, "x" * 10_000)):
            result = self.result("a", rank=rank)
            result.bundle_json, result.value_inline = bundle, b"value"
            tell(node, result)
        node.collected(["a"])
        results = node.state.meshes[MESH].runs["a"].results
        assert [(result.bundle_json, result.value_inline) for _, result in sorted(results.items())] == [
            ("small", b""),
            ("", b""),
        ]

    async def test_a_disk_that_is_full_leaves_results_with_their_ranks(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        node.flush()
        pages = node.database._connection.execute("PRAGMA page_count").fetchone()[0]
        node.database._connection.execute(f"PRAGMA max_page_count = {pages}")
        large = self.result("a")
        large.bundle_json = "x" * 1_000_000
        tell(node, large)
        node.flush()
        assert node.supervisor.ranks[MESH, 0].link.forgotten == []
        node.database._connection.execute("PRAGMA max_page_count = 1000000")
        node.flush()
        assert node.supervisor.ranks[MESH, 0].link.forgotten == ["a"]

    async def test_the_result_of_an_unknown_run_stays_with_its_rank(self, node: NodeWithoutProcesses) -> None:
        """The allocator before this one was killed before it wrote the run down: its client submits it again."""
        await spawn(node)
        tell(node, self.result("lost"))
        node.flush()
        link = node.supervisor.ranks[MESH, 0].link
        assert link.forgotten == []
        submit(node, "lost", number=7)
        assert len(link.runs) == 1, "the rank knows it and sends its result again"

    async def test_a_full_disk_does_not_stop_runs(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await spawn(node)

        def mkdir(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "mkdir", mkdir)
        session = submit(node, "a")
        assert len(node.supervisor.ranks[MESH, 0].link.runs) == 1
        assert events(session, "refused") == []

    async def test_the_newest_run_is_remembered_though_collected(self, node: NodeWithoutProcesses) -> None:
        """So that after a restart the next one, which comes after it, does not wait for it."""
        await spawn(node)
        for number in (1, 2):
            run_id = f"run{number}"
            submit(node, run_id, number=number)
            for rank in (0, 1):
                tell(node, self.result(run_id, rank))
            node.collected([run_id])
            node.flush()
        again = NodeWithoutProcesses(node.paths, "node0", procs=4, gpus=[], python="python", preload=[])
        again._read_state()
        assert again.state.meshes[MESH].numbers == {2}
        again.database.close()
        again.watch.close()

    @pytest.mark.parametrize(("trouble", "newest"), [("", 3), ("no file", 1003), ("no room", 1003)])
    async def test_run_numbers_never_come_twice(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch, trouble: str, newest: int
    ) -> None:
        await spawn(node)
        for number in range(1, 4):
            submit(node, f"run{number}")
            if trouble == "no room" and number == 2:
                monkeypatch.setattr(os, "pwrite", lambda *_: os.write(-1, b""))
        if trouble == "no file":
            node.paths.newest_run(MESH).unlink()
        node.database.flush()  # the runs themselves are not written yet
        again = NodeWithoutProcesses(node.paths, "node0", procs=4, gpus=[], python="python", preload=[])
        again._read_state()
        assert again.state.meshes[MESH].last_number == newest
        again.database.close()
        again.watch.close()

    async def test_a_blob_can_not_leave_its_directory(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        for name in ("", ".", "..", "a/b", "/etc/passwd", ".hidden", "../../state.sqlite"):
            with pytest.raises(MonarchNbError, match="bad blob name"):
                node.blob_path(MESH, name)
        assert node.blob_path(MESH, "abc").parent == node.paths.blobs(MESH)
