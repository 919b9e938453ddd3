"""Units of numbers with names: which of them say the same in other sizes."""

from __future__ import annotations

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0}
_SECONDS |= {"second": 1.0, "seconds": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1.0, "bytes": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DIMENSIONS = (_SECONDS, _BYTES)


def factor(unit: str, other: str) -> float | None:
    """Return by what a number of one unit is multiplied to be one of another; None when they can not be compared.

    Example:
        >>> factor("s", "ms")
        1000.0
    """
    if unit == other:
        return 1.0
    for sizes in _DIMENSIONS:
        if unit in sizes and other in sizes:
            return sizes[unit] / sizes[other]
    return None
