"""From what allocators send to what people get: events of runs, failures and deaths of ranks. Pure."""

from __future__ import annotations

import json
import signal
from typing import Literal

from monarch_nb.client import events
from monarch_nb.config import RESTARTED
from monarch_nb.errors import RankFailure
from monarch_nb.proto import run_pb2

_OUTCOMES: dict[int, Literal["ok", "error", "interrupted", "died", "cancelled"]] = {
    run_pb2.OUTCOME_OK: "ok",
    run_pb2.OUTCOME_ERROR: "error",
    run_pb2.OUTCOME_INTERRUPTED: "interrupted",
    run_pb2.OUTCOME_DIED: "died",
    run_pb2.OUTCOME_CANCELLED: "cancelled",
}


def display_event(rank: int, display: run_pb2.Display) -> events.Display:
    """Return what listeners are told of a display."""
    content = json.loads(display.content_json or "{}")
    kinds: dict[int, Literal["show", "update", "clear"]] = {
        run_pb2.Display.KIND_UPDATE: "update",
        run_pb2.Display.KIND_CLEAR: "clear",
    }
    kind = kinds.get(display.kind, "show")
    if kind == "clear":
        return events.Display(rank, kind, content)
    display_id = content.get("transient", {}).get("display_id")
    return events.Display(rank, kind, content.get("data", {}), content.get("metadata", {}), display_id)


def result_event(packed: run_pb2.RankResult, host: str) -> events.Result:
    """Return what listeners are told of a rank that finished; `host` is its node's name."""
    outcome = _OUTCOMES.get(packed.outcome, "error")
    content = json.loads(packed.bundle_json) if packed.bundle_json else {}
    return events.Result(
        rank=packed.rank,
        outcome=outcome,
        duration_s=packed.duration_s,
        bundle=content.get("data", {}),
        metadata=content.get("metadata", {}),
        failure=None if outcome == "ok" else _failure(packed, outcome, host),
        group_aborted=packed.group_aborted,
        may_print_later=not packed.untouched and outcome not in ("died", "cancelled"),
    )


def _failure(packed: run_pb2.RankResult, outcome: str, host: str) -> RankFailure:
    if outcome == "died":
        return _death_failure(packed.rank, packed.death, host)
    if outcome == "cancelled":
        return RankFailure(packed.rank, host, outcome, "Cancelled", "dropped before it began on this rank")
    failure = packed.failure
    return RankFailure(packed.rank, host, outcome, failure.name, failure.message, failure.traceback, failure.where)


def signal_name(number: int) -> str:
    """Return "SIGKILL"; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def describe_death(death: run_pb2.Death) -> str:
    """Return how a rank ended and the likely cause, in one line."""
    if death.HasField("signal"):
        how = f"killed by signal {death.signal} ({signal_name(death.signal)})"
    elif death.HasField("exit_code"):
        how = f"exited with code {death.exit_code}"
    else:
        how = ""
    return ": ".join(filter(None, [how, death.likely_cause])) or "ended"


def _death_failure(rank: int, death: run_pb2.Death, host: str) -> RankFailure:
    return RankFailure(
        rank,
        host,
        "died",
        "RankRestarted" if death.likely_cause == RESTARTED else "RankDied",
        describe_death(death),
        exit_code=death.exit_code if death.HasField("exit_code") else None,
        signal=death.signal if death.HasField("signal") else None,
        stderr_tail=tuple(death.stderr_tail),
    )
