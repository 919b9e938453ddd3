"""Which ranks are compared with each other, where `--over` names a dimension. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_nb.errors import TargetError
from monarch_nb.ground.rank_sets import format_ranks, listed, name_ranks
from monarch_nb.shape import Extent
from monarch_nb.worker.comparing.dimensions import Dimensions


def groups_over(extent: Extent, ranks: Sequence[int], over: str) -> list[tuple[int, ...]]:
    """Return the ranks that are compared with each other, by a dimension of the mesh.

    Args:
        extent: of the mesh. ranks: those of it that are meant.
        over: the dimension in which the ranks of a group differ.

    Example:
        >>> groups_over(Extent({"hosts": 2, "procs": 2}), (0, 1, 2, 3), "hosts")
        [(0, 2), (1, 3)]
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in ranks:
        others = tuple((label, place) for label, place in extent.point(rank).items() if label != over)
        groups.setdefault(others, []).append(rank)
    return [tuple(group) for group in groups.values()]


def groups_of_device_meshes(told: Mapping[int, Dimensions], over: str, extent: Extent) -> list[tuple[int, ...]]:
    """Return the ranks that are compared with each other, by a dimension of the ranks' device meshes.

    Args:
        told: what each rank that is meant has said of its device meshes.
        over: the dimension in which the ranks of a group differ.
        extent: of the mesh, which has no such dimension.

    Raises:
        TargetError: device meshes have no such dimension, or only those of some ranks; or they contradict each other.

    Example:
        >>> groups_of_device_meshes({0: {"dp": [(0, 1)]}, 1: {"dp": [(0, 1)]}}, "dp", Extent({"procs": 2}))
        [(0, 1)]
    """
    names = sorted({name for dimensions in told.values() for name in dimensions})
    if over not in names:
        theirs = f"the device meshes of its ranks have {listed(names)}" if names else "its ranks hold no device mesh"
        raise TargetError(f"no dimension {over!r}; this mesh has {listed(extent)}, and {theirs}")
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, dimensions in sorted(told.items()):
        found = dimensions.get(over, [])
        if len(found) > 1:
            several = listed([format_ranks(each) for each in found])
            raise TargetError(
                f"rank {rank} has device meshes with different ranks in {over!r}: {several}; give the one that is "
                "meant a variable of a cell, and del others"
            )
        groups.setdefault(found[0] if found else (), []).append(rank)
    if without := groups.get((), []):
        verb = "is" if len(without) == 1 else "are"
        raise TargetError(
            f"{name_ranks(without)} {verb} in no device mesh with a dimension {over!r}: leave out with -t"
        )
    return [tuple(group) for group in groups.values()]
