"""What browsers are told: a view in which all that is as before is the same object, and what makes a new one of an old.
Pure."""

from __future__ import annotations

from typing import Any

from monarch_nb.panel.shown.view import Json

DRIFT_S = 1.5
"""How far a running time may be from what a browser counted to before it is told again."""
SAME = "~"
"""{"~": {…}} stands for what was there, a list or an object, with these parts changed."""
_COUNTED = {"running_s": 1.0, "time_left_s": -1.0, "idle_left_s": -1.0}
"""What browsers count on by themselves, and which way."""
_ENTITIES = ("nodes", "reservations")
_PARTS = ("pool", "pools", "ended")


def told(before: Any, value: Any, now_s: float) -> Any:
    """Return a part of a view as browsers are told it.

    What is as before, or as a browser has counted to since, is the very object that was told then. What counts has
    `at_s`: the clock of the server when its figures were true.

    Args:
        before: what was told last in this place; None for nothing.
    """
    if value == before:
        return before
    if isinstance(value, list):
        old: Any = before if isinstance(before, list) and len(before) == len(value) else [None] * len(value)
        parts = [told(was, each, now_s) for was, each in zip(old, value, strict=True)]
        return before if parts == before else parts
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
    return before if entity == before else entity


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


def change(before: Json, view: Json) -> Json | None:
    """Return the event that makes one told view of another; None when nothing changed. What is gone is null."""
    parts = {part: view[part] for part in _PARTS if view[part] is not before[part]}
    for kind in _ENTITIES:
        old, new = before[kind], view[kind]
        changed = {each: None for each in old if each not in new}
        changed |= {
            each: _difference(old.get(each), value) for each, value in new.items() if value is not old.get(each)
        }
        if changed:
            parts[kind] = changed
    return {"type": "change", "now": view["now"]} | parts if parts else None


def _difference(before: Any, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(before, dict) and value.keys() == before.keys():
        parts = {key: (before[key], each) for key, each in value.items()}
    elif isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        parts = {str(place): pair for place, pair in enumerate(zip(before, value, strict=True))}
    else:
        return value
    return {SAME: {key: _difference(old, new) for key, (old, new) in parts.items() if not _is_same(old, new)}}


def _is_same(old: Any, new: Any) -> bool:
    return old is new or (not isinstance(new, dict | list) and bool(old == new))
