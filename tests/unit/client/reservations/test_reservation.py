"""A reservation as its holder sees it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.reservations import reserve as reserve_module
from monarch_nb.client.reservations import taking
from monarch_nb.client.reservations.reserve import reserve


@pytest.mark.parametrize(("is_new", "given_back"), [(True, ["r"]), (False, [])])
def test_a_ctrl_c_just_after_it_was_made_gives_it_back(
    is_new: bool, given_back: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []

    async def made(*_: object) -> tuple[Any, bool]:
        return SimpleNamespace(connections={}, reservation_id="r"), is_new

    async def release(connections: object, reservation_id: str) -> None:
        released.append(reservation_id)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    pool = SimpleNamespace(name="local", heal=lambda say: None, is_up=True, default_python="", identity=None)
    pool.namesakes = ""
    steady = SimpleNamespace(steady=lambda **_: nullcontext())
    monkeypatch.setattr(taking, "provisioner_of", lambda _: steady)
    monkeypatch.setattr(reserve_module, "pool_named", lambda name: pool)
    monkeypatch.setattr(taking, "_reserve", made)
    monkeypatch.setattr(taking, "release", release)
    monkeypatch.setattr(reserve_module, "Reservation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reserve("dev", procs=1)
    assert released == given_back
