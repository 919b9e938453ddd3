"""Ranks and their runs, in the value that is shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
from monarch_nb.ground.rank_sets import format_ranks

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
                "submitted_at": info.submitted_at,
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
