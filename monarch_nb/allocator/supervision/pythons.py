"""Pythons: which of them are the same, how one finds this monarch_nb, and what its template is called."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_nb import config

_NO_MODULE = re.compile(r"No module named '?([\w.]+)")


def python_identity(python: str) -> tuple[str, ...]:
    """Return what is equal for two paths of the same python.

    A kernel is often started as `python`, a command as `python3.11`: in one directory (an environment knows its
    packages by it) the links to one executable are the same python.
    """
    path = Path(python)
    return (str(path.parent.resolve()), str(path.resolve())) if path.exists() else (python,)


def template_key(python: str, preload: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the short name of a template: one per python, preload list, and environment when it starts."""
    own = [f"{name}={value}" for name, value in sorted(environment.items())]
    return hashlib.sha256("\0".join([*python_identity(python), *preload, *own]).encode()).hexdigest()[:8]


def what_is_wrong(python: str, said: str) -> str:
    """Return what is wrong with a python whose template did not start, to be said behind that; empty when unknown.

    Args:
        said: the last that it has written.

    Example:
        >>> what_is_wrong("/bin/cat", "/bin/cat: invalid option -- 'm'")
        ': is it a Python?'
    """
    if missing := _NO_MODULE.findall(said):
        return f": it has no {missing[-1]}, which ranks need: {python} -m pip install monarch_nb=={config.VERSION}"
    return "" if "Traceback (most recent call last)" in said else ": is it a Python?"


def python_environment() -> dict[str, str]:
    """Return the environment in which any python finds this monarch_nb."""
    source = str(Path(config.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
