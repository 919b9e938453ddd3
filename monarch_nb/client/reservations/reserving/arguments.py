"""What `reserve` is given, read and checked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from monarch_nb.client.files.project import find_root, read_settings
from monarch_nb.client.pools.facts.choosing import Shape
from monarch_nb.config import SHARED_VARIABLE
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
        raise UsageError(f"{name!r} is no name for a reservation: words that begin with - are flags")
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


def environment_option(chosen: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return what `--env NAME[=VALUE]` adds: a name without a value takes the client's.

    Raises:
        UsageError: what no process can have.
    """
    environment = {}
    for name, value in (chosen or {}).items():
        text = os.environ.get(name) if value is None else value
        if not name or "=" in name:
            raise UsageError(f"env: no variable can be called {name!r}")
        if not isinstance(text, str | None):
            raise UsageError(f"env: {name} is {text!r}, which is no string: {{{name!r}: {str(text)!r}}} is")
        if "\0" in name + (text or ""):
            raise UsageError(f"env: {name!r} has a zero byte, which no variable can have")
        if text is not None:
            environment[name] = text
    return environment


def shared_option(directory: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return what `--shared DIR` adds to the ranks' environment; a relative one is this process's."""
    return {} if directory is None else {SHARED_VARIABLE: str(Path(directory).expanduser().absolute())}


def working_directory(directory: str | os.PathLike[str] | None, notebook: str | None) -> str:
    """Return where ranks start: as asked, else the notebook's directory, else the current one."""
    if directory is not None:
        return str(Path(directory).expanduser().absolute())
    with contextlib.suppress(OSError):
        if notebook and Path(notebook).is_file():
            return str(Path(notebook).absolute().parent)
    return os.getcwd()
