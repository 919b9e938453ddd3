"""Amounts of data, as people write and read them. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from monarch_nb.errors import UsageError

_UNITS = ("B", "kB", "MB", "GB", "TB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)", re.IGNORECASE | re.ASCII)


def bytes_of(given: str, what: str) -> int:
    """Return "20GB" or "1.5 TB" in bytes; "0" is none. A number needs a unit: tools differ in what it means.

    Args:
        what: names it in the error, as in "--log-limit".

    Raises:
        UsageError: it can not be read.

    Example:
        >>> bytes_of("1.5 GB", "--log-limit")
        1500000000
    """
    if given.strip() == "0":
        return 0
    if not (match := _TEXT.fullmatch(given.strip())):
        raise UsageError(f"{what} is a size such as 500MB, 20GB or 1.5TB, or 0, not {given!r}")
    power = [unit.lower() for unit in _UNITS].index(match[2].lower())
    return int(float(match[1]) * 10 ** (3 * power) + 0.5)


def size(size_bytes: float) -> str:
    """Return "12 kB", "3.4 MB" or "1.2 GB": powers of 1000, as disks are sold and networks are measured."""
    return _told(size_bytes, 1000, _UNITS)


def binary_size(size_bytes: float) -> str:
    """Return "12 KiB" or "3.4 GiB": powers of 1024, in which torch tells memory.

    Example:
        >>> binary_size(0), binary_size(1536), binary_size(12 * 2**30)
        ('0 B', '1.5 KiB', '12 GiB')
    """
    return _told(size_bytes, 1024, _BINARY_UNITS)


def _told(size_bytes: float, base: int, units: Sequence[str]) -> str:
    value, power = float(size_bytes), 0
    while value >= 999.5 and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.0f} {units[power]}" if value >= 9.95 or not power else f"{value:.1f} {units[power]}"
