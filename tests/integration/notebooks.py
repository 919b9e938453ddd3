"""Notebooks of the project, run to their ends by nbclient."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CELL_TIMEOUT_S = 600
"""The longest cell needs about 20 s on two idle cores."""
KEPT = os.environ.get("KEEP_NOTEBOOKS", "")
"""The folder in which `make executed` wants them with their outputs, for the site; empty in tests."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Executed:
    """A notebook with its outputs."""

    notebook: nbformat.NotebookNode

    def outputs(self, code: str, place: int = 0) -> list[nbformat.NotebookNode]:
        """Return the outputs of the first code cell that contains `code`, or of the one at `place` among those."""
        cells = [cell for cell in self.notebook.cells if cell.cell_type == "code" and code in cell.source]
        return list(cells[place].outputs)

    def text(self, code: str, place: int = 0) -> str:
        """Return all that such a cell shows, as plain text."""
        return "".join(_plain(output) for output in self.outputs(code, place))

    def images(self, code: str) -> int:
        """Return how many figures such a cell shows; those of ranks are part of its HTML."""
        bundles = [output.get("data", {}) for output in self.outputs(code)]
        return sum(("image/png" in data) + data.get("text/html", "").count("data:image/png") for data in bundles)

    def losses(self, code: str) -> dict[int, float]:
        """Return the losses that the cell printed, by step."""
        return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+) +loss (\d+\.\d+)", self.text(code))}


def execute(
    name: str,
    folder: Path,
    without: str | None = None,
    nodes: int | None = None,
    instead: Mapping[str, str] | None = None,
    python: Path | None = None,
) -> Executed:
    """Run a copy of a notebook in a folder, in a kernel of its own.

    Args:
        without: a cell with this text is left out.
        nodes: so many instead of 4, wherever it says how many.
        instead: cells with these texts have others.
        python: the kernel's, where it is another one than the test's; such a notebook is not kept.
    """
    notebook = nbformat.read(Path(shutil.copy(NOTEBOOKS / f"{name}.ipynb", folder)), as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.source != without]
    for cell in notebook.cells:
        cell.source = (instead or {}).get(cell.source, cell.source)
    if nodes is not None:
        for cell in notebook.cells:
            cell.source = re.sub(r"(--n?nodes[ =])4\b", rf"\g<1>{nodes}", cell.source)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    if python is not None:
        client.create_kernel_manager().kernel_spec.argv[0] = str(python)
        return Executed(client.execute())
    executed = Executed(client.execute())
    keep(name, executed.notebook)
    return executed


def keep(name: str, notebook: nbformat.NotebookNode) -> None:
    """Keep a notebook as it was executed, where `make executed` asks for it."""
    if KEPT:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # when each message came
        notebook.metadata.pop("widgets", None)
        nbformat.write(notebook, Path(KEPT) / f"{name}.ipynb")


def _plain(output: nbformat.NotebookNode) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain") or "\n".join(output.get("traceback", []))
    return f"{ANSI.sub('', text)}\n"
