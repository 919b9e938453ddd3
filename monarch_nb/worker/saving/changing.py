"""How far a load has changed what a rank holds: what is said when it stops in the middle. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_nb.ground.rank_sets import listed

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
