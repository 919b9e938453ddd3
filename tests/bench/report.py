"""The table: in the terminal, and as Markdown for the docs."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.bench import rivals
from tests.bench.harness import Outcome, Row

Measured = list[tuple[Row, Outcome | str]]
"""By row; a text says why it could not be measured."""

_KEPT = ("<!-- by hand, kept by the bench -->", "<!-- the bench goes on -->")
"""What stands between these on the page is written by people."""

_HEAD = ("what", "goal", "measured", "beside", "ratio", "verdict")


def print_table(console: Console, measured: Measured) -> None:
    """Print the table."""
    table = Table(*_HEAD, show_lines=True)
    for row, outcome in measured:
        *cells, verdict = _cells(row, outcome)
        colour = {"reached": "green", "missed": "red"}.get(verdict, "yellow")
        table.add_row(*map(escape, cells), f"[{colour}]{verdict}[/]")
    console.print(table)


def markdown(measured: Measured, load_before: float, page: str) -> str:
    """Return the page for the docs, with what people wrote on the one before."""
    begin, end = _KEPT
    kept = page.partition(begin)[2].partition(end)[0].strip()
    lines = [
        "# Performance",
        "",
        "`make bench` measures everything here side by side in one run and writes this page. It never fails a build:",
        "what is missed says so.",
        "",
        *_facts(load_before),
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{' --- |' * len(_HEAD)}",
    ]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in _cells(*one))} |" for one in measured]
    lines += ["", begin, "", kept, "", end, "", "## How it is measured", ""]
    for row, _ in measured:
        lines += [f"**{row.what[0].upper()}{row.what[1:]}.** {row.how}", ""]
    return "\n".join(lines)


def _cells(row: Row, outcome: Outcome | str) -> tuple[str, ...]:
    if isinstance(outcome, str):
        return row.what, row.goal, outcome, "–", "–", "not measured"
    verdict = "reached" if outcome.reached else "missed"
    return row.what, row.goal, outcome.measured, outcome.beside, outcome.ratio, verdict


def _facts(load_before: float) -> list[str]:
    ours = [f"{name} {metadata.version(name)}" for name in ("monarch-nb", "torch", "ipykernel", "grpcio", "protobuf")]
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{_processor()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release()}"
    load = f"load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after"
    if niceness := os.nice(0):
        load += f", all of it at niceness {niceness}"
    return [
        f"- Machine: {machine}; {load}",
        f"- Date: {time.strftime('%Y-%m-%d')}",
        f"- Versions: Python {platform.python_version()}, {', '.join([*ours, *rivals.versions()])}",
        f'- Command: `make bench ARGS="{" ".join(sys.argv[1:])}"`',
    ]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
