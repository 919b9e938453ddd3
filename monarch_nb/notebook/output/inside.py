"""What instruments found, as tables below a cell: where time and memory are."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from monarch_nb.notebook.output.tables import Shown, calm_line, table
from monarch_nb.sizes import size

if TYPE_CHECKING:
    from pathlib import Path

    from monarch_nb.client.instruments.memory import MemoryReport
    from monarch_nb.client.instruments.profiles import ProfileReport

_PERFETTO = "https://ui.perfetto.dev"
_MEMORY_VIZ = "https://pytorch.org/memory_viz"


def profile_view(report: ProfileReport) -> Iterator[Shown]:
    """Yield the tables of a profile, and where its trace is."""
    if report.is_empty:
        yield calm_line("\n".join([report.title, *report.notes()]))
        return
    yield _table(report.title, report.rank_rows(), report.rank_notes())
    yield _table("", report.operator_rows(), report.notes())
    if report.trace is not None:
        yield file_line("trace", report.trace, _PERFETTO, "or in TensorBoard")


def memory_view(report: MemoryReport) -> Iterator[Shown]:
    """Yield the tables of ranks' memory."""
    tables = report.tensor_tables()
    yield _table("", report.figure_rows(), [] if tables else report.notes())
    for place, (title, rows) in enumerate(tables, 1):
        yield _table(title, rows, report.notes() if place == len(tables) else ())


def history_view(paths: Sequence[Path], problems: Sequence[str]) -> Iterator[Shown]:
    """Yield where the memory histories of ranks are."""
    for path in paths:
        yield file_line("memory history", path, _MEMORY_VIZ)
    if problems:
        yield calm_line("\n".join(problems))


def file_line(what: str, path: Path, page: str, more: str = "") -> Shown:
    """Return where a file is, and which page opens it. The browser leaves the file on this computer."""
    there = os.path.relpath(path)
    takes = size(path.stat().st_size)
    opened = f"open it at {page}{f' {more}' if more else ''}"
    link = f'<a href="{quote(there)}" download>{html.escape(there)}</a>'
    site = f'<a href="{page}" target="_blank" rel="noopener">{html.escape(page.removeprefix("https://"))}</a>'
    style = "color:var(--jp-ui-font-color2,#666);font-size:90%"
    shown = f'<div style="{style}">{what}: {link} ({takes}), open it at {site}{f" {more}" if more else ""}</div>'
    return Shown(f"{what}: {there} ({takes}), {opened}", shown)


def _table(title: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> Shown:
    head, *body = rows or [()]
    return table(title, head, body, notes)
