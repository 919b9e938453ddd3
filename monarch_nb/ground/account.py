"""Whose process this is."""

from __future__ import annotations

import getpass
import os


def own_name() -> str:
    """Return the name of this process's user; its number where that has none, as in many containers.

    Example:
        >>> own_name()
        'alice'
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # of Python 3.12 and older, of newer ones
        return str(os.getuid())
