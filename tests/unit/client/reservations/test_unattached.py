"""Releasing what nobody can attach to, and beginning anew although nodes of the old one are away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.leasing import Released, ReleasedLater
from monarch_nb.client.reservations import jobs, taking
from monarch_nb.client.reservations.jobs import release_unattached
from monarch_nb.errors import (
    AccessDenied,
    MonarchNbError,
    NodeUnreachable,
    ReservationExpired,
    ReservationNotFound,
    ReservationReleased,
)
from monarch_nb.proto import allocator_pb2 as pb

SILENT = NodeUnreachable("no node of the pool 'lab' answers")


class FakePool:
    """Nodes of a pool of hosts, of which some do not answer."""

    def __init__(self, silent: list[str], others: list[str]) -> None:
        self.name, self.silent, self.listed = "lab", silent, [*silent, *others]
        self.held: Any = None
        self.ended: dict[str, pb.Ended] = {}

    def away(self, reservation_id: str) -> list[str]:
        return self.silent if reservation_id == "r" else []

    def end_of(self, reservation_id: str) -> pb.Ended | None:
        return self.ended.get(reservation_id)

    async def find(self, _: str) -> Any:
        return self.held


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    """One whose two nodes do not answer."""
    made = FakePool(["n1", "n2"], [])
    monkeypatch.setattr(jobs, "end_job_of", lambda *_: "")
    monkeypatch.setattr(jobs, "pool_named", lambda _: made)
    return made


def release(error: MonarchNbError, name: str = "dev") -> str:
    return release_unattached(name, "lab", error, lambda _: None)


class TestReleasing:
    @pytest.mark.parametrize(
        ("error", "name", "silent"),
        [
            (SILENT, "dev", ["n1", "n2"]),
            (ReservationNotFound("no reservation 'dev'"), "dev", []),
            (ReservationExpired("its time was up", "dev"), "dev", ["n1"]),
            (ReservationReleased("it was released in the panel", "dev"), "dev", ["n1"]),
            (AccessDenied("dev is bob's"), "dev", ["n1"]),
            (ReservationNotFound("bob holds no dev"), "bob/dev", ["n1"]),
        ],
    )
    def test_what_is_not_there_is_an_error(
        self, error: MonarchNbError, name: str, silent: list[str], pool: FakePool
    ) -> None:
        pool.silent = silent
        with pytest.raises(type(error)) as caught:
            release(error, name)
        assert caught.value is error

    def test_what_can_not_be_used_without_its_lost_nodes_is_released(
        self, pool: FakePool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def released(nodes: Any, reservation_id: str, *, by: str) -> Released:
            assert (list(nodes), reservation_id) == (["n1", "n2"], "r")
            return Released(later=[ReleasedLater("n1", ("n2",))])

        pool.silent, pool.listed = ["n1"], ["n1", "n2"]
        pool.held = SimpleNamespace(connections={0: "n1", 1: "n2"}, reservation_id="r", shape="2 nodes × 1 proc")
        monkeypatch.setattr(jobs, "release", released)
        said = release(NodeUnreachable("'dev' is held, but n1 does not answer, and main was only there"))
        assert said.splitlines() == ["dev: released 2 nodes × 1 proc", str(ReleasedLater("n1", ("n2",)))]


class TestBeginningAnew:
    def test_there_are_not_two_of_a_name(self, pool: FakePool) -> None:
        pool.silent = ["n1"]
        with pytest.raises(NodeUnreachable, match=r"'dev' is held, but n1 does not answer: .* --replace begins anew"):
            taking._check_not_lost(pool, "dev", ["r"])  # type: ignore[arg-type]

    def test_what_is_gone_keeps_nobody(self, pool: FakePool) -> None:
        pool.ended["r"] = pb.Ended(name="dev", by="in the panel")
        taking._check_not_lost(pool, "dev", ["r", "other"])  # type: ignore[arg-type]
