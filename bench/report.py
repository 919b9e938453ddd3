"""The table: in the terminal, and as Markdown for the docs."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
import time
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import rivals
from bench.harness import Outcome, Row

Measured = list[tuple[Row, Outcome | str]]
"""By row; a text says why it could not be measured."""

_KEPT = ("<!-- by hand, kept by the bench -->", "<!-- the bench goes on -->")
"""What stands between these on the page is written by people."""

_WIDTH = 100
"""Of lines on the page, in characters."""

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
        *_wrapped(
            "`make bench` measures everything here side by side in one run and writes this page. It never fails a "
            "build: the verdict of a row says whether its goal is missed."
        ),
        "",
        *_facts(load_before),
        "",
    ]
    lines += [*_wrapped(_overview([_cells(*one)[-1] for one in measured])), ""]
    for row, outcome in measured:
        lines += [*_entry(*_cells(row, outcome), row.how), ""]
    return "\n".join([*lines, begin, "", kept, "", end, ""])


def _overview(verdicts: list[str]) -> str:
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("reached", "missed", "not measured")]
    return f"Of {len(verdicts)} goals: {', '.join(counts)}."


def _entry(what: str, goal: str, measured: str, beside: str, ratio: str, verdict: str, how: str) -> list[str]:
    """Return a row as lines: the page has no table, because its cells are sentences."""
    facts = {"Goal": goal, "Measured": measured, "Compared with": beside, "Ratio": ratio, "How it is measured": how}
    lines = [*_wrapped(f"**{what[0].upper()}{what[1:]}: {verdict}**"), ""]
    for name, text in facts.items():
        if text != "–":
            lines += _wrapped(f"- {name}: {text}", "  ")
    return lines


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
    facts = [
        f"- Machine: {machine}; {load}",
        f"- Date: {time.strftime('%Y-%m-%d')}",
        f"- Versions: Python {platform.python_version()}, {', '.join([*ours, *rivals.versions()])}",
        f'- Command: `make bench ARGS="{" ".join(sys.argv[1:])}"`',
    ]
    return [line for fact in facts for line in _wrapped(fact, "  ")]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
