"""What the saves that a rank makes by itself have of the rest of a rank: the store, the objects, and the save."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch_nb.sizes import size
from monarch_nb.times import duration
from monarch_nb.worker.autosaves.keeper import Keeper, Wanted
from monarch_nb.worker.groups import forming
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import KEPT_SAVES, Origin, SaveReport, SaveRequest


def keeper(
    environment: Mapping[str, str],
    when_idle: Callable[[Callable[[], None]], object],
    computes: Callable[[], bool],
) -> Keeper:
    """Return the keeper of this rank, as it is at work in a rank; see Keeper.

    Args:
        environment: of the rank, as it started: its number, and how many there are.
    """
    rank, world_size = int(environment.get("RANK") or 0), int(environment.get("WORLD_SIZE") or 1)
    return Keeper(
        rank,
        world_size,
        connect=forming.connect_to_store,
        prefix=_prefix,
        save=lambda wanted: _save(wanted, rank, world_size),
        when_idle=when_idle,
        computes=computes,
    )


def _prefix(prefix: str, store: Any) -> Store:
    made: Store = importlib.import_module("torch.distributed").PrefixStore(prefix, store)
    return made


@dataclass(frozen=True)
class _Saved:
    report: SaveReport

    @property
    def path(self) -> str:
        return self.report.path

    def describe(self) -> str:
        """Return what was saved, in a line."""
        report = self.report
        if report.background:
            return f"staged in {duration(report.duration_s)}, being written"
        return f"{size(report.size_bytes)} in {duration(report.duration_s)}"


def _save(wanted: Wanted, rank: int, world_size: int) -> _Saved:
    armed = wanted.armed
    request = SaveRequest(
        directory=armed.directory,
        names=tuple(armed.names),
        keep=armed.keep or KEPT_SAVES,
        background=armed.background,
        origin=Origin(armed.reservation, armed.mesh, wanted.place.run, reason=wanted.why),
    )
    secret = f"{armed.secret}/{wanted.number}"
    return _Saved(entry.save(request, secret, range(world_size), rank=rank))
