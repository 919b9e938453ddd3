"""Bringing files back from a node: checkpoints, traces, whatever ranks wrote."""

from __future__ import annotations

import fnmatch
import glob
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from monarch_nb.client.connections.connection import Connection
from monarch_nb.config import patience
from monarch_nb.errors import FilesError
from monarch_nb.files.tree import check_path, printable
from monarch_nb.proto import files_pb2 as pb


@dataclass(frozen=True)
class FileInfo:
    """A name on a node. `kind` is "file", "directory", "link" or "other"; `modified_at` is seconds since the epoch."""

    path: str
    kind: str
    size_bytes: int
    modified_at: float


@dataclass
class FetchReport:
    """What was brought: to `path` on this computer."""

    path: Path
    files: int = 0
    size_bytes: int = 0
    total_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: FetchReport) -> FetchReport:
        return FetchReport(
            self.path,
            self.files + other.files,
            self.size_bytes + other.size_bytes,
            self.total_bytes + other.total_bytes,
            self.seconds + other.seconds,
        )


Progress = Callable[[FetchReport], None]

_KINDS = {
    pb.TreeEntry.KIND_FILE: "file",
    pb.TreeEntry.KIND_DIRECTORY: "directory",
    pb.TreeEntry.KIND_SYMLINK: "link",
}


async def list_files(
    connection: Connection, reservation_id: str, rank: int, path: str, *, recursive: bool = False
) -> pb.ListFilesReply:
    """Return what lies at a path on a rank's node; relative ones start in the rank's directory."""
    request = pb.ListFilesRequest(reservation_id=reservation_id, rank=rank, path=os.fsencode(path), recursive=recursive)
    reply: pb.ListFilesReply = await connection.unary("ListFiles", request, patience(120.0))
    return reply


async def expand(connection: Connection, reservation_id: str, rank: int, pattern: str) -> list[str]:
    """Return the paths on a rank's node that match a pattern as a shell's; what is no pattern, or the name of a file
    that has such characters, itself.

    Raises:
        FilesError: nothing matches.
    """
    if not glob.has_magic(pattern):
        return [pattern]

    async def listed(path: str) -> pb.ListFilesReply | None:
        try:
            return await list_files(connection, reservation_id, rank, path)
        except FilesError:  # it is not there, or can not be read
            return None

    if await listed(pattern):
        return [pattern]
    found = ["/" if pattern.startswith("/") else ""]
    for part in pattern.strip("/").split("/"):
        if not glob.has_magic(part):
            found = [os.path.join(path, part) for path in found]
            continue
        names: list[str] = []
        for path in found:
            listing = await listed(path or ".")
            for entry in listing.entries if listing and not listing.is_file else ():
                name = os.fsdecode(entry.path)
                if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
                    names.append(os.path.join(path, name))
        found = names
    if not glob.has_magic(pattern.rstrip("/").rpartition("/")[2]):  # its last part was only put together
        found = [path for path in found if await listed(path)]
    if not found:
        raise FilesError(f"{connection.name}: nothing matches {pattern}", connection.name)
    return found


def file_info(entry: pb.TreeEntry) -> FileInfo:
    """Return an entry as callers see it."""
    return FileInfo(printable(entry.path), _KINDS.get(entry.kind, "other"), entry.size_bytes, entry.modified_ns / 1e9)


