"""`%mesh sync`, `fetch` and `ls`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.doctor.diagnosis import name_nodes
from monarch_nb.errors import FilesError, MonarchNbError, TargetError, UsageError
from monarch_nb.files.tree import printable
from monarch_nb.ground.rank_sets import counted
from monarch_nb.notebook.cells.progress import LateProgress
from monarch_nb.notebook.cells.sent_files import grouped, left_out, node_names, notes, sent_lines, some
from monarch_nb.notebook.output.tables import Shown, calm_line, show, table
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.sizes import size
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.files.local_tree import Report
    from monarch_nb.client.files.sync import SyncedFiles
    from monarch_nb.client.files.transfer import Differences, Pending
    from monarch_nb.client.reservations.reservation import Reservation
    from monarch_nb.proto import files_pb2 as pb

DRY_RUN_LINES = 50
REMOVED = "ranks removed {paths} on {nodes}: %mesh sync --overwrite sends yours again"
RULES = {"defaults": ".git, caches, notebooks"}
"""What to call rules that have no file."""


class FileCommands:
    """What the notebook does with files."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session

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
            lines = [f"ranks no longer have {gone}"]
            lines += [
                *(sent_lines(report, node_names(files)) if report.removed else []),
                *notes(report, files, self._session.directory),
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
            with LateProgress(self._shell) as progress:
                meant = dry_run(files.pending(progress), node_names(files), parsed.switch("overwrite"))
                progress.done("\n".join(meant))
        else:
            with LateProgress(self._shell) as progress:
                report = files.sync(overwrite=parsed.switch("overwrite"), progress=progress)
                there = files.differences()
                report = replace(report, kept=there.changed)
                lines += sent_lines(report, node_names(files)) if report.anything or not there.missing else []
                if not path:
                    lines += [*ignored(report.local), *notes(report, files, self._session.directory)]
                    lines += missing(there, node_names(files))
                progress.done("\n".join(lines))

    def fetch(self, parsed: Parsed) -> None:
        reservation = self._session.current()
        to, lines, failed, place = parsed.text("to"), list[str](), list[FilesError](), None
        with LateProgress(self._shell) as progress:
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
                what, place = f"{counted(report.files, 'file')}, {size(report.size_bytes)}", report.path
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
        show(table(f"{path} on {node}: {counted(len(rows), 'name')}", ("name", "size", "changed"), rows))


def missing(there: Differences, everyone: Sequence[str]) -> list[str]:
    """Return what ranks removed, and which nodes could not say."""
    return [*grouped(REMOVED, there.missing, everyone), *(str(error) for error in there.unanswered.values())]


def placed_line(reservation: Reservation) -> str:
    """Return where the ranks have their files."""
    files = reservation.files
    if not files.root and not reservation.is_mine:
        return f"files: {reservation.owner}'s, from where it was reserved; yours are not synced"
    if not files.root:
        return "no files: the reservation was made without files"
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
        yield f"wrote {some(waiting)}: yours {wait} for %mesh sync --overwrite"
    if written:
        yield f"wrote {some(written)}"
    if mount.added:
        yield f"added {some([printable(path) for path in mount.added], mount.added_files)}"
    if removed:
        yield f"removed {some(removed)}"


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
    gone = [] if overwrite else grouped(REMOVED, stays_gone, everyone)
    lines = [f"send    {path}  {size(size_bytes)}" for path, size_bytes in pending.files]
    lines += [f"remove  {path}" for path in pending.removed]
    if pending.files:
        total_bytes = sum(size_bytes for _, size_bytes in pending.files)
        all_of_it = f"{counted(len(pending.files), 'file')}, {size(total_bytes)}"
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
        rules = [
            f"{size(size_bytes)} in {counted(count, 'file')} ({RULES.get(rule, rule)})"
            for rule, (count, size_bytes) in report.ignored().items()
        ]
        if rules:
            lines.append(f"ignored{f' in {name}' if name else ''}: {', '.join(rules)}")
    return lines


def _places(reservation: Reservation, parsed: Parsed) -> list[tuple[str, int, str]]:
    """Return whence to fetch: the directory for it when there may be several, the rank, and its node's name."""
    per_node, names = reservation.mesh.core.ranks_per_node, reservation.node_names
    ranks = {"rank": reservation.mesh.ranks, "node": range(0, len(names) * per_node, per_node)}
    for flag, step in (("rank", 1), ("node", per_node)):
        if parsed.text(flag) == "all":
            if parsed.text("node" if flag == "rank" else "rank") is not None:
                raise UsageError("--rank R or --node N, not both")
            return [(f"{flag}{rank // step}", rank, names[rank // per_node]) for rank in ranks[flag]]
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
    place = Path(os.path.normpath(place))  # "--to ../curves/" leads out of it
    return files.copies and any(place.is_relative_to(root) for root in (Path(files.root), *files.added.values()))


def _place(reservation: Reservation, parsed: Parsed) -> tuple[int, str]:
    """Return the rank that is meant, and the name of its node."""
    rank, node = _number(parsed, "rank"), _number(parsed, "node")
    if rank is not None and node is not None:
        raise UsageError("--rank R or --node N, not both")
    per_node = reservation.mesh.core.ranks_per_node
    chosen = rank if rank is not None else (node or 0) * per_node
    if chosen >= reservation.nodes * per_node:
        what = f"rank {rank}" if rank is not None else f"node {node}"
        raise TargetError(f"{reservation.name} has no {what}: {reservation.nodes} nodes × {per_node} ranks")
    return chosen, reservation.node_names[chosen // per_node]
