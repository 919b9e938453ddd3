"""A reservation as its holder sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client import reservation as module
from monarch_nb.client.reservation import Reservation


def test_a_released_reservation_watches_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    released: Any = Reservation.__new__(Reservation)
    released.id, released._connections, released._pool = "r", {}, SimpleNamespace(name="local")
    released.files = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(module, "provisioner", lambda: SimpleNamespace(nodes=lambda pool: []))
    released.release()
    assert closed == [True]
