"""What commands print, in the words of a terminal: lines, tables, and JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from monarch_nb.client.advice import here
from monarch_nb.config import POOL_READY


def tell(what: object) -> None:
    """Print what a command was asked for."""
    print(here(str(what)), flush=True)


def say(line: str) -> None:
    """Print what goes on besides."""
    print(here(line), file=sys.stderr, flush=True)


def say_step(line: str) -> None:
    """Print what goes on while something is reserved, and of a local pool that was started for it how it ends."""
    say(f"{line}; monarch-nb down ends it" if line.startswith(POOL_READY) else line)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns; those that are empty in every row are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [column for column in range(len(headers)) if any(row[column] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in kept:
        table.add_column(headers[column], overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[column] or "")) for column in kept))
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(table)


def print_json(value: object) -> None:
    """Print what programs read."""
    print(json.dumps(value, indent=2, default=str))
