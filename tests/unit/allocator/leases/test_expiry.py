"""How long a lease lasts: limits that a restart remembers, who uses it, and leases that nobody confirms."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from monarch_nb import config
from monarch_nb.allocator.leases import expiry
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.recovery.read_state import read_state
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.allocator.supervision import processes
from monarch_nb.errors import ReservationExpired, ReservationReleased
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2
from monarch_nb.rpc.status import error_from_json
from unit.allocator.idle_node import (
    NodeWithoutProcesses,
    assert_nothing_left,
    events,
    make_node,
    reserve,
    spawn,
    spawn_request,
    store_request,
    submit,
    tell,
)


class TestLimits:
    async def test_an_allocator_that_starts_again_remembers(self, tmp_path: Path) -> None:
        killed = make_node(tmp_path)
        killed.leases.reserve(
            pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=3600.0, idle_s=7200.0)
        )
        peers = [files_pb2.Peer(node_id="node0"), files_pb2.Peer(node_id="node1", address="unix:there")]
        killed.leases.confirm(pb.ConfirmRequest(reservation_id="r", nodes=peers))
        killed.leases.expiry.extend("r", 5400.0)
        reserve(killed, "ended")
        await killed.leases.release("ended", "nobody used it for 2 h")
        before = killed.state.leases["r"]
        killed.leases.expiry.close()
        killed.records.database.close()
        node = make_node(tmp_path)
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
        killed = make_node(tmp_path)
        killed.leases.reserve(pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=1e-6))
        killed.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
        killed.leases.expiry.close()
        killed.records.database.close()
        node = make_node(tmp_path)
        await node.start()
        try:
            await TestProvisionalLease().gone(node, "r")
            assert node.state.procs_free == 4
            assert [ended.name for ended in node.state.ended.values()] == ["r"]
        finally:
            await node.close(end_processes=False)

    async def test_a_client_that_is_attached_or_a_cell_that_runs_is_use(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session = Session()
        node.sessions.add(session)
        assert node.leases.expiry.idle_for_s("r") > 0
        node.leases.expiry.attach(session, "r")
        assert node.leases.expiry.idle_for_s("r") == 0
        node.leases.expiry.detach(session, "r")
        assert node.leases.expiry.idle_for_s("r") > 0
        submit(node, "run")
        assert node.leases.expiry.idle_for_s("r") == 0
        for rank in (0, 1):
            tell(node, run_pb2.RankResult(run_id="run", rank=rank))
        assert 0 < node.leases.expiry.idle_for_s("r") < 60

    async def test_attached_clients_are_told_what_others_say_of_the_files(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session, stranger = Session(), Session()
        node.sessions |= {session, stranger}
        node.leases.expiry.attach(session, "r")
        assert not events(session, "files_changed"), "nobody said anything"
        added = files_pb2.AddedTree(name="library", source="here:/library")
        node.leases.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", add=added))
        node.leases.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", reload=False, client="me"))
        first, second = (event.files for event in events(session, "files_changed"))
        assert (list(first.added), first.HasField("reload")) == ([added], False)
        assert (list(second.added), second.reload, second.changed_by) == ([added], False, "me")
        assert second.revision > first.revision
        assert not events(stranger, "files_changed")
        node.leases.expiry.attach(stranger, "r")
        assert [event.files for event in events(stranger, "files_changed")] == [second]
        again = NodeState(4)
        read_state(node.records.database, [], again, {})
        assert again.leases["r"].files == second, "an allocator that is started again knows it"
        node.leases.change_files(files_pb2.ChangeFilesRequest(reservation_id="r", remove="library"))
        assert not node.state.leases["r"].files.added

    async def test_attached_clients_are_warned_and_told_of_the_end(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session, stranger = Session(), Session()
        node.sessions |= {session, stranger}
        node.leases.reserve(pb.ReserveRequest(reservation_id="r", name="r", owner="me", procs=2, time_s=3600.0))
        node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
        node.leases.expiry.attach(session, "r")
        assert not events(session, "time_left")
        now_s = processes.seconds_since_boot() + 3500
        monkeypatch.setattr(expiry, "seconds_since_boot", lambda: now_s)
        node.leases.expiry._look("r")
        [warning] = events(session, "time_left")
        assert warning.nearly_up
        assert 90 < warning.left_s < 101
        late = Session()
        node.leases.expiry.attach(late, "r")
        assert events(late, "time_left") == [warning]
        node.leases.expiry.extend("r", 7200.0)
        assert not events(session, "time_left")[-1].nearly_up
        await node.leases.release("r", "its time was up")
        assert events(session, "time_left")[-1].ended.why == "its time was up"
        assert not events(stranger, "time_left")


class TestReleasedByAPerson:
    async def test_whoever_is_attached_is_told_where_and_so_is_who_waits_for_a_run(
        self, node: NodeWithoutProcesses
    ) -> None:
        await spawn(node)
        session, stranger = submit(node, "run"), Session()
        node.sessions.add(stranger)
        node.leases.expiry.attach(session, "r")
        reserve(node, "unconfirmed")
        await node.leases.release("unconfirmed", by="in the panel")
        await node.leases.release("r", by="in the panel", asked_at=1e9)
        ended = events(session, "time_left")[-1].ended
        assert (ended.name, ended.by, ended.ended_at) == ("r", "in the panel", 1e9)
        [refused] = events(session, "refused")
        assert refused.run_id == "run"
        assert isinstance(error_from_json(refused.error_json), ReservationReleased)
        assert events(stranger, "refused") == []
        again = NodeState(4)
        read_state(node.records.database, [], again, {})
        assert again.ended == {"r": ended}, "an allocator that is started again knows it; the other one nobody used"
        late = Session()
        node.leases.expiry.attach(late, "r")
        assert [event.ended for event in events(late, "time_left")] == [ended]


class TestProvisionalLease:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "PROVISIONAL_LEASE_S", 0.01)

    async def gone(self, node: Node, reservation_id: str) -> None:
        async with asyncio.timeout(10):
            while reservation_id in node.state.leases:
                await asyncio.sleep(0.001)

    @pytest.mark.parametrize("died", ["before it began", "after the store was forked", "after the ranks were forked"])
    async def test_nobody_confirms(self, node: NodeWithoutProcesses, died: str) -> None:
        reserve(node)
        if died != "before it began":
            await node.stores.host(store_request())
        if died == "after the ranks were forked":
            await node.forking.spawn(spawn_request())
        await self.gone(node, "r")
        assert_nothing_left(node)

    async def test_a_client_that_is_there_is_waited_for(self, node: NodeWithoutProcesses) -> None:
        session = Session()
        session.client_id = "here"
        node.sessions.add(session)
        for name, client in (("r", "here"), ("other", "gone")):
            request = pb.ReserveRequest(reservation_id=name, name=name, owner="me", procs=1, client_id=client)
            node.leases.reserve(request)
        await self.gone(node, "other")
        assert "r" in node.state.leases
        node.sessions.discard(session)
        await self.gone(node, "r")

    async def test_a_slow_start_is_no_dead_client_and_confirmed_it_stays(self, node: NodeWithoutProcesses) -> None:
        reserve(node)
        node.supervisor.warm.clear()
        starting = asyncio.create_task(node.stores.host(store_request()))
        reserve(node, "other")
        await self.gone(node, "other")
        node.supervisor.warm.set()
        await starting
        await node.forking.spawn(spawn_request())
        node.leases.confirm(pb.ConfirmRequest(reservation_id="r"))
        reserve(node, "another")
        await self.gone(node, "another")
        assert node.state.leases["r"].confirmed
