"""What `reserve` is given, read and checked."""

from __future__ import annotations

import os
from pathlib import Path

from monarch_nb.client.files.project import find_root, read_settings
from monarch_nb.client.pools.choosing import Shape
from monarch_nb.errors import UsageError
from monarch_nb.times import Duration, seconds_of


def project_of(start: str, files: str | os.PathLike[str] | bool, reload: bool | None) -> tuple[str, bool]:
    """Return the directory whose files ranks work with ("" for none), and whether they reload what changed."""
    if not os.path.isdir(start):
        raise UsageError(f"there is no directory {start} for ranks to start in")
    settings = read_settings(find_root(Path(start)) if isinstance(files, bool) else Path(files).expanduser().absolute())
    if not settings.root.is_dir():
        raise UsageError(f"--files {settings.root}: there is no such directory")
    return str(settings.root) if files is not False else "", settings.reload if reload is None else reload


def limit_of(given: Duration | None, what: str) -> float:
    """Return seconds, 0 when nothing is given."""
    return 0.0 if given is None else seconds_of(given, what)


def checked_name(name: str) -> str:
    """Return the name, or raise UsageError when it is none for a reservation."""
    if name.startswith("-"):
        raise UsageError(f"{name!r} is no name for a reservation: what begins with a - is a flag")
    if not name or len(name) > 64 or any(each in "/\\\0" or each.isspace() for each in name):
        raise UsageError(f"{name!r} is no name for a reservation: at most 64 characters, no spaces or slashes")
    return name


def checked_shape(nodes: int, procs: int | None, gpus: int | None) -> Shape:
    """Return what each node is to have, or raise UsageError."""
    for option, value in (("nodes", nodes), ("procs", procs), ("gpus", gpus)):
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{option} must be a whole number of at least 1, not {value!r}")
    if (procs is None) == (gpus is None):
        raise UsageError("ask for procs=N (CPU ranks) or gpus=N, per node: exactly one of them")
    return Shape(nodes, procs or 0, gpus or 0)
