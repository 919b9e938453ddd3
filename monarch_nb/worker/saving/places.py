"""The directories of saves: `checkpoints/a/0001`, `checkpoints/a/0002`, …

A save is written into a hidden directory beside the others, `checkpoints/a/.saving-NAME`, and renamed when all of it is
on disk. Whatever happens before leaves the others as they were. Older ones are removed the same way: hidden first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from monarch_nb.config import gap
from monarch_nb.errors import SaveError

MANIFEST = "save.json"
_HIDDEN, _REMOVED = ".saving-", ".removing-"
_NUMBER = re.compile(r"\d{4,}")
_LEFT_AFTER_S = gap(600.0)
"""A hidden directory of another mesh in which nothing was written for so long is left over."""
_TRIES = 100


def begin(directory: Path, name: str, mesh: str) -> Path:
    """Make the hidden directory of a save and return it; remove what saves that were cut short have left.

    Args:
        directory: of the saves. name: of this save, new. mesh: the id of the mesh, which has one save at a time.

    Raises:
        SaveError: it can not be made.
    """
    hidden = directory / f"{_HIDDEN}{mesh}-{name}"
    try:
        _make_private(directory)
        hidden.mkdir(0o700)
        remove_left_over(directory, mesh, hidden)
    except OSError as error:
        raise SaveError(f"can not save in {directory}: {error.strerror}") from error
    return hidden


def begin_part(directory: Path) -> Path:
    """Make the directory of a node's part of a save, which all of its ranks do.

    Raises:
        SaveError: it can not be made, or is another user's.
    """
    try:
        directory.mkdir(0o700, exist_ok=True)
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            raise SaveError(f"{directory} is another user's")
    except OSError as error:
        raise SaveError(f"can not save in {directory}: {error.strerror}") from error
    return directory


def commit(hidden: Path) -> Path:
    """Rename a save that is whole; return its place. It is there when this returns, also after a power cut."""
    sync_directory(hidden)
    directory = hidden.parent
    number = max((int(each.name) for each in saves(directory, whole=False)), default=0)
    for _ in range(_TRIES):
        number += 1
        place = directory / f"{number:04d}"
        try:
            hidden.rename(place)  # fails where one of another mesh was faster: a save is no empty directory
        except OSError:
            if not place.exists():
                raise
        else:
            sync_directory(directory)
            return place
    raise SaveError(f"can not name the save in {directory}: others take all the numbers")


def prune(directory: Path, keep: int, among: Callable[[Path], bool] = lambda _: True) -> list[Path]:
    """Remove all but the newest saves of a directory; return those that are gone.

    Args:
        among: whether a save is one of those that are counted and removed.
    """
    old = list(filter(among, saves(directory)))[: -max(keep, 1)]
    removed = []
    for each in old:
        hidden = directory / f"{_REMOVED}{each.name}"
        try:
            each.rename(hidden)
        except OSError:
            continue  # another mesh removes it, or may not
        removed.append(each)
        shutil.rmtree(hidden, ignore_errors=True)
    return removed


def saves(directory: Path, *, whole: bool = True) -> list[Path]:
    """Return the saves of a directory, oldest first.

    Args:
        whole: only directories with a manifest. Others are no saves of ours.
    """
    try:
        found = [each for each in directory.iterdir() if _NUMBER.fullmatch(each.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((each for each in found if not whole or is_save(each)), key=lambda each: int(each.name))


def unfinished(directory: Path) -> list[Path]:
    """Return the hidden directories of saves that are being written, or were cut short."""
    return sorted(directory.glob(f"{_HIDDEN}*"))


def is_save(path: Path) -> bool:
    """Return whether a directory is a save that is whole."""
    return (path / MANIFEST).is_file() and not path.name.startswith((_HIDDEN, _REMOVED))


def find(path: Path) -> Path:
    """Return the save that a path names: itself, or the newest in it.

    Raises:
        SaveError: there is none.
    """
    if is_save(path):
        return path
    if inside := saves(path):
        return inside[-1]
    if not path.exists():
        raise SaveError(f"no save to load: there is no {path}")
    below = sorted({each.parent.parent.name for each in path.glob(f"*/*/{MANIFEST}")})
    hint = f"; there are saves in {', '.join(str(path / name) for name in below)}" if below else ""
    raise SaveError(f"no save to load in {path}{hint}")


def remove_left_over(directory: Path, mesh: str, own: Path) -> None:
    """Remove hidden directories that nobody writes any more: those of this mesh, and others that are old by the clock
    of the file system."""
    now = own.stat().st_mtime
    for each in directory.iterdir():
        if each == own or not each.name.startswith((_HIDDEN, _REMOVED)):
            continue
        of_mesh = each.name.startswith(f"{_HIDDEN}{mesh}-")
        if of_mesh or each.name.startswith(_REMOVED) or now - _touched(each) > _LEFT_AFTER_S:
            shutil.rmtree(each, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put(path: str, data: bytes) -> None:
    """Write a file that only this user can read. Nodes of one machine may write it at the same time."""
    own = f"{path}.{os.getpid()}"
    with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.rename(own, path)


def _make_private(directory: Path) -> None:
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(0o700, exist_ok=True)


def _touched(directory: Path) -> float:
    """When something was last written in a directory."""
    times = [0.0]
    for each in (directory, *directory.glob("*")):
        try:
            times.append(each.stat().st_mtime)
        except OSError:
            continue
    return max(times)


def near(path: str) -> str:
    """Return how people name a path from the directory where this process works: the whole path, if it is not below.

    Example:
        >>> near("/data/me/a/0001"), near(os.path.abspath("checkpoints/a/0001"))
        ('/data/me/a/0001', 'checkpoints/a/0001')
    """
    try:
        below = os.path.relpath(path)
    except OSError:  # somebody has removed the directory
        return path
    return path if below.startswith(os.pardir) else below
