"""Which directory is the project, and what it wants: `[tool.monarch_nb]` of its pyproject.toml."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_nb.errors import UsageError
from monarch_nb.lines.templates import FOLDS_BY, FoldBy

MAX_FILE_BYTES = 100_000_000
_MARKS = (".git", "pyproject.toml")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_KNOWN = frozenset(("root", "max-file-size", "reload", "ignore", "fold"))


@dataclass(frozen=True)
class Settings:
    """How one tree is synced, and how cells of its notebooks show output.

    Attributes:
        root: its directory.
        max_file_bytes: bigger files are left out, and named; None for no limit.
        reload: whether ranks reload changed modules.
        ignore: patterns as in .gitignore.
        fold: in what lines of one row may differ; None for what is usual on so many ranks.
    """

    root: Path
    max_file_bytes: int | None = MAX_FILE_BYTES
    reload: bool = True
    ignore: tuple[str, ...] = ()
    fold: FoldBy | None = None


def find_root(directory: Path) -> Path:
    """Return the project's root: the nearest parent with `.git` or `pyproject.toml`, else the directory itself.

    Neither a home directory nor anything above one is a project: a `.git` there keeps dotfiles.
    """
    directory = directory.absolute()
    for parent in (directory, *directory.parents):
        if holds_home(parent):
            break
        if any((parent / mark).exists() for mark in _MARKS):
            return parent
    return directory


def holds_home(directory: Path) -> bool:
    """Return whether a directory is the home directory or above it: too much to be copied to other computers."""
    home = _home()
    return directory == Path(directory.anchor) or (home is not None and home.is_relative_to(directory))


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """Return the directory that a user wants to add.

    Raises:
        UsageError: it is no directory, or holds too much.
    """
    chosen = Path(os.path.abspath(Path(path).expanduser()))
    if not chosen.exists():
        raise UsageError(f"{chosen} does not exist")
    if not chosen.is_dir():
        raise UsageError(f"{chosen} is no directory: add the one that it lies in, {chosen.parent}")
    if chosen == Path(chosen.anchor):
        raise UsageError(f"{chosen} holds all files of this computer: add a directory in it")
    if holds_home(chosen):
        raise UsageError(f"{chosen} holds your home directory, which is never copied whole: add a directory in it")
    return chosen


def check_beside(directory: Path, project: Path) -> None:
    """Refuse a directory that is to be added to a project and holds it, or lies in it.

    Raises:
        UsageError: it does.
    """
    inside, outside = directory.resolve(), project.resolve()
    if inside == outside:
        raise UsageError(f"{directory} is the project, which ranks have already")
    if outside.is_relative_to(inside):
        raise UsageError(f"{directory} holds the project itself ({project}): add a directory beside it")
    if inside.is_relative_to(outside):
        raise UsageError(
            f"{directory} lies in the project, which ranks have already; `!{inside.relative_to(outside)}/` in "
            ".meshignore brings back what .gitignore leaves out"
        )


def read_settings(directory: Path) -> Settings:
    """Return the settings of a project.

    Args:
        directory: its root. Its pyproject.toml may name another: `root`, relative to itself.

    Raises:
        UsageError: pyproject.toml can not be read, or has a setting that is none.
    """
    file = directory / "pyproject.toml"
    try:
        found = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("monarch_nb", {})
    except (FileNotFoundError, NotADirectoryError):
        return Settings(directory)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can not be read: {error}") from error
    if unknown := sorted(set(found) - _KNOWN):
        raise UsageError(f"{file}: [tool.monarch_nb] knows {', '.join(sorted(_KNOWN))}; not {', '.join(unknown)}")
    root = _value(file, found, "root", str, ".")
    reload = _value(file, found, "reload", str, "auto")
    ignore = _value(file, found, "ignore", list, [])
    if reload not in ("auto", "off"):
        raise UsageError(f'{file}: reload is "auto" or "off", not {reload!r}')
    fold = found.get("fold")
    if fold is not None and fold not in FOLDS_BY:
        raise UsageError(f"{file}: fold is one of {', '.join(FOLDS_BY)}, not {fold!r}")
    if not all(isinstance(pattern, str) for pattern in ignore):
        raise UsageError(f"{file}: ignore is a list of patterns as in .gitignore")
    chosen = (directory / Path(root).expanduser()).resolve() if root != "." else directory
    if not chosen.is_dir():
        raise UsageError(f"{file}: root is {root!r}, and {chosen} is no directory")
    try:
        limit = parse_size(found.get("max-file-size", MAX_FILE_BYTES))
    except UsageError as error:
        raise UsageError(f"{file}: max-file-size: {error}") from error
    return Settings(chosen, limit, reload == "auto", tuple(ignore), fold)


def parse_size(text: str | int) -> int:
    """Return a number of bytes.

    Example:
        >>> parse_size("100 MB"), parse_size("1.5GB"), parse_size(512)
        (100000000, 1500000000, 512)

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B?)", str(text).strip(), re.IGNORECASE)
    unit = match[2].upper() if match else "?"
    scale = _UNITS.get(unit if unit.endswith("B") or not unit else unit + "B")
    if match is None or scale is None or isinstance(text, bool):
        raise UsageError(f'{text!r} is no size: write it as "100 MB"')
    return int(float(match[1]) * scale)


def _value(file: Path, found: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = found.get(name, default)
    if not isinstance(value, kind):
        raise UsageError(f"{file}: {name} = {value!r} is no {'text' if kind is str else 'list'}")
    return value


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # no home: then nothing to stop at
        return None
