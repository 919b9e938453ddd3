"""Ranks, their runs and actors, who waits in vain, and where ranks spend their time, in the value that is
shown. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.client.instruments.top import EVERY_S
from monarch_nb.client.instruments.top_table import TopRow, TopTable
from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.pools.infos import RankInfo, RunInfo
from monarch_nb.client.runs.mismatches import are_unlike
from monarch_nb.client.runs.waits import APART_AFTER_S, Standstill, progress_of, wait_sentence, waiting_in
from monarch_nb.config import cadence
from monarch_nb.ground.rank_sets import format_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

MEMORY_STEP_BYTES = 1_000_000


def rank_shown(info: RankInfo, absence: str, work: tuple[str, str] | None) -> dict[str, Any]:
    state, detail = _rank_state(info, absence, work)
    return {
        "rank": info.rank,
        "node": info.host,
        "state": state,
        "detail": detail,
        "trouble": info.trouble,
        "pid": info.pid,
        "run": info.run_id or None,
        "running_s": info.running_s if info.run_id else None,
        "memory": rounded(info.memory_bytes, MEMORY_STEP_BYTES) if info.memory_bytes else None,
        "cpu": None if info.cpu is None else round(info.cpu, 2),
        "gpu": info.gpu_indices[0] if info.gpu_indices else None,
        "stderr_tail": list(info.stderr_tail),
    }


def _rank_state(info: RankInfo, absence: str, work: tuple[str, str] | None) -> tuple[str, str]:
    """Return a rank's state and more on it.

    Args:
        absence: that its node does not answer; "" when it does.
        work: what its actors do.
    """
    if info.state == "dead":
        return "dead", info.death or ""
    if absence:
        return "unreachable", absence
    if info.waits_in:
        return "waiting", f"waits in {info.waits_in}"
    if info.state == "idle" and work is not None:
        return work
    if info.state == "idle" and info.failure:
        return "failed", info.failure
    return info.state, ""


def runs_shown(infos: Sequence[RunInfo], ranks: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    begun = {rank["run"] for rank in ranks.values()}
    newest = max((info.number for info in infos), default=0)
    told = []
    for info in infos:
        if info.done and info.collected and info.number != newest:
            continue
        fates = _fates(info, ranks if info.number == newest else {})
        told.append(
            {
                "id": info.run_id,
                "number": info.number,
                "title": info.title,
                "owner": info.owner,
                "cell_number": info.cell_number,
                "state": _run_state(info, begun),
                "outcome": _outcome(info, fates) if info.done else "",
                "ranks": format_ranks(info.ranks),
                "running_s": info.running_s,
                "finished": format_ranks(info.finished),
                "failed": format_ranks(fates.get("failed", []) + fates.get("died", [])),
            }
        )
    return told


def _run_state(info: RunInfo, begun: Collection[str]) -> str:
    """Return how far a run is.

    Args:
        begun: what some rank runs.
    """
    if info.done:
        return "finished"
    return "running" if info.finished or info.running or info.run_id in begun else "queued"


def _fates(info: RunInfo, ranks: Mapping[int, dict[str, Any]]) -> dict[str, list[int]]:
    """Return what became of ranks that did not come to the end of a run, in the words that their states have."""
    fates: dict[str, list[int]] = {}
    for rank in info.failed:
        state = ranks[rank]["state"] if rank in ranks else "unreachable"
        fate = {"failed": "failed", "unreachable": "failed", "dead": "died"}.get(state, "ended by a restart")
        fates.setdefault(fate, []).append(rank)
    if info.stopped:
        fates["interrupted" if info.running_s else "cancelled"] = list(info.stopped)
    return fates


def _outcome(info: RunInfo, fates: Mapping[str, Sequence[int]]) -> str:
    """Return "finished", "interrupted" or "failed on 3, interrupted on 0-2"."""
    said = [
        fate if len(ranks) == len(info.ranks) > 1 else f"{fate} on {format_ranks(ranks)}"
        for fate, ranks in fates.items()
    ]
    return ", ".join(said) or "finished"


def rounded(count_bytes: int, step_bytes: int) -> int:
    """What stands still should not look as if it moved."""
    return round(count_bytes / step_bytes) * step_bytes


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


GONE_AFTER_S = cadence(2.0)
"""So long ranks wait in the same place, while others have ended the cell or made calls that do not match, before that
is called a hang."""


@dataclass(frozen=True)
class Hang:
    """Why a run does not go on. ranks: those that wait."""

    text: str
    ranks: tuple[int, ...]


@dataclass
class Hangs:
    """Looks at meshes again and again: what comes and goes while ranks work is none."""

    _seen: dict[str, Standstill] = field(default_factory=dict)
    """By run."""

    def find(self, ranks: Mapping[int, RankInfo], runs: Iterable[RunInfo], now: float) -> Hang | None:
        """Return the hang of the oldest run that does not go on, if any.

        Args:
            ranks: those that answer.
        """
        for run in runs:
            here = [ranks[rank] for rank in run.ranks if rank in ranks and ranks[rank].run_id == run.run_id]
            where = {info.rank: info.where for info in here if info.where is not None and info.waits_in}
            waiting = waiting_in(where)
            if run.done or not waiting:
                self._seen.pop(run.run_id, None)
                continue
            lasts_s = self._seen.setdefault(run.run_id, Standstill()).lasts_s(progress_of(where), now)
            gone = {rank: _fate(rank, run, ranks) for rank in run.finished}
            is_unlike = are_unlike(where)
            if (gone or is_unlike) and lasts_s >= GONE_AFTER_S:
                return Hang(wait_sentence(where, gone), tuple(waiting))
            is_apart = len(set(waiting.values())) > 1 and len(waiting) == len(run.ranks)
            if is_apart and lasts_s >= APART_AFTER_S:
                return Hang(f"{wait_sentence(where, {})}, for each other, it seems", tuple(waiting))
        return None

    def keep(self, runs: Iterable[str]) -> None:
        """Forget all runs but these."""
        self._seen = {run: self._seen[run] for run in runs if run in self._seen}


def _fate(rank: int, run: RunInfo, ranks: Mapping[int, RankInfo]) -> str:
    """Return what became of a rank that has ended the cell."""
    info = ranks.get(rank)
    if rank in run.stopped:
        return "ended by an interrupt"
    if rank not in run.failed:
        return "finished the cell"
    if info is None or info.state == "dead":
        return "died"
    return f"raised {info.failure.partition(':')[0].partition(' ')[0]}" if info.failure else "restarted"


def top_shown(table: TopTable) -> dict[str, Any]:
    """Return the table as a browser shows it."""
    return {
        "sentence": table.sentence,
        "is_late": table.straggler is not None,
        "again_s": EVERY_S,
        "rows": [_row(row) for row in table.rows],
    }


def _row(row: TopRow) -> dict[str, Any]:
    texts = row.texts()
    parts = [{"kind": each.kind, "share": round(each.share, 3), "words": each.words} for each in row.shares()]
    return {
        "ranks": row.ranks_text,
        "is_late": row.is_late,
        "node": texts["node"],
        "steps_per_s": texts["steps/s"],
        "parts": parts,
        "memory": texts["memory"],
        "cpu": texts["CPU"],
        "gpu": texts["GPU"],
        "where": texts["where mostly"],
    }
