"""The directories of saves, `checkpoints/a/0001`, `checkpoints/a/0002`, …, and `save.json` in each: what is in a save,
when and by whom it was made, and how large its files are.

A save is written into a hidden directory beside the others, `checkpoints/a/.saving-NAME`, and renamed when all of it
is on disk. Whatever happens before leaves the others as they were. Older ones are removed the same way: hidden first.

`save.json` is written last. Everything that is needed to load without us stands in DCP's own `.metadata`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.config import gap
from monarch_nb.errors import SaveError
from monarch_nb.worker.saving.asked import NamedPart, Origin

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


def prune_among(directory: Path, keep: int, among: Callable[[Path], bool] = lambda _: True) -> list[Path]:
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


FORMAT = 1


@dataclass(frozen=True)
class SavedLeaf:
    """A value of a save, under its key.

    Attributes:
        name: the name that it belongs to.
        path: from the name to it: keys of mappings as ["key", k], places in lists as ["at", n].
        by_rank: the places, among the ranks that saved, of those that have one of their own; empty when one is for all.
        in_parts: whether each rank has a part of it (DTensor).
        device: the kind of device that it was on, as "cuda"; empty for what is no tensor.
    """

    name: str
    path: tuple[tuple[str, Any], ...] = ()
    by_rank: tuple[int, ...] = ()
    in_parts: bool = False
    device: str = ""


@dataclass(frozen=True)
class Manifest:
    """What is in a save.

    Attributes:
        saved_at: seconds since the epoch. ranks: how many saved. torch: its version.
        aliases: other names of the ranks for an object that was saved under one.
        left_out: why a name was not saved.
        files: their sizes in bytes, by name, of all but this one.
        leaves: by key.
    """

    saved_at: float
    ranks: int
    torch: str = ""
    origin: Origin = field(default_factory=Origin)
    parts: tuple[NamedPart, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, SavedLeaf] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(self.files.values())

    def summary(self) -> dict[str, Any]:
        """Return what people want to know of it, as JSON can hold it."""
        return {
            "saved_at": self.saved_at,
            "ranks": self.ranks,
            "size_bytes": self.size_bytes,
            "origin": dataclasses.asdict(self.origin),
            "parts": [dataclasses.asdict(part) for part in self.parts],
        }

    def write(self, directory: Path) -> None:
        """Write it, and wait until it is on disk."""
        facts = {"format": FORMAT, **dataclasses.asdict(self)}
        descriptor = os.open(directory / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Return the manifest of a save.

        Raises:
            SaveError: it can not be read, or is of a newer version.
        """
        try:
            facts = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            if facts["format"] > FORMAT:
                raise SaveError(f"{directory} was saved by a newer monarch_nb, which this one can not read")
            return cls._of(facts)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SaveError(f"{directory / MANIFEST} can not be read: {error}") from error

    @classmethod
    def _of(cls, facts: Mapping[str, Any]) -> Manifest:
        return cls(
            saved_at=facts["saved_at"],
            ranks=facts["ranks"],
            torch=facts.get("torch", ""),
            origin=Origin.from_facts(facts.get("origin") or {}),
            parts=tuple(NamedPart.from_facts(each) for each in facts["parts"]),
            aliases=facts.get("aliases", {}),
            left_out=facts.get("left_out", {}),
            files=facts["files"],
            leaves={
                key: SavedLeaf(
                    each["name"],
                    tuple((kind, step) for kind, step in each["path"]),
                    tuple(each["by_rank"]),
                    each["in_parts"],
                    each.get("device", ""),
                )
                for key, each in facts["leaves"].items()
            },
        )


def found(directory: Path) -> list[tuple[Path, Manifest]]:
    """Return the saves in a directory, and in its directories, newest first."""
    there = [directory] if is_save(directory) else []
    for each in [directory, *(below for below in _directories(directory) if not below.name.startswith("."))]:
        there += saves(each)
    manifests = []
    for place in there:
        try:
            manifests.append((place, Manifest.read(place)))
        except SaveError:
            continue  # it was removed meanwhile, or is of a newer version
    return sorted(manifests, key=lambda pair: pair[1].saved_at, reverse=True)


def prune(directory: Path, keep: int, *, by_hand: bool) -> list[Path]:
    """Remove all but the newest saves of a directory, of those that people made or of those that ranks made by
    themselves; return those that are gone."""

    def is_such(place: Path) -> bool:
        try:
            return bool(Manifest.read(place).origin.reason) != by_hand
        except SaveError:  # of a newer version
            return False

    return prune_among(directory, keep, is_such)


def _directories(directory: Path) -> list[Path]:
    try:
        return [each for each in directory.iterdir() if each.is_dir()]
    except OSError:
        return []


def damage(directory: Path, manifest: Manifest) -> dict[str, str]:
    """Return which files of a save are not as large as they were, by name, and why."""
    return {
        name: why for name, size_bytes in manifest.files.items() if (why := _damage_of(directory / name, size_bytes))
    }


def _damage_of(path: Path, size_bytes: int) -> str:
    try:
        now_bytes = path.stat().st_size
    except OSError as error:
        return f"can not be read: {error.strerror}"
    return "" if now_bytes == size_bytes else f"has {now_bytes:,} bytes in place of {size_bytes:,}"
