"""`%%mesh --profile`, `--memory-history` and a failed allocation: what is shown below the cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from monarch_nb.errors import UsageError
from monarch_nb.notebook.output.inside import history_view, memory_view, profile_view
from monarch_nb.notebook.output.tables import Shown, calm_line, show
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.sizes import binary_size
from monarch_nb.worker.memory.failures import asked_bytes, is_out_of_memory

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def profile_found(run: Run) -> Iterator[Shown]:
    """Yield where the time of the profiled ranks went."""
    yield from profile_view(_mesh(run).profile_of(run))


def history_found(run: Run) -> Iterator[Shown]:
    """Yield where the record of allocations is."""
    yield from history_view(*_mesh(run).memory_history_of(run))


def show_full_memory(run: Run) -> None:
    """Show what ranks held on which an allocation failed, if one did."""
    if run.is_script or not any(is_out_of_memory(failure.name, failure.message) for failure in run.failures):
        return
    report = _mesh(run).memory_of(run)
    if report.ranks:
        asked = max(asked_bytes(failure.message) for failure in run.failures)
        of_size = f" of {binary_size(asked)}" if asked else ""
        show(calm_line(f"the memory as it was before the allocation{of_size} that failed:"))
    for view in memory_view(report) if report.ranks else ():
        show(view)


def profiled_ranks(parsed: Parsed) -> list[int] | None:
    """Return the ranks that `--profile-ranks` names; None for the default.

    Raises:
        UsageError: it can not be read.
    """
    text = parsed.text("profile_ranks")
    if text is None:
        return None
    if not _RANKS.fullmatch(text):
        raise UsageError(f"--profile-ranks takes ranks such as 0,4-7, not {text!r}")
    parts = [part.partition("-") for part in text.split(",")]
    return sorted({rank for first, _, last in parts for rank in range(int(first), int(last or first) + 1)})


def _mesh(run: Run) -> Mesh:
    return cast("Mesh", run.mesh)
