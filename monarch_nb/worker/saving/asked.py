"""What is asked of the ranks that save or load, and what they report. The client reads it, so it needs no torch."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from monarch_nb.config import patience
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.sizes import size
from monarch_nb.times import duration

KEPT_SAVES = 3
OF_CELLS = "the notebook's cells make it again"
"""Why functions, classes, modules and open files are not saved."""
TIMEOUT_S = patience(20.0)
"""How long a rank may take until it takes part, and may be silent meanwhile."""


class _Told:
    """A dataclass that travels as JSON; what a newer version says besides is left out."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls.from_facts(json.loads(text))

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        known = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
        made = {name: value for name, value in facts.items() if name in known}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in made.items()})


@dataclass(frozen=True)
class Origin(_Told):
    """Whose save it is, for `%mesh saves`.

    Attributes:
        reservation, mesh: names. run: the number of the run that saved; 0 when it is not known. cell: that of the cell.
        reason: why it was saved, when nobody typed it: "every 10m". actors: the name of those whose attributes it has.
        step: after which step of the run, as the run counts them; 0 when it was saved between runs, or by hand.
    """

    reservation: str = ""
    mesh: str = ""
    run: int = 0
    cell: int = 0
    reason: str = ""
    actors: str = ""
    step: int = 0


@dataclass(frozen=True)
class SaveRequest(_Told):
    """A save.

    Attributes:
        directory: an absolute path. The save becomes a directory in it.
        names: what to save, of what there is; empty for all that can be saved.
        keep: how many of the newest saves of the directory stay.
        background: return when the state is copied in memory, and write in a thread.
        scattered: `directory` is another one on each node, and becomes the save itself, in parts: somebody brings them
            together.
        origin: whose save it is.
        timeout_s: how long a rank may be silent.
        strict: refuse, too, when only some ranks have a name.
        of_functions: the names, on this rank, of what only functions and actors hold that train.
    """

    directory: str
    names: tuple[str, ...] = ()
    keep: int = KEPT_SAVES
    background: bool = False
    scattered: bool = False
    origin: Origin = field(default_factory=Origin)
    timeout_s: float = TIMEOUT_S
    strict: bool = False
    of_functions: tuple[str, ...] = ()

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        return super().from_facts({**facts, "origin": Origin.from_facts(facts.get("origin") or {})})


@dataclass(frozen=True)
class LoadRequest(_Told):
    """A load.

    Attributes:
        directory: an absolute path: of a save, or of a directory of saves, of which the newest is meant.
        names: what to load, of what was saved; empty for all.
        strict: refuse, too, when something would be left out.
        timeout_s: how long a rank may be silent.
    """

    directory: str
    names: tuple[str, ...] = ()
    strict: bool = False
    timeout_s: float = TIMEOUT_S


@dataclass(frozen=True)
class NamedPart(_Told):
    """What a save has of one name.

    Attributes:
        name: the name. kind: "state", "tensor", "value" or "random states".
        type: the name of its class. size_bytes: of what was written of it, by all ranks together.
        by_rank: whether a part of it differs by rank.
        of_function: whether a function or an actor held it that trained, and no name of the cells.
    """

    name: str
    kind: str
    type: str = ""
    size_bytes: int = 0
    by_rank: bool = False
    of_function: bool = False


