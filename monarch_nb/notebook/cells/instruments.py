"""What a cell's line switches on while the cell runs, and what the cell shows of it afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.client.instruments.flames import DIRECTORY, PYTHON_PROFILE
from monarch_nb.client.instruments.profiles import MEMORY_HISTORY, TORCH_PROFILE
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.inside import file_line, history_view, memory_view, profile_view
from monarch_nb.notebook.output.tables import Shown, calm_line, show
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.notebook.syntax.flags import watched
from monarch_nb.sizes import binary_size
from monarch_nb.worker.instruments.torch_profile import STEPS
from monarch_nb.worker.memory import asked_bytes, is_out_of_memory

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run

_WATCHED = {"grad": "gradients", "loss": "losses", "param": "parameters"}


def watch_found(run: Run) -> Iterator[Shown]:
    """Yield what stands below a cell where `--watch` found nothing. What it found, the rank has said itself."""
    for line in watch_lines(found_on(cast("Any", run.mesh), run, "watch"), has_failed=bool(run.failures)):
        yield calm_line(line)


def watch_lines(found: Mapping[int, Mapping[str, Any]], *, has_failed: bool = False) -> list[str]:
    """Return a line for the ranks on which nothing was found.

    Args:
        has_failed: the run has: why, its traceback says, and not that ranks did no step.

    Example:
        >>> of_rank = {"steps": 7, "backward_passes": 7, "looked_at": 7, "what": ["grad"], "found": ""}
        >>> watch_lines({0: of_rank, 1: of_rank})
        ['--watch: 7 steps on ranks 0-1, all gradients finite; nan=loss,grad looks at the loss, too']
    """
    finders = [rank for rank, told in sorted(found.items()) if told["found"]]
    lines: dict[str, list[int]] = {}
    for rank, told in sorted(found.items()):
        if not told["found"] and (told["looked_at"] or not has_failed):
            lines.setdefault(_watched(told, with_hint=not finders), []).append(rank)
    above = f"{name_ranks(finders)} found what is not finite (see above); " if finders else ""
    return [f"--watch: {above}{line.format(name_ranks(ranks))}" for line, ranks in lines.items()]


def _watched(told: Mapping[str, Any], *, with_hint: bool) -> str:
    """Return what was looked at, with a place for the ranks' names; where that were gradients alone and all is well,
    with what more there is."""
    steps, looked_at = told["steps"], told["looked_at"]
    if not steps and told["backward_passes"]:
        times = counted(told["backward_passes"], "time")
        why = "a GradScaler leaves out steps whose gradients are not finite; nan=loss looks at the loss"
        return f"no gradients were looked at on {{}}: backward was called {times}, and no optimizer made a step; {why}"
    if not steps:
        return "nothing was looked at on {}: no optimizer of torch's made a step there"
    if not looked_at:
        why = "there were no gradients, or a GradScaler left all steps out (nan=loss looks at the loss)"
        return f"nothing was looked at in {counted(steps, 'step')} on {{}}: {why}"
    finite = _all_finite(told["what"])
    if with_hint and told["what"] == ["grad"]:
        finite += "; nan=loss,grad looks at the loss, too"
    if looked_at < steps:
        return f"{looked_at} of {counted(steps, 'step')} on {{}} looked at, {finite}"
    return f"{counted(steps, 'step')} on {{}}, {finite}"


def _all_finite(what: Sequence[str]) -> str:
    """Return what is finite: "all gradients finite"."""
    if len(what) == len(_WATCHED):
        return "all finite"
    return f"all {' and '.join(_WATCHED[each] for each in what)} finite"


_SPEEDSCOPE = "https://www.speedscope.app"


def flames_found(run: Run) -> Iterator[object]:
    """Yield where the time of a run went, and write that down."""
    flames = run.mesh.flames_of(run)
    if not flames.groups:
        yield calm_line("; ".join(flames.notes) or "no profile: the cell ended before the first look at its stacks")
        return
    yield flames
    path = Path(DIRECTORY) / f"run{run.number}.speedscope.json"
    try:
        yield file_line("stacks", flames.save(path), _SPEEDSCOPE)
    except OSError as error:
        why = f"{path} can not be written ({error.strerror})"
        yield calm_line(f"{why}: mesh.flames_of(run).save(PATH) is for another place")
    if flames.notes:
        yield calm_line("\n".join(flames.notes))


_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def profile_found(run: Run) -> Iterator[Shown]:
    """Yield where the time of the profiled ranks went."""
    yield from profile_view(run.mesh.profile_of(run))


def history_found(run: Run) -> Iterator[Shown]:
    """Yield where the record of allocations is."""
    yield from history_view(*run.mesh.memory_history_of(run))


def show_full_memory(run: Run) -> None:
    """Show what ranks held on which an allocation failed, if one did."""
    if run.is_script or not any(is_out_of_memory(failure.name, failure.message) for failure in run.failures):
        return
    report = run.mesh.memory_of(run)
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


_READERS: tuple[Callable[[Parsed], CellInstrument | None], ...] = (
    _torch_profile,
    _python_profile,
    _memory_history,
    _watch,
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
