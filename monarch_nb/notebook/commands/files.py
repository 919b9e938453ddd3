"""`%mesh sync`, `fetch` and `ls`, and the line above a cell that says which files went before it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.doctor.diagnosis import name_nodes
from monarch_nb.errors import FilesError, MonarchNbError, TargetError, UsageError
from monarch_nb.files.tree import printable
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.tables import Shown, calm_line, is_notebook, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.sizes import size
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.files.local_tree import Report
    from monarch_nb.client.files.sync import SyncedFiles
    from monarch_nb.client.files.sync_report import Differences, OnNodes, Pending, SyncReport
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.proto import files_pb2 as pb

NAMES_SHOWN = 5
DRY_RUN_LINES = 50
BAR_WIDTH = 20
PATIENCE_S = 0.5
"""What takes less needs no progress."""
DRAW_EVERY_S = 0.1
STEADY_S = 0.3
"""Before that a rate says nothing."""
LONG_S = 5.0
"""Who waits longer may want to stop it."""
REMOVED = "ranks removed {paths} on {nodes}: %mesh sync --overwrite sends yours again"
RULES = {"defaults": ".git, caches, notebooks"}
"""What to call rules that have no file."""


class FileCommands:
    """What the notebook does with files."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session
        self._said: set[str] = set()

    @property
    def _directory(self) -> str:
        from monarch_nb.client.pools.pool import working_directory

        return working_directory(None, self._session.notebook)

    def before_run(self, nodes: Iterable[int]) -> None:
        """Sync before a cell; says something only when something went, or could not.

        Raises:
            FilesError, NodeUnreachable: a node that the cell needs does not have the files.
        """
        files = self._session.current().files
        if news := files.record.take_news():
            show(calm_line("\n".join(news)))
        if not files.copies:
            return
        with _LateProgress(self._shell) as progress:
            report = files.sync(nodes, progress=progress)
            fresh = [note for note in notes(report, files, self._directory) if note not in self._said]
            self._said.update(fresh)
            lines = sent_lines(report, _names(files)) if report.anything or progress.shown else []
            if lines or fresh or progress.shown:
                progress.done("\n".join([*lines, *fresh]) or " ")

    def sync(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        files = reservation.files
        path, lines = parsed.text("add"), list[str]()
        if news := files.record.take_news():
            show(calm_line("\n".join(news)))
        if parsed.switch("status") and (parsed.switch("overwrite") or parsed.switch("dry_run")):
            raise UsageError("--status only looks: it goes without --overwrite and --dry-run")
        if path is None and parsed.text("as") is not None:
            raise UsageError("--as NAME goes with --add DIR")
        if (gone := parsed.text("remove")) is not None:
            report = files.remove(gone)
            lines = [f"ranks have {gone} no longer"]
            lines += [
                *(sent_lines(report, _names(files)) if report.removed else []),
                *notes(report, files, self._directory),
            ]
            show(calm_line("\n".join(lines)))
            return
        if path is not None:
            name = files.add(path, parsed.text("as"))
            lines = [f"{os.path.abspath(os.path.expanduser(path))} is synced from now on, as {name}"]
        if not files.copies:
            if path is not None:
                show(calm_line(f"{files.added[name]} is on the ranks' sys.path from now on; every node sees it itself"))
            else:
                show(calm_line(placed_line(reservation)))
            return
        if parsed.switch("status"):
            show(status_table(files))
        elif parsed.switch("dry_run"):
            with _LateProgress(self._shell) as progress:
                progress.done("\n".join(dry_run(files.pending(progress), _names(files), parsed.switch("overwrite"))))
        else:
            with _LateProgress(self._shell) as progress:
                report = files.sync(overwrite=parsed.switch("overwrite"), progress=progress)
                there = files.differences()
                report = replace(report, kept=there.changed)
                lines += sent_lines(report, _names(files)) if report.anything or not there.missing else []
                if not path:
                    lines += [*ignored(report.local), *notes(report, files, self._directory)]
                    lines += missing(there, _names(files))
                progress.done("\n".join(lines))

    def fetch(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        to, lines, failed, place = parsed.text("to"), list[str](), list[FilesError](), None
        with _LateProgress(self._shell) as progress:
            for name, rank, node in _places(reservation, parsed):
                try:
                    report = reservation.fetch(
                        parsed.words[0],
                        rank=rank,
                        to=os.path.join(to or "", name, "") if name else to,
                        overwrite=parsed.switch("overwrite"),
                        progress=lambda report: progress("fetching", report.size_bytes, report.total_bytes),
                    )
                except FilesError as error:
                    failed.append(error)
                    continue
                what, place = f"{_count(report.files, 'file')}, {size(report.size_bytes)}", report.path
                lines.append(f"brought {what}, from {node} to {report.path} in {duration(report.seconds)}")
            if not lines:
                raise failed[0]
            if place is not None and _is_synced(reservation.files, place):
                lines.append(
                    "it lies in the project: each node gets it before the next cell, unless .meshignore names it"
                )
            progress.done("\n".join([*lines, *map(str, failed)]))

    def list(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        rank, node = _place(reservation, parsed)
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
        show(table(f"{path} on {node}: {_count(len(rows), 'name')}", ("name", "size", "changed"), rows))


class _LateProgress:
    """A line that appears once there is something to wait for, and in the end says what came of it."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._in_place = is_notebook(shell)
        self._progress: Progress | None = None
        self._began = self._drawn = time.monotonic()
        self._what = ""
        self._is_long = False

    def __enter__(self) -> _LateProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, stack: object) -> None:
        if self._progress is not None:
            if kind is not None:
                self._progress.done(f"stopped while {self._what}")
            self._progress.__exit__(None, None, None)
        if kind is KeyboardInterrupt:
            raise RunInterrupted("interrupted before all files had come; what has come need not come again") from None

    @property
    def shown(self) -> bool:
        """Whether there is a line."""
        return self._progress is not None

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """Show how far it is: what comes first at once if it has no measure, as nobody knows how long it takes."""
        now = time.monotonic()
        is_first = not self._what
        if what != self._what:
            self._what, self._began = what, now
        at_once = is_first and not total_bytes
        if not at_once and now - self._drawn < (DRAW_EVERY_S if self.shown else PATIENCE_S):
            if self._progress is not None and not total_bytes:
                self._progress.soon(what)  # it may be the last that is heard for long
            return
        self._drawn = now
        if self._progress is None:
            self._progress = Progress(self._in_place).__enter__()
        if total_bytes:
            elapsed_s = now - self._began
            self._is_long = self._is_long or elapsed_s + _left_s(done_bytes, total_bytes, elapsed_s) > LONG_S
            line = bar(what, done_bytes, total_bytes, elapsed_s)
            self._progress.show(f"{line}; ■ (Ctrl-C) stops it" if self._is_long else line)
        else:
            self._progress(what)

    def done(self, text: str) -> None:
        """Show what came of it, in place of the line."""
        if self._progress is not None:
            self._progress.done(text)
        else:
            show(calm_line(text))


def bar(what: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """Return a progress line with rate and remaining time.

    Example:
        >>> bar("sending files", 25_000_000, 100_000_000, 0.5)
        'sending files █████░░░░░░░░░░░░░░░ 25 MB of 100 MB, 50 MB/s, 1.5 s left'
    """
    filled = round(min(1.0, done_bytes / total_bytes) * BAR_WIDTH)
    drawn = "█" * filled + "░" * (BAR_WIDTH - filled)
    line = f"{what} {drawn} {size(done_bytes)} of {size(total_bytes)}"
    if elapsed_s < STEADY_S:
        return line
    left_s = _left_s(done_bytes, total_bytes, elapsed_s)
    left = f", {duration(left_s)} left" if left_s > 0 else ""
    return f"{line}, {size(round(done_bytes / elapsed_s))}/s{left}"


def _left_s(done_bytes: int, total_bytes: int, elapsed_s: float) -> float:
    """Return how long the rest will take; 0 as long as that can not be told."""
    return (total_bytes - done_bytes) * elapsed_s / done_bytes if done_bytes and elapsed_s >= STEADY_S else 0.0


def sent_lines(report: SyncReport, everyone: Sequence[str]) -> list[str]:
    """Return `sent 3 files, 12 kB, to 16 nodes in 0.04 s`; nothing when only files that nodes keep differ."""
    parts = []
    if len(set(report.given.values())) > 1:
        return [f"{_sent_to_each(report, everyone)} in {duration(report.seconds)}"]
    if report.files:
        how_much = f", {size(report.size_bytes)}," if report.size_bytes else ""  # nodes may have had all the content
        parts.append(f"sent {_count(report.files, 'file')}{how_much} to {_nodes(report.nodes)}")
    if report.removed:
        parts.append(f"removed {report.removed:,}" if parts else f"removed {_count(report.removed, 'file')} there")
    if parts:
        return [f"{', '.join(parts)} in {duration(report.seconds)}"]
    return [] if report.kept else [f"the files are on {_nodes(report.nodes)} already"]


def _sent_to_each(report: SyncReport, everyone: Sequence[str]) -> str:
    """Return `sent 10,000 files to node3, 2 files to node[0-2], 12 MB together, removed 1 file on node3`."""
    parts = _by_count({name: one.files for name, one in report.given.items()}, "to", everyone)
    if parts:
        parts[0] = f"sent {parts[0]}"
        parts += [f"{size(report.size_bytes)} together"] if report.size_bytes else []
    gone = _by_count({name: one.removed for name, one in report.given.items()}, "on", everyone)
    if gone:
        gone[0] = f"removed {gone[0]}"
    return ", ".join([*parts, *gone])


def _by_count(files: Mapping[str, int], at: str, everyone: Sequence[str]) -> list[str]:
    """Return "10,000 files to node3", "2 files to node[0-2]"; of many different counts the largest."""
    nodes: dict[int, list[str]] = {}
    for name in everyone:
        if count := files.get(name):
            nodes.setdefault(count, []).append(name)
    counts = sorted(nodes, reverse=True)
    parts = [f"{_count(count, 'file')} {at} {name_nodes(nodes[count], everyone)}" for count in counts[:NAMES_SHOWN]]
    rest = sum(len(nodes[count]) for count in counts[NAMES_SHOWN:])
    return [*parts, f"fewer {at} {_nodes(rest)}"] if rest else parts


def notes(report: SyncReport, files: SyncedFiles, directory: str) -> list[str]:
    """Return what a user must know besides: files that ranks keep, that are too large, that can not be synced.

    Args:
        directory: the notebook's.
    """
    everyone = _names(files)
    lines = _grouped(
        "kept {paths}, which ranks wrote on {nodes}: %mesh sync --overwrite sends yours", report.kept, everyone
    )
    lines += _grouped("left {paths} on {nodes}, which ranks wrote there", report.left, everyone)
    lines += _grouped("overwrote {paths}, which ranks wrote on {nodes}", report.overwritten, everyone)
    lines += _grouped("restored {paths}, which ranks had removed on {nodes}", report.restored, everyone)
    if report.missed:
        lines.append(f"not reached: {name_nodes(report.missed, everyone)}; the next sync brings what is missing there")
    if report.modules and not files.record.reload:
        lines.append(
            "reload is off: ranks keep the modules that they have; %mesh restart, or %mesh reserve … --reload auto"
        )
    lines += left_out(report.local)
    if instead := files.instead_of(directory):
        lines.append(f"the ranks have the files of {instead}; not synced: {directory}. %mesh sync --add {directory}")
    return lines


def missing(there: Differences, everyone: Sequence[str]) -> list[str]:
    """Return what ranks removed, and which nodes could not say."""
    return [*_grouped(REMOVED, there.missing, everyone), *(str(error) for error in there.unanswered.values())]


def _grouped(text: str, found: OnNodes, everyone: Sequence[str]) -> list[str]:
    """Return a line for each set of nodes, with the paths that it is about."""
    by_nodes: dict[tuple[str, ...], list[str]] = {}
    for path, nodes in found.items():
        by_nodes.setdefault(tuple(name for name in everyone if name in nodes), []).append(path)
    return [text.format(paths=_some(paths), nodes=name_nodes(on, everyone)) for on, paths in by_nodes.items()]


def _names(files: SyncedFiles) -> list[str]:
    return [connection.name for connection in files.connections.values()]


def left_out(local: Mapping[str, Report]) -> list[str]:
    """Return what is not synced though nothing ignores it."""
    lines = []
    for report in local.values():
        if report.too_large:
            large = [f"{printable(path)} ({size(size_bytes)})" for path, size_bytes in report.too_large]
            limit = f"over the limit of {size(report.max_file_bytes)}; " if report.max_file_bytes else ""
            raises = "max-file-size in pyproject.toml's [tool.monarch_nb] raises it"
            lines.append(f"too large: {_some(large)}; {limit}{raises}")
        if report.refused:
            lines.append(f"not synced: {_some([f'{printable(path)} ({why})' for path, why in report.refused])}")
        if report.notice:
            lines.append(report.notice)
    return lines


def placed_line(reservation: Reservation) -> str:
    """Return where the ranks have their files."""
    files = reservation.files
    if not files.root:
        return "no files: it was reserved without any"
    if not files.copies:
        return f"files: every node sees {files.root} itself, nothing is copied"
    names = [connection.name for connection in files.connections.values()]
    if len(names) == reservation.nodes:
        return f"files: {files.root}, copied to every node before each cell"
    return f"files: {files.root}, copied to {name_nodes(names, ())} before each cell; the other nodes see it itself"


def status_table(files: SyncedFiles) -> Shown:
    """Return what every node has."""
    rows: list[tuple[str, ...]] = []
    for node, reply in files.status().items():
        if isinstance(reply, MonarchNbError):
            rows.append((node, "", "", "", str(reply), ""))
            continue
        for mount in reply.mounts:
            theirs = "; ".join(_what_ranks_did(mount))
            rows.append((node, mount.mount or ".", f"{mount.files:,}", size(mount.size_bytes), mount.source, theirs))
        if not reply.mounts:
            rows.append((node, "", "0", "", "nothing yet", ""))
    return table("", ("node", "name", "files", "size", "from", "what ranks did"), rows)


def _what_ranks_did(mount: pb.MountStatus) -> Iterator[str]:
    waiting, written, removed = (
        [printable(path) for path in paths]
        for paths in (mount.waiting, [path for path in mount.changed if path not in mount.waiting], mount.missing)
    )
    if waiting:
        wait = "waits" if len(waiting) == 1 else "wait"
        yield f"wrote {_some(waiting)}: yours {wait} for %mesh sync --overwrite"
    if written:
        yield f"wrote {_some(written)}"
    if mount.added:
        yield f"added {_some([printable(path) for path in mount.added], mount.added_files)}"
    if removed:
        yield f"removed {_some(removed)}"


def dry_run(pending: Pending, everyone: Sequence[str], overwrite: bool) -> list[str]:
    """Return what a sync would do, and what it leaves out.

    Args:
        everyone: the nodes' names.
        overwrite: it would replace what ranks wrote.
    """
    theirs = [
        f"{_fate(path, pending, overwrite)} {path}, which ranks wrote on {name_nodes(nodes, everyone)}"
        for path, nodes in pending.there.changed.items()
    ]
    if overwrite:
        theirs += [
            f"restore {path}, which ranks removed on {name_nodes(nodes, everyone)}"
            for path, nodes in pending.there.missing.items()
        ]
    meant = {*(path for path, _ in pending.files), *pending.removed}
    stays_gone = {path: nodes for path, nodes in pending.there.missing.items() if path not in meant}
    gone = [] if overwrite else _grouped(REMOVED, stays_gone, everyone)
    lines = [f"send    {path}  {size(size_bytes)}" for path, size_bytes in pending.files]
    lines += [f"remove  {path}" for path in pending.removed]
    if pending.files:
        all_of_it = f"{_count(len(pending.files), 'file')}, {size(sum(size_bytes for _, size_bytes in pending.files))}"
        total = [f"{all_of_it}; nodes take only what they lack" if pending.unknown else all_of_it]
    else:
        said = lines or gone or (overwrite and theirs)
        total = [] if said else ["nothing would be sent: the files are on the nodes already"]
    unanswered = [str(error) for error in pending.there.unanswered.values()]
    return [*_short(theirs), *_short(lines), *total, *gone, *unanswered, *left_out(pending.local)]


def _fate(path: str, pending: Pending, overwrite: bool) -> str:
    """Return what becomes of a file that ranks wrote."""
    return "keep   " if not overwrite else "remove " if path in pending.removed else "replace"


def _short(lines: list[str]) -> list[str]:
    return (
        lines if len(lines) <= DRY_RUN_LINES else [*lines[:DRY_RUN_LINES], f"… and {len(lines) - DRY_RUN_LINES:,} more"]
    )


def ignored(local: Mapping[str, Report]) -> list[str]:
    """Return what is ignored, by what ignores it."""
    lines = []
    for name, report in local.items():
        counted = [
            f"{size(size_bytes)} in {_count(count, 'file')} ({RULES.get(rule, rule)})"
            for rule, (count, size_bytes) in report.ignored().items()
        ]
        if counted:
            lines.append(f"ignored{f' in {name}' if name else ''}: {', '.join(counted)}")
    return lines


def _places(reservation: Reservation, parsed: Parsed) -> list[tuple[str, int, str]]:
    """Return whence to fetch: the directory for it when there may be several, the rank, and its node's name."""
    ranks = reservation.mesh.ranks
    per_node = len(ranks) // reservation.nodes
    for flag, step in (("rank", 1), ("node", per_node)):
        if parsed.text(flag) == "all":
            if parsed.text("node" if flag == "rank" else "rank") is not None:
                raise UsageError("--rank R or --node N, not both")
            name_of = reservation.mesh.core.connection_of
            return [(f"{flag}{rank // step}", rank, name_of(rank).name) for rank in ranks[::step]]
    rank, node = _place(reservation, parsed)
    return [("", rank, node)]


def _number(parsed: Parsed, flag: str) -> int | None:
    text = parsed.text(flag)
    if text is None:
        return parsed.count(flag)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--{flag} is a whole number or all, not {text!r}")
    return int(text)


def _is_synced(files: SyncedFiles, place: Path) -> bool:
    return files.copies and any(place.is_relative_to(root) for root in (Path(files.root), *files.added.values()))


def _place(reservation: Reservation, parsed: Parsed) -> tuple[int, str]:
    """Return the rank that is meant, and the name of its node."""
    rank, node = _number(parsed, "rank"), _number(parsed, "node")
    if rank is not None and node is not None:
        raise UsageError("--rank R or --node N, not both")
    per_node = len(reservation.mesh.ranks) // reservation.nodes
    chosen = rank if rank is not None else (node or 0) * per_node
    if chosen not in reservation.mesh.ranks:
        what = f"rank {rank}" if rank is not None else f"node {node}"
        raise TargetError(f"{reservation.name} has no {what}: {reservation.nodes} nodes × {per_node} ranks")
    return chosen, reservation.mesh.core.connection_of(chosen).name


def _some(names: Sequence[str], count: int = 0) -> str:
    """Name the first few; `count`: there are more than `names` has."""
    unnamed = (count or len(names)) - NAMES_SHOWN
    more = f", and {unnamed} more" if unnamed > 0 else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _nodes(number: int) -> str:
    return _count(number, "node")
