"""What happens before a cell: allocators of a local pool that died start again, and files that changed go to the
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.doctor.diagnosis import name_nodes
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.files.tree import printable
from monarch_nb.ground.rank_sets import counted
from monarch_nb.notebook.cells.progress import LateProgress
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.session import Session
from monarch_nb.sizes import size
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.files.local_tree import Report
    from monarch_nb.client.files.sync import SyncedFiles
    from monarch_nb.client.files.transfer import OnNodes, SyncReport


def heal(session: Session) -> None:
    """Have allocators start again that died, in the pool of what is held, and say so."""
    pool = session.reservation.pool if session.reservation is not None else session.pool
    pool_object(pool).heal(lambda line: show(calm_line(line)))


NAMES_SHOWN = 5


class FilesBeforeCells:
    """Syncs before each cell, and says so above what the cell shows."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell, self._session = shell, session
        self._said: set[str] = set()

    def before_run(self, needed: Callable[[], Collection[str]]) -> None:
        """Sync before a cell; says something only when something went, or could not.

        Args:
            needed: returns the names of the nodes that it runs on.

        Raises:
            FilesError, NodeUnreachable: a node that the cell needs does not have the files.
        """
        files = self._session.current().files
        if news := files.record.take_news():
            show(calm_line("\n".join(news)))
        if not files.copies:
            return
        heal(self._session)
        with LateProgress(self._shell) as progress:
            report = files.sync(needed, progress=progress)
            fresh = [note for note in notes(report, files, self._session.directory) if note not in self._said]
            self._said.update(fresh)
            lines = sent_lines(report, node_names(files)) if report.anything or progress.shown else []
            if lines or fresh or progress.shown:
                progress.done("\n".join([*lines, *fresh]) or " ")


def sent_lines(report: SyncReport, everyone: Sequence[str]) -> list[str]:
    """Return `sent 3 files, 12 kB, to 16 nodes in 0.04 s`; nothing when only files that nodes keep differ."""
    parts = []
    if len(set(report.given.values())) > 1:
        return [f"{_sent_to_each(report, everyone)} in {duration(report.seconds)}"]
    if report.files:
        how_much = f", {size(report.size_bytes)}," if report.size_bytes else ""  # nodes may have had all the content
        parts.append(f"sent {counted(report.files, 'file')}{how_much} to {_nodes(report.nodes)}")
    if report.removed:
        parts.append(f"removed {report.removed:,}" if parts else f"removed {counted(report.removed, 'file')} there")
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
    parts = [f"{counted(count, 'file')} {at} {name_nodes(nodes[count], everyone)}" for count in counts[:NAMES_SHOWN]]
    rest = sum(len(nodes[count]) for count in counts[NAMES_SHOWN:])
    return [*parts, f"fewer {at} {_nodes(rest)}"] if rest else parts


def notes(report: SyncReport, files: SyncedFiles, directory: str) -> list[str]:
    """Return what a user must know besides: files that ranks keep, that are too large, that can not be synced.

    Args:
        directory: the notebook's.
    """
    everyone = node_names(files)
    lines = grouped(
        "kept {paths}, which ranks wrote on {nodes}: %mesh sync --overwrite sends yours", report.kept, everyone
    )
    lines += grouped("left {paths} on {nodes}, which ranks wrote there", report.left, everyone)
    lines += grouped("overwrote {paths}, which ranks wrote on {nodes}", report.overwritten, everyone)
    lines += grouped("restored {paths}, which ranks had removed on {nodes}", report.restored, everyone)
    if report.missed:
        lines.append(f"not reached: {name_nodes(report.missed, everyone)}; the next sync sends the missing files")
    if report.modules and not files.record.reload:
        lines.append(
            "reload is off: ranks keep the modules that they have; %mesh restart, or %mesh reserve … --reload auto"
        )
    lines += left_out(report.local)
    if instead := files.instead_of(directory):
        lines.append(f"the ranks have the files of {instead}; not synced: {directory}. %mesh sync --add {directory}")
    return lines


def grouped(text: str, found: OnNodes, everyone: Sequence[str]) -> list[str]:
    """Return a line for each set of nodes, with the paths that it is about."""
    by_nodes: dict[tuple[str, ...], list[str]] = {}
    for path, nodes in found.items():
        by_nodes.setdefault(tuple(name for name in everyone if name in nodes), []).append(path)
    return [text.format(paths=some(paths), nodes=name_nodes(on, everyone)) for on, paths in by_nodes.items()]


def node_names(files: SyncedFiles) -> list[str]:
    """Return the names of all nodes that have copies."""
    return [connection.name for connection in files.connections.values()]


def left_out(local: Mapping[str, Report]) -> list[str]:
    """Return what is not synced though nothing ignores it."""
    lines = []
    for report in local.values():
        if report.too_large:
            large = [f"{printable(path)} ({size(size_bytes)})" for path, size_bytes in report.too_large]
            limit = f"over the limit of {size(report.max_file_bytes)}; " if report.max_file_bytes else ""
            raises = "max-file-size in pyproject.toml's [tool.monarch_nb] raises it"
            lines.append(f"too large: {some(large)}; {limit}{raises}")
        if report.refused:
            lines.append(f"not synced: {some([f'{printable(path)} ({why})' for path, why in report.refused])}")
        if report.notice:
            lines.append(report.notice)
    return lines


def some(names: Sequence[str], count: int = 0) -> str:
    """Name the first few; `count`: there are more than `names` has."""
    unnamed = (count or len(names)) - NAMES_SHOWN
    more = f", and {unnamed} more" if unnamed > 0 else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _nodes(number: int) -> str:
    return counted(number, "node")
