"""Numbers that have a name beside them in a line that somebody printed. Pure."""

from __future__ import annotations

import re

from monarch_nb.ground import escapes

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NAMED = re.compile(
    rf"""(?P<name>[A-Za-z_][\w./-]*)["']?(?:\s*[:=]\s*|\s+)(?P<number>[+-]?(?:{_DIGITS}|nan\b|inf\b))(?!\w|[.,]\d)"""
)


def numbers_in(line: str) -> dict[str, float]:
    """Return the numbers that a line names, by name; of several with one name the last.

    A number with a decimal comma is left out: nobody can tell what it means.

    Example:
        >>> numbers_in("step: 5  loss=2.31 'tokens': 12,345")
        {'step': 5.0, 'loss': 2.31, 'tokens': 12345.0}
    """
    found = _NAMED.finditer(escapes.strip(line))
    return {match["name"]: float(match["number"].replace(",", "").replace("_", "")) for match in found}
