"""The actors of a reservation, folded so that any number of them can be shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from monarch_nb.client.pools.facts.actor_infos import ActorInfo
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

MAX_ACTORS = 12
"""Of a reservation, as many names of actors are shown."""
MAX_DOINGS = 4
"""So many different things that the ranks of one name do."""
_STATES = ("failed", "waiting", "running", "idle")
"""In the order in which a person wants to know of them."""


def actors_of(meshes: Sequence[tuple[str, str, Iterable[pb.Rank]]]) -> dict[str, Any]:
    """Return the actors of a reservation: those that have failed or do something rather than others.

    Args:
        meshes: id, name and ranks of each.
    """
    told = []
    total = 0
    for mesh_id, name, ranks in meshes:
        actors: dict[str, list[ActorInfo]] = {}
        for rank in ranks:
            total += len(rank.actors) + rank.more_actors
            for status in rank.actors:
                info = ActorInfo.of(name, rank.rank, status)
                actors.setdefault(info.uid, []).append(info)
        told += [_actor(mesh_id, infos) for infos in actors.values()]
    told.sort(key=lambda actor: min(_STATES.index(doing["state"]) for doing in actor["doings"]))
    shown = sorted(told[:MAX_ACTORS], key=lambda actor: (actor["mesh"] != "main", actor["mesh"], actor["name"]))
    return {"shown": shown, "more": total - sum(actor.pop("number") for actor in shown)}


def work_of(actors: Iterable[run_pb2.ActorStatus]) -> tuple[str, str] | None:
    """Return the state of a rank whose actors are at work, and more on it; None when none is."""
    infos = [ActorInfo.of("", 0, actor) for actor in actors if actor.running and not actor.failure]
    for info in infos:
        if info.is_in_collective:
            return "waiting", f"waits in {info.where} ({info.name}.{info.running})"
    return ("running", f"{infos[0].name}.{infos[0].running}") if infos else None


def _actor(mesh_id: str, infos: Sequence[ActorInfo]) -> dict[str, Any]:
    """Return what the ranks of one mesh of actors do; those that do the same together."""
    groups: dict[tuple[str, ...], list[ActorInfo]] = {}
    for info in infos:
        state = _state(info)
        where = info.where if state == "waiting" else ""  # else lines change all the time, on each rank
        groups.setdefault((state, info.running, where, info.failure_line), []).append(info)
    doings = [_doing(key[0], alike) for key, alike in groups.items()]
    doings.sort(key=lambda doing: _STATES.index(doing["state"]))
    first = infos[0]
    return {
        "id": f"{mesh_id}/{first.uid}",
        "name": first.name,
        "class": first.class_label,
        "mesh_id": mesh_id,
        "mesh": first.mesh,
        "ranks": format_ranks({info.rank for info in infos}),
        "actor_ranks": format_ranks([info.actor_rank for info in infos]),
        "doings": doings[:MAX_DOINGS],
        "more": max(0, len(doings) - MAX_DOINGS),
        "number": len(infos),
    }


def _state(info: ActorInfo) -> str:
    if info.failure:
        return "failed"
    if info.running:
        return "waiting" if info.is_in_collective else "running"
    return "idle"


def _doing(state: str, infos: Sequence[ActorInfo]) -> dict[str, Any]:
    return {
        "state": state,
        "ranks": format_ranks([info.actor_rank for info in infos]),
        "running": infos[0].running if state in ("waiting", "running") else "",
        "running_s": max(info.running_s for info in infos) if state in ("waiting", "running") else None,
        "caller": _common(info.caller for info in infos),
        "where": _common(info.where for info in infos),
        "waiting": max(info.waiting for info in infos),
        "failure": infos[0].failure_line,
    }


def _common(texts: Iterable[str]) -> str:
    """Return what all have; empty when they differ."""
    different = set(texts)
    return different.pop() if len(different) == 1 else ""