@dataclass(frozen=True, repr=False)
class SaveReport(_Told):
    """What a save did.

    Attributes:
        path: of the save. size_bytes: of its files. duration_s: of all of it; until it was staged, in the background.
        ranks: how many saved.
        parts: what was saved, by name.
        left_out: why a name was not saved, by name.
        removed: the paths of older saves that are gone.
        background: whether it is still being written.
        notes: more to be said, a sentence each.
    """

    path: str
    size_bytes: int = 0
    duration_s: float = 0.0
    ranks: int = 1
    parts: tuple[NamedPart, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    background: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What was saved, and what not: lines for people."""
        by_rank = [part.name for part in self.parts if part.by_rank and part.kind != "random states"]
        names = ", ".join(part.name for part in self.parts)
        what = f"{names} of {counted(self.ranks, 'rank')}"
        if self.background:
            head = f"saving into {near(self.path)} in the background: staged in {duration(self.duration_s)}"
        else:
            head = f"saved {what}: {size(self.size_bytes)} in {duration(self.duration_s)}, in {near(self.path)}"
        lines = [head]
        if by_rank:
            lines.append(f"different by rank, and kept by rank: {', '.join(by_rank)}")
        lines += left_out_lines(self.left_out, "not saved")
        if self.removed:
            lines.append(f"removed {counted(len(self.removed), 'older save')} (--keep)")
        return "\n".join([*lines, *self.notes])

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        return super().from_facts({**facts, "parts": [NamedPart.from_facts(each) for each in facts.get("parts", ())]})


@dataclass(frozen=True, repr=False)
class LoadReport(_Told):
    """What a load did.

    Attributes:
        path: of the save. size_bytes: of what was read. duration_s: of all of it.
        ranks: how many loaded. saved_ranks: how many had saved.
        names: what was loaded.
        left_out: why a name of the save was not loaded, by name.
    """

    path: str
    size_bytes: int = 0
    duration_s: float = 0.0
    ranks: int = 1
    saved_ranks: int = 1
    names: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """What was loaded, and what not: lines for people."""
        of = "" if self.saved_ranks == self.ranks else f", saved by {counted(self.saved_ranks, 'rank')}"
        what = f"{', '.join(self.names) or 'nothing'} into {counted(self.ranks, 'rank')}{of}"
        much = size(self.size_bytes) if self.size_bytes else "plain values"
        head = f"loaded {what}: {much} in {duration(self.duration_s)}, from {near(self.path)}"
        return "\n".join([head, *left_out_lines(self.left_out, "not loaded")])


def left_out_lines(left_out: Mapping[str, str], what: str) -> list[str]:
    """Return why names were left out, those of one reason in a line; at the end those that cells make again. Pure.

    Example:
        >>> left_out_lines({"f": f"a function: {OF_CELLS}", "a": "a set", "b": "a set"}, "not saved")
        ['not saved: a, b (a set)', "left to the notebook's cells: f"]
    """
    names: dict[str, list[str]] = {}
    of_cells = [name for name, why in left_out.items() if OF_CELLS in why]
    for name, why in left_out.items():
        if name not in of_cells:
            names.setdefault(why, []).append(name)
    lines = [f"{what}: {', '.join(those)} ({why})" for why, those in names.items()]
    return [*lines, f"left to the notebook's cells: {listed(of_cells)}"] if of_cells else lines


def near(path: str) -> str:
    """Return how people name a path from the directory where this process works: the whole path, if it is not below.

    Example:
        >>> near("/data/me/a/0001"), near(os.path.abspath("checkpoints/a/0001"))
        ('/data/me/a/0001', 'checkpoints/a/0001')
    """
    try:
        below = os.path.relpath(path)
    except OSError:  # somebody has removed the directory
        return path
    return path if below.startswith(os.pardir) else below


# ---- how far a load has changed what a rank holds: what is said when it stops in the middle


STOPPED = "the load stopped in the middle: "
"""How the line begins that an interrupted rank prints."""
AGAIN = "load again"
UNCHANGED = "nothing has changed"
NOT_KNOWN = f"what is loaded is not known; {AGAIN}"
"""Of a rank that did not say how far it was: its silence tells nothing."""


class Change:
    """The second phase of a load, on one rank.

    Attributes:
        began: whether anything can have changed.

    Example:
        >>> change = Change()
        >>> change.begin(["model", "step"], in_place=["model"])
        >>> change.describe()
        'model may be half loaded; step is as before; load again'
    """

    def __init__(self) -> None:
        self.began = False
        self._names: list[str] = []
        self._half: set[str] = set()
        self._loaded: set[str] = set()

    def begin(self, names: Iterable[str], in_place: Iterable[str]) -> None:
        """Reading begins.

        Args:
            names: all that are loaded. in_place: those whose tensors are read into.
        """
        self.began, self._names, self._half = True, list(names), set(in_place)

    def apply(self, name: str) -> None:
        """A name gets its state."""
        self._half.add(name)

    def applied(self, name: str) -> None:
        """A name has its state."""
        self._half.discard(name)
        self._loaded.add(name)

    def describe(self) -> str:
        """Return what each name holds, and what to do."""
        if not self.began:
            return UNCHANGED
        half = [name for name in self._names if name in self._half]
        loaded = [name for name in self._names if name in self._loaded]
        before = [name for name in self._names if name not in self._half | self._loaded]
        said = [f"{listed(half)} may be half loaded"] if half else []
        said += [f"{listed(loaded)} {_is(loaded)} loaded"] if loaded else []
        said += [f"{listed(before)} {_is(before)} as before"] if before else []
        return "; ".join([*said, AGAIN])


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
