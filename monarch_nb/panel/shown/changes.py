"""A view as browsers are told it, and what people should hear of although they do not look: deaths, and reservations
that end. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.panel.shown.view import Json
from monarch_nb.times import duration

DRIFT_S = 1.5
"""How far a running time may be from what a browser counted to before it is told again."""
_COUNTED = {"running_s": 1.0, "time_left_s": -1.0, "idle_left_s": -1.0}
"""What browsers count on by themselves, and which way."""


def told(before: Any, value: Any, now_s: float) -> Any:
    """Return a part of a view as browsers are told it.

    What a browser has counted to since is as it was told then. What counts has `at_s`: the clock of the server when its
    figures were true.

    Args:
        before: what was told last in this place; None for nothing.
    """
    if isinstance(value, list):
        old: Any = before if isinstance(before, list) and len(before) == len(value) else [None] * len(value)
        return [told(was, each, now_s) for was, each in zip(old, value, strict=True)]
    if not isinstance(value, dict):
        return value
    old = before if isinstance(before, dict) else {}
    entity = {
        key: told(old.get(key), each, now_s) if isinstance(each, dict | list) else each for key, each in value.items()
    }
    if counted := _COUNTED.keys() & value.keys():
        if "at_s" in old and all(_is_as_counted(key, old, value, now_s - old["at_s"]) for key in counted):
            entity |= {key: old[key] for key in (*counted, "at_s")}
        else:
            entity["at_s"] = now_s
    return entity


def _is_as_counted(key: str, old: Json, new: Json, passed_s: float) -> bool:
    was: float | None = old.get(key)
    now: float | None = new[key]
    if was is None or now is None:
        return was is now
    if key == "idle_left_s":
        stands_still = was == old["idle_s"]  # it is in use
    else:
        stands_still = key == "running_s" and old["state"] not in ("running", "waiting")
    expected = was if stands_still else was + _COUNTED[key] * passed_s
    return abs(max(0.0, expected) - now) <= DRIFT_S


def notices(before: Json | None, view: Json) -> Iterator[Json]:
    """Yield what is new since the view before; from the first view on only what still matters: time that is nearly up.

    Each has an id that stays the same, so that nobody is told twice.
    """
    for reservation in view["reservations"].values():
        if not reservation["mine"]:
            continue
        old = before["reservations"].get(reservation["id"]) if before else None
        if reservation["nearly_up"] and not (old and old["nearly_up"]):
            yield _nearly_up(reservation)
        if old:
            yield from _deaths(old, reservation)
    known = {one["id"] for one in before["ended"]} if before else {one["id"] for one in view["ended"]}
    for one in view["ended"]:
        if one["id"] not in known and not one["by"]:  # what a person did is no news
            yield _notice("warning", f"ended-{one['id']}", one["text"], one["id"])


def _nearly_up(reservation: Json) -> Json:
    left, limit = duration(reservation["time_left_s"]), duration(reservation["time_s"])
    text = f"{reservation['name']} will be released in {left}, when its time of {limit} is up: extend it to keep it"
    return _notice("warning", f"nearly-up-{reservation['id']}-{reservation['time_s']:g}", text, reservation["id"])


def _deaths(old: Json, new: Json) -> Iterator[Json]:
    meshes = {mesh["id"]: mesh for mesh in old["meshes"]}
    for mesh in new["meshes"]:
        lived = {rank["rank"] for rank in meshes.get(mesh["id"], {}).get("ranks", ()) if rank["state"] != "dead"}
        causes: dict[str, list[Json]] = {}
        for rank in mesh["ranks"]:
            if rank["state"] == "dead" and rank["rank"] in lived:
                causes.setdefault(rank["detail"], []).append(rank)
        for cause, ranks in causes.items():
            who = name_ranks(rank["rank"] for rank in ranks)
            pids = "-".join(str(rank["pid"]) for rank in ranks)
            yield _notice("error", f"dead-{mesh['id']}-{pids}", f"{who} of {new['name']}: {cause}", new["id"])


def _notice(level: str, notice_id: str, text: str, reservation: str) -> Json:
    return {"type": "notice", "level": level, "id": notice_id, "text": text, "reservation": reservation}
