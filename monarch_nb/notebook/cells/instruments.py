"""What a cell's line switches on while the cell runs, and what the cell shows of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_nb.client.flames.flames import PYTHON_PROFILE
from monarch_nb.client.instruments.profiles import MEMORY_HISTORY, TORCH_PROFILE
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.notebook.cells.flames import flames_found
from monarch_nb.notebook.cells.profiles import history_found, profile_found, profiled_ranks, show_full_memory
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.cells.went_wrong import deterministic_found, watch_found
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.notebook.syntax.went_wrong import determined, watched
from monarch_nb.worker.instruments.torch_profile import STEPS

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run


@dataclass(frozen=True)
class CellInstrument:
    """An instrument of one cell.

    Attributes:
        flag: that asked for it, as in "--watch".
        name: what ranks know it by.
        options: what it is told there: plain data.
        found: asks the ranks what it found, once the run has ended in whatever way, and yields what stands below the
            cell.
    """

    flag: str
    name: str
    options: Mapping[str, Any]
    found: Callable[[Run], Iterator[object]]


def _torch_profile(parsed: Parsed) -> CellInstrument | None:
    if parsed.text("profile") != "torch":
        return None
    options = {"steps": parsed.count("profile_steps") or STEPS, "ranks": profiled_ranks(parsed)}
    return CellInstrument("--profile", TORCH_PROFILE, options, profile_found)


def _python_profile(parsed: Parsed) -> CellInstrument | None:
    if parsed.text("profile") != "python":
        return None
    return CellInstrument("--profile=python", PYTHON_PROFILE, {}, flames_found)


def _memory_history(parsed: Parsed) -> CellInstrument | None:
    if not parsed.switch("memory_history"):
        return None
    return CellInstrument("--memory-history", MEMORY_HISTORY, {"ranks": profiled_ranks(parsed)}, history_found)


def _watch(parsed: Parsed) -> CellInstrument | None:
    text = parsed.text("watch")
    return CellInstrument("--watch", "watch", {"what": watched(text)}, watch_found) if text is not None else None


def _deterministic(parsed: Parsed) -> CellInstrument | None:
    options = determined(parsed)
    if options is None:
        return None
    flag = "--compare-with" if options["compare_with"] else "--deterministic"
    return CellInstrument(flag, "deterministic", options, deterministic_found)


_READERS: tuple[Callable[[Parsed], CellInstrument | None], ...] = (
    _torch_profile,
    _python_profile,
    _memory_history,
    _watch,
    _deterministic,
)
"""Each returns its instrument, when the line asks for it."""


def instruments_of(parsed: Parsed) -> Sequence[CellInstrument]:
    """Return the instruments that a cell's line asks for.

    Raises:
        UsageError: the cell would return before they have found anything, or runs more than once; or a flag stands
            without the one that it belongs to.
    """
    _check_profile_flags(parsed)
    asked = [instrument for read in _READERS if (instrument := read(parsed)) is not None]
    if asked and parsed.switch("noblock"):
        raise UsageError(f"{asked[0].flag} shows what it found when the cell ends: leave --noblock out")
    if asked and parsed.text("scale") is not None:
        raise UsageError(f"{asked[0].flag} looks at one run, and --scale makes several: leave one of them out")
    return asked


def _check_profile_flags(parsed: Parsed) -> None:
    has_torch = parsed.text("profile") == "torch"
    if parsed.count("profile_steps") is not None and not has_torch:
        raise UsageError("--profile-steps belongs to --profile: --profile --profile-steps 2")
    if parsed.text("profile_ranks") is not None and not has_torch and not parsed.switch("memory_history"):
        raise UsageError("--profile-ranks belongs to --profile or --memory-history: --profile --profile-ranks 0")


def by_name(instruments: Sequence[CellInstrument]) -> dict[str, Mapping[str, Any]]:
    """Return the options of instruments by their names, as `Mesh.submit` takes them."""
    return {each.name: each.options for each in instruments}


def show_found(instruments: Sequence[CellInstrument], run: Run, *, in_place: bool) -> None:
    """Show what instruments found in a run that has ended, and what ranks held on which an allocation failed. What can
    not be shown is said: what the run itself failed with matters more.

    Args:
        in_place: a line counts the seconds while ranks write down what they recorded.
    """
    if _never_began(run):
        return
    for each in instruments:
        try:
            with Progress(in_place) as progress:
                progress.soon(f"{each.flag}: the ranks write down what they recorded")
                for place, shown in enumerate(each.found(run)):
                    (show if place else progress.done)(shown)
        except (MonarchNbError, OSError) as error:
            show(calm_line(f"{each.flag}: {error}"))
    try:
        show_full_memory(run)
    except MonarchNbError as error:
        show(calm_line(f"the memory of ranks is not known: {error}"))


def _never_began(run: Run) -> bool:
    """Return whether a run was taken out of the queue of all its ranks: there was nothing to look at."""
    return bool(run.failures) and [failure.kind for failure in run.failures] == ["cancelled"] * len(run.ranks)
