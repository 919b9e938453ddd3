"""How a lease ends: who is told of it, and whose client is waited for before."""

from __future__ import annotations

import asyncio

import pytest

from monarch_nb import config
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.errors import ReservationExpired, ReservationReleased
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.status import error_from_json
from unit.allocator.idle_node import (
    NodeWithoutProcesses,
    events,
    reserve,
    spawn,
    spawn_request,
    state_after_restart,
    store_request,
    submit,
)


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
        known = state_after_restart(node).ended
        assert known == {"r": ended}, "an allocator that is started again knows it; the other one nobody used"
        late = Session()
        node.leases.expiry.attach(late, "r")
        assert [event.ended for event in events(late, "time_left")] == [ended]


class TestExtending:
    async def test_once_the_time_is_up_it_is_refused_whoever_comes_first(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        limits = node.state.leases["r"].limits
        limits.extend(60.0, seconds_since_boot())
        assert limits.confirmed_s is not None
        limits.confirmed_s -= 61.0  # no timer has looked yet
        for _ in range(2):  # then its ranks are being ended
            with pytest.raises(ReservationExpired, match="its time of 1 min was up"):
                node.leases.extend("r", 3600.0)
            assert limits.time_s == 60.0
        await node.leases.releases["r"]
        with pytest.raises(ReservationExpired):
            node.leases.extend("r", 3600.0)

    async def test_what_a_person_releases_is_not_held_for_longer(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        ending = node.leases.start_release("r", by="in the panel")
        with pytest.raises(ReservationReleased, match="in the panel"):
            node.leases.extend("r", 3600.0)
        await ending


class TestProvisionalLease:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "PROVISIONAL_LEASE_S", 0.01)

    async def gone(self, node: Node, reservation_id: str) -> None:
        async with asyncio.timeout(10):
            while reservation_id in node.state.leases:
                await asyncio.sleep(0.001)

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
