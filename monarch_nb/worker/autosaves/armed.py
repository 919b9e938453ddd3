"""What the saves that a rank makes by itself have of the rest of a rank: the store, the objects, and the save.

Beside the names of cells or of a script, that is what the functions hold that train, and what the optimizer that steps
belongs to (`reached`). So a training loop in a function, of a script or a cell, is saved without a change.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from monarch_nb.errors import MonarchNbError
from monarch_nb.sizes import size
from monarch_nb.times import duration
from monarch_nb.worker.autosaves.keeper import Keeper, Wanted
from monarch_nb.worker.groups import forming
from monarch_nb.worker.groups.rendezvous import Store
from monarch_nb.worker.saving import entry
from monarch_nb.worker.saving.asked import KEPT_SAVES, Origin, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import has_state, is_plain_or_container, states_in, unwrapped
from monarch_nb.worker.user_code import is_library

ONLY_LOCAL = "only a local variable of a function"
"""Why what `only_local` finds is not saved."""


def reached(namespace: Mapping[str, Any], optimizers: Iterable[Any], actors: Iterable[Any] = ()) -> dict[str, Any]:
    """Return what has a state, or holds such objects, by name, and is not in a namespace: locals of the functions that
    execute on this thread, and attributes of these; attributes of actors; the optimizers; and the modules that have
    their parameters. Call it below the loop: where it calls a module that trains, or an optimizer.

    Names are those by which the user's code calls them, of the innermost function first; what has none is "optimizer"
    or "model", with a number from the second on.
    """
    found: dict[str, Any] = {}
    known = {id(unwrapped(each)) for each in _states(namespace.values())}

    alone: dict[int, str] = {}

    def add(name: str, value: Any) -> None:
        is_alone = has_state(value)
        taken = known if is_alone else known - alone.keys()  # `nets.g` is a better name than that of a loop's variable
        new = {id(unwrapped(each)) for each in states_in(value)} - taken
        if not new:
            return
        for each in new & alone.keys():
            del found[alone.pop(each)]
        free = _free(name, {**namespace, **found})
        found[free] = value
        known.update(new)
        alone.update(dict.fromkeys(new, free) if is_alone else {})

    for frame in _users_frames():
        for name, value in list(frame.f_locals.items()):
            add(name, value)
        for value in list(frame.f_locals.values()):
            for name, attribute in _attributes(value):
                add(name, attribute)
    for actor in actors:
        for name, attribute in _attributes(actor):
            add(name, attribute)
    for optimizer in optimizers:
        add("optimizer", optimizer)
        for module in _modules_of(optimizer, _states([*namespace.values(), *found.values()])):
            add("model", module)
    return found


def only_local(known: Container[str]) -> dict[str, str]:
    """Return the plain values, containers and tensors that are only local variables of functions on this thread, by
    name, with why they are not saved. Call it where `reached` is called.

    Args:
        known: names that are saved, or that mean something else beside the functions.
    """
    return {
        name: ONLY_LOCAL
        for frame in _users_frames()
        for name, value in list(frame.f_locals.items())
        if name not in known and name.isidentifier() and name[0] != "_" and is_plain_or_container(value)
    }


def _users_frames() -> Iterator[FrameType]:
    """Yield the frames of the user's functions on this thread, innermost first: not those of modules and cells."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if not is_library(file) and not file.startswith("<frozen ") and name != "<module>":  # runpy's are frozen
            yield frame
        frame = frame.f_back


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object that a program has made to hold things, such as a trainer."""
    if has_state(value) or isinstance(value, (type, ModuleType)) or type(value).__module__.startswith("torch"):
        return []
    attributes = getattr(value, "__dict__", None)
    return list(attributes.items()) if type(attributes) is dict else []


def _states(values: Iterable[Any]) -> list[Any]:
    return [each for value in values for each in states_in(value)]


def _free(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _modules_of(optimizer: Any, known: Iterable[Any]) -> list[Any]:
    """Return the outermost modules that have parameters of an optimizer; none where a known one has."""
    module: Any = sys.modules["torch"].nn.Module
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def has_some(candidate: Any) -> bool:
        return any(id(parameter) in wanted for parameter in candidate.parameters())

    if any(issubclass(type(value), module) and has_some(value) for value in known):
        return []
    candidates = [each for each in gc.get_objects() if issubclass(type(each), module) and has_some(each)]
    inner = {id(child) for each in candidates for child in each.children()}
    return [each for each in candidates if id(each) not in inner]


def keeper(
    environment: Mapping[str, str],
    when_idle: Callable[[Callable[[], None]], object],
    between_runs: Callable[[Callable[[], None]], None],
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
        between_runs=between_runs,
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
class Saved:
    """What came of a save."""

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


def _save(wanted: Wanted, rank: int, world_size: int, told: _ToldNames, *, for_script: bool) -> Saved:
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
    return Saved(report, failed, place.run, told)


def _objects(wanted: Wanted, *, for_script: bool) -> tuple[dict[str, Any], Iterable[str]]:
    """Return what there is to save: what the names of the cells, or of the script, mean, and what their training has
    besides; and the names of the latter."""
    namespace, hidden = (vars(sys.modules["__main__"]), ()) if for_script else entry.cells()
    named = {name: value for name, value in namespace.items() if not name.startswith("_") and name not in hidden}
    found = reached(named, wanted.optimizers, entry.actors_named(wanted.actors))
    return {**named, **found}, list(found)
