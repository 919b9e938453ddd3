"""What the saves that a rank makes by itself have of the rest: the store, the objects, and the save."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monarch_nb.sizes import size
from monarch_nb.times import duration
from monarch_nb.worker.groups import forming
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import KEPT_SAVES, Origin, SaveReport, SaveRequest
from monarch_nb.worker.saving.keeper import Keeper, Wanted


def keeper(
    rank: int, world_size: int, when_idle: Callable[[Callable[[], None]], object], computes: Callable[[], bool]
) -> Keeper:
    """Return the keeper of this rank, as it is at work in a rank; see Keeper."""
    ranks = range(world_size)
    return Keeper(
        rank,
        world_size,
        connect=forming.connect_to_store,
        prefix=_prefix,
        save=lambda wanted: _save(wanted, rank, ranks),
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


def _save(wanted: Wanted, rank: int, ranks: range) -> _Saved:
    armed = wanted.armed
    request = SaveRequest(
        directory=armed.directory,
        names=tuple(armed.names),
        keep=armed.keep or KEPT_SAVES,
        background=armed.background,
        origin=Origin(armed.reservation, armed.mesh, wanted.place.run, reason=wanted.why),
    )
    secret = f"{armed.secret}/{wanted.number}"
    return _Saved(entry.save(request, secret, tuple(ranks), rank=rank))
