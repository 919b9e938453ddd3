"""`save.json`: what is in a save, when and by whom it was made, and a checksum of each of its files.

The file is written last. Everything that is needed to load without us stands in DCP's own `.metadata`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving import places
from monarch_nb.worker.saving.asked import NamedPart, Origin
from monarch_nb.worker.saving.places import MANIFEST, is_save, saves

FORMAT = 1
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SavedFile:
    """A file of a save: its size, and its CRC-32, as `zlib.crc32` computes it."""

    size_bytes: int
    crc32: int


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
        files: by name, all but this one.
        leaves: by key.
    """

    saved_at: float
    ranks: int
    torch: str = ""
    origin: Origin = field(default_factory=Origin)
    parts: tuple[NamedPart, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    files: dict[str, SavedFile] = field(default_factory=dict)
    leaves: dict[str, SavedLeaf] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(each.size_bytes for each in self.files.values())

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
            files={name: SavedFile(**each) for name, each in facts["files"].items()},
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

    return places.prune(directory, keep, is_such)


def _directories(directory: Path) -> list[Path]:
    try:
        return [each for each in directory.iterdir() if each.is_dir()]
    except OSError:
        return []


def damage(directory: Path, name: str, file: SavedFile) -> str:
    """Return what is wrong with a file of a save; empty when it is as it was written."""
    crc, size_bytes = 0, 0
    try:
        with open(directory / name, "rb", buffering=0) as stream:
            while block := stream.read(_BLOCK_BYTES):
                crc, size_bytes = zlib.crc32(block, crc), size_bytes + len(block)
    except OSError as error:
        return f"can not be read: {error.strerror}"
    if size_bytes != file.size_bytes:
        return f"has {size_bytes:,} bytes in place of {file.size_bytes:,}"
    return "" if crc == file.crc32 else "has another checksum than when it was saved"


def damaged(directory: Path, manifest: Manifest) -> list[str]:
    """Return what is wrong with the files of a save, a line each."""
    return [f"{name} {why}" for name, file in manifest.files.items() if (why := damage(directory, name, file))]
