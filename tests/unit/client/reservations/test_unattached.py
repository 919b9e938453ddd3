"""Releasing what nobody can attach to, and beginning anew although nodes of the old one are away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.leasing.releasing import Released, ReleasedLater
from monarch_nb.client.presenting import where_here
from monarch_nb.client.reservations import unattached
from monarch_nb.client.reservations.reserving import taking
from monarch_nb.client.reservations.unattached import release_unattached
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


LATE = {"name": "dev", "by": where_here()}


class FakePool:
    """Nodes of a pool of hosts, of which some do not answer."""

    def __init__(self, silent: list[str], others: list[str]) -> None:
        self.name, self.silent, self.listed = "lab", silent, [*silent, *others]
        self.held: Any = None
        self.held_before: list[str] | None = None
        self.late: list[dict[str, str]] = []
        self.ended: dict[str, pb.Ended] = {}
        self.late_releases = self

    def away(self, reservation_id: str) -> list[str]:
        return self.silent if reservation_id == "r" else []

    def end_of(self, reservation_id: str) -> pb.Ended | None:
        return self.ended.get(reservation_id)

    def held_on_silent(self) -> list[str] | None:
        return self.held_before

    async def find(self, _: str) -> Any:
        return self.held

    async def add(self, **which: str) -> bool:
        self.late.append(which)
        return True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> FakePool:
    """One whose two nodes do not answer."""
    made = FakePool(["n1", "n2"], [])
    monkeypatch.setattr(unattached, "end_job_of", lambda *_: "")
    monkeypatch.setattr(unattached, "pool_named", lambda _: made)
    monkeypatch.setattr(unattached, "is_pool", lambda name: name == "lab")
    monkeypatch.setattr(unattached, "elsewhere", lambda *_: "")
    return made


def release(error: MonarchNbError, name: str = "dev") -> str:
    return release_unattached(name, "lab", error, lambda _: None)


class TestReleasing:
    @pytest.mark.parametrize("held", [None, ["dev", "eval"]])
    def test_what_nodes_that_are_away_may_hold_is_released_later(self, held: list[str] | None, pool: FakePool) -> None:
        pool.held_before = held
        assert release(SILENT) == (
            "dev: no node of the pool lab answers; n1, n2 do not answer: a reservation of that name there goes on "
            "until they do; then the next command or panel here that asks the pool lab releases it"
        )
        assert pool.late == [LATE]

    @pytest.mark.parametrize(
        ("name", "held", "said"),
        [
            ("dvv", ["dev", "eval"], "dev, eval of yours when they last did; did you mean dev?"),
            ("xyz", ["dev"], "dev of yours when they last did"),
            ("dev", [], "nothing of yours when they last did"),
        ],
    )
    def test_a_name_that_they_did_not_hold_is_none(self, name: str, held: list[str], said: str, pool: FakePool) -> None:
        pool.held_before = held
        with pytest.raises(ReservationNotFound) as refused:
            release(SILENT, name)
        assert str(refused.value) == f"no reservation {name!r}: n1, n2 do not answer, and held {said}"
        assert not pool.late

    @pytest.mark.parametrize(
        ("error", "name", "silent"),
        [
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
        assert not pool.late

    def test_what_can_not_be_used_without_its_lost_nodes_is_released(
        self, pool: FakePool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def released(nodes: Any, reservation_id: str, *, by: str) -> Released:
            assert (list(nodes), reservation_id) == (["n1", "n2"], "r")
            return Released(later=[ReleasedLater("n1", ("n2",))])

        pool.silent, pool.listed = ["n1"], ["n1", "n2"]
        pool.held = SimpleNamespace(connections={0: "n1", 1: "n2"}, reservation_id="r", shape="2 nodes × 1 proc")
        monkeypatch.setattr(unattached, "release", released)
        said = release(NodeUnreachable("'dev' is held, but n1 does not answer, and main was only there"))
        assert said.splitlines() == ["dev: released 2 nodes × 1 proc", str(ReleasedLater("n1", ("n2",)))]


class TestBeginningAnew:
    @pytest.fixture
    def released(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made: list[str] = []

        async def release(nodes: Any, reservation_id: str, *, by: str) -> Released:
            made.append(reservation_id)
            return Released(later=[ReleasedLater("n1", pool="lab")])

        monkeypatch.setattr(taking, "release", release)
        return made

    async def let_go(self, pool: FakePool, *, replace: bool, here: dict[str, list[str]]) -> list[str]:
        said: list[str] = []
        held_here: Any = {each: [SimpleNamespace(name=name) for name in names] for each, names in here.items()}
        await taking._let_go_of_lost(pool, "dev", replace, held_here, said.append)  # type: ignore[arg-type]
        return said

    async def test_there_are_not_two_of_a_name(self, pool: FakePool, released: list[str]) -> None:
        pool.silent = ["n1"]
        with pytest.raises(NodeUnreachable, match=r"'dev' is held, but n1 does not answer: .* --replace begins anew"):
            await self.let_go(pool, replace=False, here={"r": ["n1"]})
        assert not released

    async def test_what_is_replaced_is_released_later(self, pool: FakePool, released: list[str]) -> None:
        assert await self.let_go(pool, replace=True, here={"r": ["n1"]}) == [str(ReleasedLater("n1", pool="lab"))]
        assert (released, pool.late) == (["r"], [])
        await self.let_go(pool, replace=True, here={})
        assert (released, pool.late) == (["r"], [LATE]), "what another process made is known by its name"

    async def test_what_is_gone_keeps_nobody(self, pool: FakePool, released: list[str]) -> None:
        pool.ended["r"] = pb.Ended(name="dev", by="in the panel")
        for here in ({"r": ["n1"]}, {"other": ["n3"]}, {}):  # released elsewhere, or on nodes that answer
            await self.let_go(pool, replace=False, here=here)
        assert not released
        assert not pool.late
