"""Pythons: which of them are the same, how one finds this monarch_nb, and what its template is called."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from monarch_nb import config


def python_identity(python: str) -> tuple[str, ...]:
    """Return what is equal for two paths of the same python.

    A kernel is often started as `python`, a command as `python3.11`: in one directory (an environment knows its
    packages by it) the links to one executable are the same python.
    """
    path = Path(python)
    return (str(path.parent.resolve()), str(path.resolve())) if path.exists() else (python,)


def template_key(python: str, preload: Sequence[str]) -> str:
    """Return the short name of a template: one per python and preload list."""
    return hashlib.sha256("\0".join([*python_identity(python), *preload]).encode()).hexdigest()[:8]


def python_environment() -> dict[str, str]:
    """Return the environment in which any python finds this monarch_nb."""
    source = str(Path(config.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
