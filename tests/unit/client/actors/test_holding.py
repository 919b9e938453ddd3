"""Which reservations a process asks about its actors' meshes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from monarch_nb.client.actors import runtime


@dataclass
class Meshes:
    """Those of a reservation, as far as this process has met them."""

    met: set[str]
    stopped: list[str] = field(default_factory=list)

    def known(self, mesh_id: str) -> object:
        return mesh_id if mesh_id in self.met else None

    async def stop(self, mesh_id: str) -> None:
        self.stopped.append(mesh_id)


async def test_a_mesh_is_stopped_where_it_is_and_others_do_not_hold_that_up(monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = Meshes({"helpers"}), Meshes({"main"})
    monkeypatch.setattr(runtime, "in_use", lambda: [SimpleNamespace(meshes=each) for each in (here, other)])
    monkeypatch.setattr(runtime, "held_by_notebook", lambda: None)
    holdings = runtime.Holdings()
    await holdings.stop("helpers")
    assert (here.stopped, other.stopped) == (["helpers"], [])
    await holdings.stop("met by another process")
    assert here.stopped[1:] == other.stopped == ["met by another process"]
