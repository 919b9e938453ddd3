"""`%mesh sync`, `fetch` and `ls`, and the line above a cell that says which files went before it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.errors import MonarchNbError, TargetError, UsageError
from monarch_nb.files.tree import printable
from monarch_nb.notebook.command_line import Parsed
from monarch_nb.notebook.progress import Progress
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.tables import Shown, calm_line, duration, is_notebook, show, size, table

if TYPE_CHECKING:
    from monarch_nb.client.fetch import FetchReport
    from monarch_nb.client.reservation import Reservation
    from monarch_nb.client.sync import SyncedFiles, SyncReport
    from monarch_nb.client.transfer import Transfer

NAMES_SHOWN = 5
BAR_WIDTH = 20


class FileCommands:
    """What the notebook does with files."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session
        self._said: set[str] = set()

    @property
    def _directory(self) -> str:
        from monarch_nb.client.pool import working_directory

        return working_directory(None, self._session.notebook)

    def before_run(self, nodes: Iterable[int]) -> None:
        """Sync before a cell; says something only when something went, or could not.

        Raises:
            FilesError, NodeUnreachable: a node that the cell needs does not have the files.
        """
        files = self._session.current().files
        if not files.copies:
            return
        with _LateProgress(self._shell) as progress:
            report = files.sync(nodes, progress=progress.sent)
        lines = [sent_line(report)] if report.anything else []
        fresh = [note for note in notes(report, files, self._directory) if note not in self._said]
        self._said.update(fresh)
        if lines or fresh:
            show(calm_line("\n".join(lines + fresh)))

    def sync(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        files = reservation.files
        if (path := parsed.text("add")) is not None:
            name = files.add(path, parsed.text("as"))
            where = "as it is: the nodes see it" if not files.copies else f"from now on, as {name}"
            show(calm_line(f"{Path(path).expanduser().absolute()} is synced {where}"))
        elif parsed.text("as") is not None:
            raise UsageError("--as NAME goes with --add PATH")
        if not files.copies:
            show(calm_line(_nothing_to_copy(reservation)))
        elif parsed.switch("status"):
            show(status_table(files))
        elif parsed.switch("dry_run"):
            show(calm_line(_dry_run(files)))
        else:
            with _LateProgress(self._shell) as progress:
                report = files.sync(overwrite=parsed.switch("overwrite"), progress=progress.sent)
            line = sent_line(report) if report.anything else f"every file is on {_nodes(report.nodes)} already"
            ignored = [f"ignored {line}" for line in _ignored(report)]
            show(calm_line("\n".join([line, *ignored, *notes(report, files, self._directory)])))

    def fetch(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        rank = _rank(reservation, parsed)
        with _LateProgress(self._shell) as progress:
            report = reservation.fetch(
                parsed.words[0],
                rank=rank,
                to=parsed.text("to"),
                overwrite=parsed.switch("overwrite"),
                progress=progress.fetched,
            )
        what = f"{_count(report.files, 'file')}, {size(report.size_bytes)}"
        show(calm_line(f"brought {what}, from rank {rank} to {report.path} in {duration(report.seconds)}"))

    def list(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        rank = _rank(reservation, parsed)
        path = parsed.word or "."
        found = reservation.list_files(path, rank=rank)
        rows = [
            (
                f"{info.path}/" if info.kind == "directory" else info.path,
                size(info.size_bytes) if info.kind == "file" else "" if info.kind == "directory" else info.kind,
                datetime.fromtimestamp(info.modified_at).strftime("%Y-%m-%d %H:%M:%S"),
            )
            for info in found
        ]
        show(table(f"{path} on rank {rank}: {_count(len(rows), 'name')}", ("name", "size", "changed"), rows))


class _LateProgress:
    """A bar that appears once there is something to wait for."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._in_place = is_notebook(shell)
        self._progress: Progress | None = None
        self._began = time.monotonic()

    def __enter__(self) -> _LateProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.done("stopped: the nodes have the files as they were" if error[0] else " ")
            self._progress.__exit__(None, None, None)

    def sent(self, transfer: Transfer) -> None:
        """Show how much of a sync has left this computer."""
        self._show("sending files", transfer.done_bytes, transfer.total_bytes)

    def fetched(self, report: FetchReport) -> None:
        """Show how much has arrived."""
        self._show("fetching", report.size_bytes, report.total_bytes)

    def _show(self, what: str, done_bytes: int, total_bytes: int) -> None:
        elapsed_s = time.monotonic() - self._began
        if self._progress is None:
            if elapsed_s < 0.5:
                return
            self._progress = Progress(self._in_place)
            self._progress.__enter__()
        self._progress(bar(what, done_bytes, total_bytes, elapsed_s))


def bar(what: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """Return a progress line with rate and remaining time.

    Example:
        >>> bar("sending files", 25_000_000, 100_000_000, 0.5)
        'sending files █████░░░░░░░░░░░░░░░ 25 MB of 100 MB, 50 MB/s, 1.5 s left'
    """
    part = min(1.0, done_bytes / total_bytes) if total_bytes else 0.0
    filled = round(part * BAR_WIDTH)
    rate = done_bytes / elapsed_s if elapsed_s else 0.0
    left = f", {duration((total_bytes - done_bytes) / rate)} left" if rate and done_bytes < total_bytes else ""
    drawn = "█" * filled + "░" * (BAR_WIDTH - filled)
    return f"{what} {drawn} {size(done_bytes)} of {size(total_bytes)}, {size(round(rate))}/s{left}"


def sent_line(report: SyncReport) -> str:
    """Return `sent 3 files, 12 kB, to 16 nodes in 0.04 s`."""
    parts = []
    if report.files or not report.removed:
        parts.append(f"sent {_count(report.files, 'file')}, {size(report.size_bytes)}, to {_nodes(report.nodes)}")
    if report.removed:
        parts.append(f"removed {report.removed}" if parts else f"removed {_count(report.removed, 'file')} there")
    return f"{', '.join(parts)} in {duration(report.seconds)}"


def notes(report: SyncReport, files: SyncedFiles, directory: str) -> list[str]:
    """Return what a user must know besides: files that ranks keep, that are too large, that can not be synced.

    Args:
        directory: the notebook's.
    """
    lines = []
    for path, nodes in report.kept.items():
        lines.append(f"kept {path}, which ranks wrote on {', '.join(nodes)}: %mesh sync --overwrite sends yours")
    for local in report.local.values():
        if local.too_large:
            large = [f"{printable(path)} ({size(size_bytes)})" for path, size_bytes in local.too_large]
            lines.append(f"too large: {_some(large)}; max-file-size in pyproject.toml's [tool.monarch_nb], or --add")
        if local.refused:
            lines.append(f"not synced: {_some([f'{printable(path)} ({why})' for path, why in local.refused])}")
        if local.notice:
            lines.append(local.notice)
    if instead := files.instead_of(directory):
        lines.append(f"the ranks have the files of {instead}; not synced: {directory}. %mesh sync --add {directory}")
    return lines


def status_table(files: SyncedFiles) -> Shown:
    """Return what every node has."""
    rows: list[tuple[str, ...]] = []
    for node, reply in files.status().items():
        if isinstance(reply, MonarchNbError):
            rows.append((node, "", "", "", str(reply), ""))
            continue
        for mount in reply.mounts:
            kept = _some([printable(path) for path in mount.kept])
            rows.append((node, mount.mount or ".", f"{mount.files:,}", size(mount.size_bytes), mount.source, kept))
        if not reply.mounts:
            rows.append((node, "", "0", "", "nothing yet", ""))
    return table("", ("node", "name", "files", "size", "from", "written by ranks"), rows)


def _dry_run(files: SyncedFiles) -> str:
    would = files.pending()
    if not would:
        return "nothing would be sent: every file is on the nodes already"
    lines = []
    for mount, entry in would[:50]:
        path = entry if isinstance(entry, bytes) else entry.path
        shown = printable(path) if not mount else f"{mount}/{printable(path)}"
        lines.append(f"remove  {shown}" if isinstance(entry, bytes) else f"send    {shown}  {size(entry.size_bytes)}")
    if len(would) > len(lines):
        lines.append(f"… and {len(would) - len(lines):,} more")
    return "\n".join(lines)


def _ignored(report: SyncReport) -> list[str]:
    lines = []
    for name, local in report.local.items():
        where = f" in {name}" if name else ""
        lines += [
            f"{size(size_bytes)} in {_count(count, 'file')}{where} ({rule})"
            for rule, (count, size_bytes) in local.ignored().items()
        ]
    return lines


def _nothing_to_copy(reservation: Reservation) -> str:
    files = reservation.files
    if not files.root:
        return f"{reservation.name} was reserved without files"
    return f"nothing is copied: every node sees {files.root} itself"


def _rank(reservation: Reservation, parsed: Parsed) -> int:
    rank, node = parsed.count("rank"), parsed.count("node")
    if rank is not None and node is not None:
        raise UsageError("--rank R or --node N, not both")
    per_node = len(reservation.mesh.ranks) // reservation.nodes
    chosen = rank if rank is not None else (node or 0) * per_node
    if chosen not in reservation.mesh.ranks:
        what = f"rank {rank}" if rank is not None else f"node {node}"
        raise TargetError(f"{reservation.name} has no {what}: {reservation.nodes} nodes × {per_node} ranks")
    return chosen


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _nodes(number: int) -> str:
    return _count(number, "node")