async def fetch(
    connection: Connection,
    reservation_id: str,
    rank: int,
    path: str,
    target: Path,
    *,
    into: bool = False,
    overwrite: bool,
    progress: Progress,
) -> FetchReport:
    """Bring a file or a directory to `target`. Each file appears there when it is whole.

    Args:
        into: `target` is a directory to bring it into; so it is also for a file when that directory exists.

    Raises:
        FilesError: it does not exist, or something else is at `target`.
    """
    began = time.monotonic()
    listing = await list_files(connection, reservation_id, rank, path, recursive=True)
    entries, is_file = listing.entries, listing.is_file
    target = _place(target, path, into=into, is_file=listing.is_file)
    report = FetchReport(target, total_bytes=sum(entry.size_bytes for entry in entries))
    places = {entry.path: target if is_file else target / _below(entry) for entry in entries}
    if not overwrite:
        _refuse_others(places, entries)
    for entry in entries:
        place = places[entry.path]
        try:
            _make_room(entry, place)
            if entry.kind == pb.TreeEntry.KIND_FILE:
                request = pb.ReadFileRequest(path=os.path.join(listing.directory, entry.path))
                await _write(connection.stream("ReadFile", request), place, entry, report, progress)
                report.files += 1
        except OSError as error:
            raise FilesError(f"{place} can not be written: {error.strerror}") from error
    report.seconds = time.monotonic() - began
    return report


async def fetch_matching(
    connection: Connection,
    reservation_id: str,
    rank: int,
    path: str,
    *,
    to: str | None,
    overwrite: bool,
    progress: Progress,
) -> FetchReport:
    """Bring what a path names, or all that match a pattern: see `Reservation.fetch`."""

    async def bring(path: str, target: Path, into: bool) -> FetchReport:
        return await fetch(
            connection, reservation_id, rank, path, target, into=into, overwrite=overwrite, progress=progress
        )

    found = await expand(connection, reservation_id, rank, path)
    as_there = to is None and is_below(path)
    if found == [path]:
        here = Path(to) if to is not None else Path(path) if as_there else Path(Path(path).name)
        return await bring(path, Path.cwd() / here, to is not None and to.endswith(os.sep))
    if as_there:
        report = FetchReport(Path.cwd() / os.path.commonpath([os.path.dirname(one) for one in found]))
    else:
        report = FetchReport(Path.cwd() / (to or ""))
    for one in found:
        report += await bring(one, Path.cwd() / one if as_there else report.path, not as_there)
    return report


def _place(target: Path, path: str, *, into: bool, is_file: bool) -> Path:
    if into or (is_file and target.is_dir()):
        return target / os.path.basename(os.path.normpath(path))
    return target


def is_below(path: str) -> bool:
    """Return whether a path is relative and stays below where it starts."""
    return not os.path.isabs(path) and not os.path.normpath(path).startswith("..") and not path.startswith("~")


def _below(entry: pb.TreeEntry) -> str:
    check_path(entry.path)
    return os.fsdecode(entry.path)


def _refuse_others(places: dict[bytes, Path], entries: Iterable[pb.TreeEntry]) -> None:
    for entry in entries:
        place = places[entry.path]
        if entry.kind == pb.TreeEntry.KIND_DIRECTORY or not os.path.lexists(place):
            continue
        facts = place.lstat()
        if (facts.st_size, facts.st_mtime_ns) != (entry.size_bytes, entry.modified_ns):
            raise FilesError(
                f"{place} exists and differs: --overwrite replaces it, --to DIR brings the files elsewhere"
            )


def _make_room(entry: pb.TreeEntry, place: Path) -> None:
    """Make what needs no content: a directory or a link, and the directory of a file."""
    if entry.kind == pb.TreeEntry.KIND_DIRECTORY:
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == pb.TreeEntry.KIND_SYMLINK:
        place.unlink(missing_ok=True)
        place.symlink_to(os.fsdecode(entry.target))


async def _write(
    pieces: AsyncIterator[pb.FilePiece], place: Path, entry: pb.TreeEntry, report: FetchReport, progress: Progress
) -> None:
    partial = place.with_name(f".monarch-nb-{secrets.token_hex(8)}")  # a name that is not synced
    try:
        with partial.open("xb") as file:
            async for piece in pieces:
                file.write(piece.data)
                report.size_bytes += len(piece.data)
                progress(report)
        partial.chmod(entry.mode)
        os.utime(partial, ns=(entry.modified_ns, entry.modified_ns))
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
