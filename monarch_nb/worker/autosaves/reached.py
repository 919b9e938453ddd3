"""What a save finds beside the names of cells or of a script: in the functions that train, and what the optimizer that
steps belongs to. So a training loop in a function, of a script or a cell, is saved without a change.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from monarch_nb.worker.saving import kinds
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
    known = {id(kinds.unwrapped(each)) for each in _states(namespace.values())}

    alone: dict[int, str] = {}

    def add(name: str, value: Any) -> None:
        is_alone = kinds.has_state(value)
        taken = known if is_alone else known - alone.keys()  # `nets.g` is a better name than that of a loop's variable
        new = {id(kinds.unwrapped(each)) for each in kinds.states_in(value)} - taken
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
        if name not in known and name.isidentifier() and name[0] != "_" and kinds.is_plain_or_container(value)
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
    if kinds.has_state(value) or isinstance(value, (type, ModuleType)) or type(value).__module__.startswith("torch"):
        return []
    attributes = getattr(value, "__dict__", None)
    return list(attributes.items()) if type(attributes) is dict else []


def _states(values: Iterable[Any]) -> list[Any]:
    return [each for value in values for each in kinds.states_in(value)]


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
