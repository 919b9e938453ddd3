"""Which run a cell with `--compare-with` is compared with: one and the same on all its ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from monarch_nb.client.instruments.asked import Instruments
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import name_ranks

DETERMINISTIC, LAST = "deterministic", "last"
_RECORDED = '__import__("monarch_nb.worker.instruments.deterministic", fromlist=["_"]).recorded()'


class MeshWithRecords(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    @property
    def ranks(self) -> tuple[int, ...]: ...

    def pull(self, expression: str) -> list[Any]: ...


def _recorded_on(mesh: MeshWithRecords) -> dict[int, list[int]]:
    """Return the numbers of the runs that have left a record, by rank."""
    return dict(zip(mesh.ranks, mesh.pull(_RECORDED), strict=True))


def with_run(instruments: Instruments | None, mesh: MeshWithRecords) -> Instruments | None:
    """Return instruments with the number of the run to compare with: "last" is one and the same run on all ranks, also
    where the newest run was on some ranks only. Waits until the ranks are idle if they are to be asked.

    Raises:
        UsageError: some ranks have no record of that run.
    """
    options = (instruments or {}).get(DETERMINISTIC, {})
    wanted = options.get("compare_with")
    if not instruments or not wanted:
        return instruments
    number = run_to_compare(_recorded_on(mesh), wanted)
    return {**instruments, DETERMINISTIC: {**options, "compare_with": number}}


def run_to_compare(records: Mapping[int, Collection[int]], wanted: int | str) -> int:
    """Return the number of the run to compare with.

    Args:
        records: the numbers of the runs that have left a record, by rank.
        wanted: a number, or "last" for the greatest that any rank has.

    Raises:
        UsageError: some ranks have no record of it.

    Example:
        >>> run_to_compare({0: [65, 67], 1: [65, 67]}, "last")
        67
    """
    known = {number for numbers in records.values() for number in numbers}
    first = "run a cell with --deterministic there first (records are kept until ranks are restarted)"
    if not known:
        what = f"run {wanted}" if wanted != LAST else "a run"
        raise UsageError(f"{name_ranks(sorted(records))} have no record of {what}: {first}")
    number = max(known) if wanted == LAST else int(wanted)
    without = sorted(rank for rank, numbers in records.items() if number not in numbers)
    if not without:
        return number
    verb = "has" if len(without) == 1 else "have"
    common = sorted(number for number in known if all(number in numbers for numbers in records.values()))
    instead = f"run {common[-1]} is the newest that all ranks here have" if common else first
    raise UsageError(f"{name_ranks(without)} {verb} no record of run {number}: {instead}")
