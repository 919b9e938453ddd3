"""`python -m bench`: measure every row, print the table, and write docs/performance.md after a whole run.
What people wrote there stays."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from bench import (
    actors,
    browser,
    calls,
    compared,
    curves,
    files,
    flood,
    fold,
    levels,
    lives,
    panel,
    ray,
    report,
    saves,
    scale,
    slurm,
    soak,
    titan,
    top,
    training,
    values,
    watching,
)
from bench.harness import Bench, Outcome, Row

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_ORDER = (
    *(
        "fresh",
        "ipyparallel",
        "monarch",
        "reserve",
        "many",
        "many-1",
        "memory",
        "restart",
        "script",
        "fit",
        "autosave",
        "watch",
    ),
    *("slurm", "ray"),
    *("hang", "flood", "fold", "fold-tree", "titan", "push", "import", "compared", "save", "save-ddp"),
    *("actor-call-1", "actor-call-8", "actor-call-32", "actor-fresh", "actor-array", "actor-messages", "actor-death"),
    *("engine-first", "engine-call"),
    *("first-sync", "unchanged", "edit", "client-bytes", "panel", "panel-256"),
    *("panel-browser", "long-log", "log-flood", "curves", "top", "nodes-64", "nodes-256", "nodes-1024", "values"),
)
_LONG = tuple(row.name for row in (*levels.ROWS, *soak.ROWS))
"""Only when they are asked for."""
ROWS = sorted(
    (
        row
        for rows in (
            actors,
            calls,
            compared,
            curves,
            files,
            flood,
            fold,
            lives,
            titan,
            top,
            training,
            panel,
            browser,
            ray,
            saves,
            scale,
            slurm,
            values,
            watching,
            levels,
            soak,
        )
        for row in rows.ROWS
    ),
    key=lambda row: (*_ORDER, *_LONG).index(row.name),
)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        choices=(*_ORDER, *_LONG),
        help=f"only these rows: {', '.join(_ORDER)}; and some that take long: {', '.join(_LONG)}",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} also with --quick or --only")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that everything is cleaned up
    rows = [row for row in ROWS if row.name in (arguments.only or _ORDER)]
    console = Console(width=None if sys.stdout.isatty() else 160)  # else a table for a file is 80 columns wide
    load_before = os.getloadavg()[0]
    measured = measure(rows, arguments.quick, console)
    report.print_table(console, measured)
    if arguments.write or not (arguments.only or arguments.quick):
        PAGE.write_text(report.markdown(measured, load_before, PAGE.read_text()))
        console.print(f"written to {PAGE}")


def measure(rows: list[Row], quick: bool, console: Console) -> report.Measured:
    """Measure rows, those of one pool one after the other; return them in their own order."""
    found: dict[str, Outcome | str] = {}
    with Bench(quick, lambda text: console.print(f"  {text}", style="dim", highlight=False)) as bench:
        for row in sorted(rows, key=lambda row: row.shape):
            console.print(f"[bold]{row.name}[/] {row.what}", highlight=False)
            found[row.name] = outcome = _measure(row, bench)
            text = outcome if isinstance(outcome, str) else f"{outcome.measured}; {outcome.beside}: {outcome.ratio}"
            console.print(f"  {text}", highlight=False, markup=False)
    return [(row, found[row.name]) for row in rows]


def _measure(row: Row, bench: Bench) -> Outcome | str:
    try:
        return row.measure(bench)
    except Exception as error:  # noqa: BLE001 -- a row that can not run says why, the others go on
        return f"{type(error).__name__}: {error}"


main()
