"""Run the quickstart on a local pool of its own, headlessly, and show it in the terminal: `make demo`.

Afterwards `notebooks/reattach.ipynb` runs in another kernel against the same live ranks. The executed copies are
written to build/ (or `--output DIRECTORY`); the pool is taken down at the end, whatever happens.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.spinner import Spinner
from rich.text import Text

from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import MonarchNbError
from monarch_nb.provision import provisioner

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = [ROOT / "notebooks" / name for name in ("quickstart.ipynb", "reattach.ipynb")]
NODES, PROCS = 2, 4
CELL_TIMEOUT_S = 180
SHOWN_LINES = 24
LIVE_LINES = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS, help="others to run instead, in order")
    parser.add_argument("--output", type=Path, default=ROOT / "build", help="where the executed copies go")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    began = time.monotonic()
    try:
        with local_pool(console):
            for path in options.notebooks:
                execute(path, options.output / path.name, console)
    except KeyboardInterrupt:
        console.print("\ninterrupted")
        return 130
    except MonarchNbError as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", Text(str(error)), sep="")
        return 1
    except CellExecutionError:
        return 1  # The cell's own output has said why.
    except (CellTimeoutError, DeadKernelError) as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", Text(str(error)), sep="")
        return 1
    console.print(f"\n[bold green]Done[/] in {time.monotonic() - began:.0f} s; executed copies are in {options.output}")
    console.print("Open the same notebook in JupyterLab: [bold]make lab[/]")
    return 0


@contextmanager
def local_pool(console: Console) -> Iterator[None]:
    """Start a pool that no other pool of this user meets, and take it down."""
    with tempfile.TemporaryDirectory(prefix="monarch-nb-demo-", dir="/tmp") as home:
        os.environ[HOME_VARIABLE] = home
        console.print(Rule(f"A local pool of {NODES} nodes × {PROCS} ranks"))
        local = provisioner("local")
        try:
            local.up(NODES, PROCS, progress=lambda line: console.print(f"[dim]{line}[/]"))
            yield
        finally:
            local.down(force=True, progress=lambda line: console.print(f"[dim]{line}[/]"))


def execute(path: Path, copy: Path, console: Console) -> None:
    """Execute a notebook in a kernel of its own, showing each cell, and write the executed copy."""
    notebook = nbformat.read(path, as_version=4)
    show = Show(console, notebook)
    console.print()
    console.print(Rule(f"{path.name} ({show.total} cells)"))
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(copy.parent)}},
        on_cell_start=show.begin,
        on_cell_executed=show.end,
    )
    manager = client.create_kernel_manager()
    manager.transport, manager.ip = "ipc", f"{os.environ[HOME_VARIABLE]}/{path.stem}"  # not even a loopback port
    try:
        client.execute()
    finally:
        show.close()
        nbformat.write(notebook, copy)


class Show:
    """What the terminal shows of a notebook: the running cell in place (on a terminal), then each cell for good."""

    def __init__(self, console: Console, notebook: Any) -> None:
        self.console = console
        self.titles = cell_titles(notebook)
        self.total = len(self.titles)
        self.began = 0.0
        self.live: Live | None = None

    def begin(self, cell: Any, cell_index: int) -> None:
        if cell_index not in self.titles:
            return
        self.began = time.monotonic()
        title = self._title(cell_index)
        if not self.console.is_terminal:
            self.console.print(title)
            return
        spinner = Spinner("dots", title)
        self.live = Live(
            get_renderable=lambda: Group(spinner, _indented(output_text(cell), -LIVE_LINES)),
            console=self.console,
            transient=True,
        )
        self.live.start()

    def end(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        if cell_index not in self.titles or not self.began:
            return
        self.close()
        seconds = time.monotonic() - self.began
        self.began = 0.0
        failed = execute_reply["content"]["status"] == "error"
        mark = "[red]✗[/]" if failed else "[green]✓[/]"
        head = Text(f"{seconds:6.1f} s")
        if self.console.is_terminal:
            self.console.print(mark, self._title(cell_index), head)
        else:
            self.console.print(mark, head)
        if shown := _indented(output_text(cell), SHOWN_LINES):
            self.console.print(shown, soft_wrap=True)

    def close(self) -> None:
        """Take the running cell off the terminal."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _title(self, cell_index: int) -> Text:
        number = list(self.titles).index(cell_index) + 1
        return Text.assemble((f"[{number}/{self.total}] ", "dim"), (self.titles[cell_index], "bold"))


def cell_titles(notebook: Any) -> dict[int, str]:
    """Return a title for each code cell that has code: its section and its first line that says something."""
    titles, section = {}, ""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and (heading := re.search(r"^#+ (.+)$", cell.source, re.MULTILINE)):
            section = heading[1]
        elif cell.cell_type == "code" and cell.source.strip():
            lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
            words = [section, *lines[: 2 if lines[0].startswith("%%") else 1]]
            titles[index] = " · ".join(filter(None, words))
    return titles


def output_text(cell: Any) -> Text:
    """Return what a cell has put out so far, as text with its colours."""
    pieces = []
    for output in list(cell.get("outputs", ())):
        if output.output_type == "stream":
            pieces.append(output.text)
        elif output.output_type == "error":
            pieces.append("\n".join(output.traceback))
        else:
            pieces.append(output.data.get("text/plain", ""))
    return Text.from_ansi("\n".join(piece.rstrip("\n") for piece in pieces if piece.strip()))


def _indented(text: Text, lines: int) -> Text:
    """Return the first `lines` lines (the last, when negative), saying how many there are beside them."""
    every = list(text.split("\n", allow_blank=True))
    if len(every) > abs(lines):
        more = Text(f"… {len(every) - abs(lines)} more lines in the executed copy", "dim")
        every = [more, *every[lines:]] if lines < 0 else [*every[:lines], more]
    return Text("\n").join(Text("    ").append_text(line) for line in every if text)


if __name__ == "__main__":
    sys.exit(main())
