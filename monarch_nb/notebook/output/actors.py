"""The table of actors that `%mesh actors` shows."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.client.pools.actor_infos import ActorGroup, ActorInfo, grouped
from monarch_nb.ground.rank_sets import counted, format_ranks, name_ranks
from monarch_nb.notebook.output.tables import Shown, calm_line, table
from monarch_nb.times import duration

HEADERS = ("actor", "class", "mesh", "ranks", "waiting", "runs", "for", "at")


def actors_table(name: str, infos: Sequence[ActorInfo]) -> Shown:
    """Return what the actors of a reservation do; those that do the same are one row.

    Args:
        name: of the reservation.
    """
    if not infos:
        return calm_line(f'{name} has no actors: reservation.mesh.spawn("name", Class) makes some')
    groups = grouped(infos)
    rows = [_row(group) for group in groups]
    notes = [
        f"{group.info.name} on {name_ranks(group.ranks)} failed: {group.info.failure_line}"
        for group in groups
        if group.info.failure
    ]
    meshes = len({info.uid for info in infos})
    title = f"{name} · {counted(len(infos), 'actor')} in {meshes} mesh{'' if meshes == 1 else 'es'}"
    return table(title, HEADERS, rows, notes)


def _row(group: ActorGroup) -> list[str]:
    info = group.info
    runs = "failed" if info.failure else info.running
    if info.running and info.caller:
        runs = f"{info.running} for {info.caller}"
    if info.is_ending:
        runs = f"ending, in {info.running}" if info.running else "ending"
    return [
        info.name,
        info.class_label,
        info.mesh,
        format_ranks(group.ranks),
        str(group.waiting) if group.waiting else "",
        runs or "idle",
        duration(group.running_s) if info.running else "",
        info.where if info.running else "",
    ]
