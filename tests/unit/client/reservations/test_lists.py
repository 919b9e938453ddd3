"""What is held in all pools, and where what was not found is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.held import HeldReservation
from monarch_nb.client.reservations import lists
from monarch_nb.client.reservations.lists import elsewhere, list_everywhere, list_one, pool_of
from monarch_nb.config import POOL_VARIABLE
from monarch_nb.errors import NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb


class Held:
    """A pool in which these reservations are held: NAME, OWNER/NAME, or OWNER/NAME/run when it is shared with us."""

    is_up = is_there = True

    def __init__(self, *names: str, silent: Sequence[str] = (), last: Sequence[str] | None = None) -> None:
        self._names, self.silent, self._last = names, silent, last

    def held_on_silent(self) -> Sequence[str] | None:
        return self._last

    async def reservations(self, *, memory: bool = False) -> list[HeldReservation]:
        return [_held(*name.split("/")) for name in self._names]


class Dead(Held):
    async def reservations(self, *, memory: bool = False) -> list[HeldReservation]:
        raise NodeUnreachable("no node answers")


class Hanging(Held):
    async def reservations(self, *, memory: bool = False) -> list[HeldReservation]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


class Down(Held):
    is_up = is_there = False


def _held(name: str, owner: str = "", right: str = "") -> HeldReservation:
    if owner:
        name, owner = owner, name
    status = pb.ReservationStatus(name=name, owner=owner or "me", right=pb.RIGHT_RUN if right else pb.RIGHT_UNSPECIFIED)
    return HeldReservation(name, {0: (SimpleNamespace(name="host", identity=SimpleNamespace(name="me")), status)})  # type: ignore[dict-item]


def given(monkeypatch: pytest.MonkeyPatch, **pools: Held) -> None:
    monkeypatch.setattr(lists, "known_pools", lambda: list(pools))
    for name in ("pool_named", "pool_object"):
        monkeypatch.setattr(lists, name, pools.__getitem__)


def names(held: Sequence[lists.ReservationInfo]) -> list[tuple[str, str]]:
    return [(info.pool, info.name) for info in held]


class TestEverywhere:
    def test_the_default_pool_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(POOL_VARIABLE, "lab")
        given(monkeypatch, cluster=Held("bob/b"), lab=Held("a"))
        held = list_everywhere()
        assert held.pools == ("lab", "cluster")
        assert names(held.reservations) == [("lab", "a"), ("cluster", "b")]
        assert held.notes == []

    def test_a_pool_that_does_not_answer_is_said_beside_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, lab=Held("a"), far=Dead(), empty=Down())
        held = list_everywhere()
        assert names(held.reservations) == [("lab", "a")]
        assert held.notes == ["far: no node answers"]
        given(monkeypatch, lab=Dead())
        with pytest.raises(NodeUnreachable):  # there is no other
            list_everywhere()

    def test_jobs_that_nobody_holds_are_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, lab=Held("a"), far=Dead())
        asked: list[Any] = []
        monkeypatch.setattr(lists.jobs, "unheld", lambda *of: asked.append(of) or ["dev: waits"])
        assert list_everywhere().unheld == ("dev: waits",)
        [(held, silent)] = asked
        assert (held, set(silent)) == ({("lab", "a"): 0}, {"far"})

    def test_nodes_that_may_hold_more_are_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        away = "%s not answer: reservations that only %s are not shown"
        last = ["dev", "eval"]
        lab = Held("a", silent=["host", "host1"], last=["a"])
        given(monkeypatch, lab=lab, far=Held(silent=["n1", "n2"], last=last), empty=Down())
        held = list_everywhere()
        far = "far: n1, n2 " + away % ("do", "they hold") + " (dev, eval of yours, when they last did)"
        assert held.besides == ["lab: host1 " + away % ("does", "it holds"), far], "host is known to hold a part"
        assert list_one("far").besides == [far]


class TestElsewhere:
    def test_it_says_where_and_how_to_ask_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, local=Held(), lab=Held("dev"), cluster=Held("dev", "eval"))
        how = "--pool lab, or MONARCH_NB_POOL=lab"
        assert elsewhere("dev", "local") == f"dev is held in the pool lab; dev is held in the pool cluster: {how}"
        assert elsewhere(None, "lab") == (
            "you hold dev, eval in the pool cluster: --pool cluster, or MONARCH_NB_POOL=cluster"
        )
        assert elsewhere("train", "local") == ""

    def test_of_others_only_what_they_share(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, local=Held(), lab=Held("bob/dev", "eve/eval/run"))
        assert elsewhere("dev", "local") == ""
        assert elsewhere(None, "local") == ""
        assert elsewhere("eval", "local").startswith("eval is held in the pool lab")
        assert elsewhere("eve/eval", "local").startswith("eve/eval is held in the pool lab")
        assert elsewhere("bob/eval", "local") == ""

    def test_pools_that_do_not_answer_hold_nobody_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lists, "ELSEWHERE_S", 0.0)
        given(monkeypatch, far=Dead(), slow=Hanging(), down=Down())
        assert elsewhere("dev", "local") == ""


class TestPoolOf:
    def test_it_is_the_one_that_is_asked_or_the_only_other_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given(monkeypatch, local=Down(), lab=Held("dev"), cluster=Held("eve/dev/run", "eve/eval/run", "bob/train"))
        assert pool_of("dev", "local") == "lab", "ours goes before what is shared"
        assert pool_of("eval", "local") == "cluster"
        assert pool_of("train", "local") == "local", "nobody shares it"
        given(monkeypatch, local=Held(), lab=Held("dev"), cluster=Held("dev"))
        assert pool_of("dev", "local") == "local", "nobody guesses between several"
        given(monkeypatch, local=Dead(), lab=Held("dev"))
        assert pool_of("dev", "local") == "local", "it does not say what it has"

    def test_else_it_is_that_of_its_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also when the default pool is too busy to answer in time."""
        monkeypatch.setattr(lists.jobs, "jobs_of", lambda name: [SimpleNamespace(pool="slurm-dev")])
        for local in (Held(), Dead()):
            given(monkeypatch, local=local, lab=Held("other"))
            assert pool_of("dev", "local") == "slurm-dev"
        given(monkeypatch, local=Held("dev"), lab=Held("dev"))
        assert pool_of("dev", "local") == "local"
