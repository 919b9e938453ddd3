"""What the saves that a rank makes by itself have of the rest of a rank: the store, the objects, and the save."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch_nb.errors import MonarchNbError
from monarch_nb.sizes import size
from monarch_nb.times import duration
from monarch_nb.worker.autosaves.keeper import Keeper, Wanted
from monarch_nb.worker.autosaves.reached import ONLY_LOCAL, only_local, reached
from monarch_nb.worker.groups import forming
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import KEPT_SAVES, Origin, SaveReport, SaveRequest


def keeper(
    environment: Mapping[str, str],
    when_idle: Callable[[Callable[[], None]], object],
    computes: Callable[[], bool],
    *,
    for_script: bool,
) -> Keeper:
    """Return the keeper of this rank, as it is at work in a rank; see Keeper.

    Args:
        environment: of the rank, as it started: its number, and how many there are.
        for_script: what the script has is saved, not what cells have.
    """
    rank, world_size = int(environment.get("RANK") or 0), int(environment.get("WORLD_SIZE") or 1)
    told = _ToldNames()
    return Keeper(
        rank,
        world_size,
        connect=forming.connect_to_store,
        prepare=lambda: importlib.import_module("torch.distributed.checkpoint"),
        prefix=_prefix,
        save=lambda wanted: _save(wanted, rank, world_size, told, for_script=for_script),
        when_idle=when_idle,
        computes=computes,
        for_script=for_script,
    )


def _prefix(prefix: str, store: Any) -> Store:
    made: Store = importlib.import_module("torch.distributed").PrefixStore(prefix, store)
    return made


class _ToldNames:
    """The names that the output of a run has told: they are told again when they change, and in the next run."""

    def __init__(self) -> None:
        self._last: tuple[int, tuple[str, ...]] = 0, ()

    def news(self, run: int, names: tuple[str, ...]) -> str:
        """Return how a line begins that tells names; empty if the output of the run has told them."""
        before, self._last = self._last, (run, names)
        return f"{', '.join(names)}: " if names and self._last != before else ""


@dataclass(frozen=True)
class _Saved:
    report: SaveReport
    failed: str
    run: int
    told: _ToldNames

    @property
    def path(self) -> str:
        return self.report.path

    def describe(self) -> str:
        """Return what was saved, in a line."""
        report = self.report
        names = self.told.news(self.run, tuple(part.name for part in report.parts))
        how = f"{size(report.size_bytes)} in {duration(report.duration_s)}"
        if report.background:
            how = f"copied in {duration(report.duration_s)}, being written"
        local = [name for name, why in report.left_out.items() if names and why.startswith(ONLY_LOCAL)]
        not_saved = f"; not saved, because only functions have them: {', '.join(local)}" if local else ""
        return f"{names}{how}{not_saved}{self.failed and f'; {self.failed}'}"


def _save(wanted: Wanted, rank: int, world_size: int, told: _ToldNames, *, for_script: bool) -> _Saved:
    armed, place = wanted.armed, wanted.place
    directory = armed.directory
    if for_script:  # the live ranks beside it save there, too
        directory = os.path.join(directory, f"run-{place.run}")
    objects, of_functions = _objects(wanted, for_script=for_script)
    step = 0 if place.ended else place.steps
    request = SaveRequest(
        directory=directory,
        names=tuple(armed.names),
        keep=armed.keep or KEPT_SAVES,
        background=armed.background and not wanted.request.is_last,
        origin=Origin(armed.reservation, armed.mesh, place.run, reason=wanted.request.why, step=step),
        of_functions=tuple(of_functions),
    )
    secret = f"{armed.secret}/{wanted.number}/{directory}"
    entry.behind.wait()
    failed = entry.behind.take_news() if isinstance(entry.behind.last, MonarchNbError) else ""
    left_out = only_local(objects)
    report = entry.save(request, secret, range(world_size), rank=rank, objects=objects, left_out=left_out)
    return _Saved(report, failed, place.run, told)


def _objects(wanted: Wanted, *, for_script: bool) -> tuple[dict[str, Any], Iterable[str]]:
    """Return what there is to save: what the names of the cells, or of the script, mean, and what their training has
    besides; and the names of the latter."""
    namespace, hidden = (vars(sys.modules["__main__"]), ()) if for_script else entry.cells()
    named = {name: value for name, value in namespace.items() if not name.startswith("_") and name not in hidden}
    found = reached(named, wanted.optimizers, entry.actors_named(wanted.actors))
    return {**named, **found}, list(found)
