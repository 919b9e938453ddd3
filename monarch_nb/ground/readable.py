"""Waiting until files can be read, however many a process has open: select() knows none beyond the first 1,024."""

from __future__ import annotations

import selectors
from collections.abc import Iterable
from typing import Any


def readable(files: Iterable[Any], timeout_s: float | None = None) -> list[Any]:
    """Return which of some files can be read, as soon as one can, or none after `timeout_s`.

    Args:
        files: descriptors, or what has one.
        timeout_s: seconds; None to wait for ever.

    Example:
        >>> readable([], 0)
        []
    """
    with selectors.PollSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout_s)]
