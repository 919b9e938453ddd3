"""What a cell's line switches on while the cell runs, and what the cell shows of it afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from monarch_nb.client.instruments.profiles import MEMORY_HISTORY, TORCH_PROFILE
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.notebook.output.inside import history_view, memory_view, profile_view
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.worker.instruments.torch_profile import STEPS
from monarch_nb.worker.memory.failures import is_out_of_memory

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True)
class CellInstrument:
    """An instrument of one cell.

    Attributes:
        flag: that asked for it, as in "--watch".
        name: what ranks know it by.
        options: what it is told there: plain data.
        show: shows below the cell what it found, once the run has ended, in whatever way.
    """

    flag: str
    name: str
    options: Mapping[str, Any]
    show: Callable[[Run], None]


def _torch_profile(parsed: Parsed) -> CellInstrument | None:
    if parsed.text("profile") != "torch":
        return None
    options = {"steps": parsed.count("profile_steps") or STEPS, "ranks": _ranks_of(parsed)}

    def show_profile(run: Run) -> None:
        for view in profile_view(_mesh(run).profile_of(run)):
            show(view)

    return CellInstrument("--profile", TORCH_PROFILE, options, show_profile)


def _memory_history(parsed: Parsed) -> CellInstrument | None:
    if not parsed.switch("memory_history"):
        return None

    def show_history(run: Run) -> None:
        for view in history_view(*_mesh(run).memory_history_of(run)):
            show(view)

    return CellInstrument("--memory-history", MEMORY_HISTORY, {"ranks": _ranks_of(parsed)}, show_history)


def show_found(instruments: Sequence[CellInstrument], run: Run) -> None:
    """Show what instruments found in a run that has ended, and what ranks held on which an allocation failed. What can
    not be shown is said: what the run itself failed with matters more."""
    for each in instruments:
        try:
            each.show(run)
        except (MonarchNbError, OSError) as error:
            show(calm_line(f"{each.flag}: {error}"))
    try:
        _show_full_memory(run)
    except MonarchNbError as error:
        show(calm_line(f"the memory of ranks is not known: {error}"))


def _show_full_memory(run: Run) -> None:
    if not any(is_out_of_memory(failure.name, failure.message) for failure in run.failures):
        return
    report = _mesh(run).memory_of(run)
    if report.ranks:
        show(calm_line("the memory as it was before the allocation that failed:"))
    for view in memory_view(report) if report.ranks else ():
        show(view)


def _mesh(run: Run) -> Mesh:
    return cast("Mesh", run.mesh)


def _ranks_of(parsed: Parsed) -> list[int] | None:
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


_READERS: tuple[Callable[[Parsed], CellInstrument | None], ...] = (
    _torch_profile,
    _memory_history,
)
"""Each returns its instrument, when the line asks for it."""


def instruments_of(parsed: Parsed) -> Sequence[CellInstrument]:
    """Return the instruments that a cell's line asks for.

    Raises:
        UsageError: the cell would return before they have found anything, or has several runs.
    """
    asked = [instrument for read in _READERS if (instrument := read(parsed)) is not None]
    if asked and parsed.switch("noblock"):
        raise UsageError(f"{asked[0].flag} shows what it found when the cell ends: leave --noblock out")
    if asked and parsed.text("scale"):
        raise UsageError(f"{asked[0].flag} looks at one run: leave --scale out")
    return asked
