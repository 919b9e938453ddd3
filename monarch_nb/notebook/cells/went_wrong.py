"""Instruments of a cell that find out when a training went wrong: `--watch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from monarch_nb.client.instruments.asked import found_on
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.notebook.output.tables import calm_line, show

if TYPE_CHECKING:
    from monarch_nb.client.runs.run import Run


def show_watch(run: Run) -> None:
    """Show below a cell where `--watch` found nothing. What it found, the rank has said itself."""
    for line in watch_lines(found_on(cast("Any", run.mesh), run, "watch")):
        show(calm_line(line))


def watch_lines(found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for the ranks on which nothing was found.

    Example:
        >>> watch_lines({0: {"steps": 7, "found": ""}, 1: {"steps": 7, "found": ""}})
        ['--watch: 7 steps on ranks 0-1, all finite']
    """
    ranks: dict[int, list[int]] = {}
    for rank, told in sorted(found.items()):
        if not told["found"]:
            ranks.setdefault(told["steps"], []).append(rank)
    return [
        f"--watch: {counted(steps, 'step')} on {name_ranks(those)}, all finite"
        if steps
        else f"--watch: {name_ranks(those)} did no step with an optimizer of torch's, so nothing was looked at"
        for steps, those in ranks.items()
    ]
