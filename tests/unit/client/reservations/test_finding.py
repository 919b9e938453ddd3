"""Which reservation is meant, and what is said when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.reservations import lists
from monarch_nb.errors import ReservationNotFound


def test_what_nobody_holds_is_said_also_when_no_pool_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "elsewhere", lambda name, pool: "")
    local: Any = SimpleNamespace(name="local", is_there=False)
    with pytest.raises(ReservationNotFound, match=r"^no reservation 'dev'; you hold none"):
        lists.find(local, "dev", None)


def test_ones_own_is_also_found_by_its_full_name() -> None:
    def held(owner: str) -> Any:
        return SimpleNamespace(is_mine=owner == "bob", facts=SimpleNamespace(name="dev", owner=owner, right=1))

    mine, theirs = held("bob"), held("anna")
    assert lists._matching([theirs, mine], "bob/dev", None) == [mine]
    assert lists._matching([theirs, mine], "dev", None) == [mine]
    assert lists._matching([theirs, mine], "anna/dev", None) == [theirs]
