"""Instruments of a cell that find out when a training went wrong: `--watch`, `--deterministic`, `--compare-with`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.notebook.output.tables import Shown, calm_line

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
        return f"{{}} called backward {times} and did no step, so no gradients were looked at: {why}"
    if not steps:
        return "{} did no step with an optimizer of torch's, so nothing was looked at"
    if not looked_at:
        why = "there were no gradients, or a GradScaler left all steps out (nan=loss looks at the loss)"
        return f"{counted(steps, 'step')} on {{}}, but nothing was looked at: {why}"
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


def deterministic_found(run: Run) -> Iterator[Shown]:
    """Yield how many steps it left a record of, or where it begins to differ from another run."""
    found = found_on(cast("Any", run.mesh), run, "deterministic")
    for line in deterministic_lines(found, run.number, has_failed=bool(run.failures)):
        yield calm_line(line)


def deterministic_lines(found: Mapping[int, Mapping[str, Any]], number: int, *, has_failed: bool = False) -> list[str]:
    """Return a line for each thing that ranks say.

    Args:
        number: of the run. has_failed: as of `watch_lines`.

    Example:
        >>> of_rank = {"seed": 0, "steps": 7, "recorded_steps": 7, "compared_with": 0, "notes": [], "parted": ""}
        >>> deterministic_lines({0: of_rank}, 12)
        ['run 12: 7 steps recorded on rank 0, seed 0; --compare-with 12 compares a run with it']
    """
    told: dict[str, list[int]] = {}
    for rank, each in sorted(found.items()):
        steps, compared_with = counted(each["steps"], "step"), each["compared_with"]
        if each["parted"]:
            line = f"differs from run {compared_with} on {{}}, {each['parted']}"
        elif not each["steps"]:
            if has_failed:
                continue
            line = "no optimizer of torch's did a step on {}, so there is nothing to compare"
        elif compared_with:
            line = f"the same as run {compared_with} on {{}}: {_common(each)}"
        else:
            line = f"{steps} recorded on {{}}, seed {each['seed']}; --compare-with {number} compares a run with it"
        told.setdefault(line, []).append(rank)
        for note in _notes(each):
            told.setdefault(f"{{}}: {note}", []).append(rank)
    return [f"run {number}: {line.format(name_ranks(ranks))}" for line, ranks in told.items()]


def _common(each: Mapping[str, Any]) -> str:
    """Return how many steps two runs are the same for, and which of them went on."""
    steps, before = each["steps"], each["steps_before"]
    if steps == before:
        return counted(steps, "step")
    longer = "this run" if steps > before else f"run {each['compared_with']}"
    return f"all {counted(min(steps, before), 'step')}; {longer} went on to {max(steps, before)}"


def _notes(each: Mapping[str, Any]) -> list[str]:
    recorded, steps = each["recorded_steps"], each["steps"]
    short = [f"only the first {recorded} of {steps} steps are recorded"] if recorded < steps else []
    return [*each["notes"], *short]
