"""Which names are meant, and which are nearest to one that no line has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Ambiguous(LookupError):
    """A name means several; `args` are these."""


def canonical(name: str) -> str:
    """Return a name as it is in `named`: with "_" for blanks.

    Example:
        >>> canonical("train loss")
        'train_loss'
    """
    return "_".join(name.split())


def find(wanted: str, names: Iterable[str]) -> str | None:
    """Return the name that is meant: this one, the same in other letters, or the only one that ends with it after "/".

    Raises:
        Ambiguous: it may be several.

    Example:
        >>> find("loss", ["train/loss", "step"])
        'train/loss'
    """
    names = list(names)
    if wanted in names:
        return wanted
    wanted = canonical(wanted)
    if wanted in names:
        return wanted
    lowered = wanted.lower()
    for alike in (
        [name for name in names if name.lower() == lowered],
        [name for name in names if name.lower().rpartition("/")[2] == lowered],
    ):
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise Ambiguous(*sorted(alike))
    return None


def nearest(wanted: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that are most like one that is not there.

    Example:
        >>> nearest("los", ["loss", "lr", "grad_norm"])
        ['loss']
    """
    by_lower = {name.lower(): name for name in names}
    lowered = canonical(wanted).lower()
    near = difflib.get_close_matches(lowered, by_lower, most, 0.5)
    near += [each for each in by_lower if lowered in each and each not in near]
    return [by_lower[each] for each in near[:most]]
