"""The panel's view as a browser keeps it."""

from __future__ import annotations

from typing import Any


def view_after(view: Any, event: Any) -> Any:
    """Return what a browser that has a view, or None, shows after an event."""
    if event["type"] == "view":
        return event["view"]
    if event["type"] != "change":
        return view
    kept = view | {part: event[part] for part in ("pool", "ended") if part in event}
    for kind in ("nodes", "reservations"):
        told = {each: _after(view[kind].get(each), change) for each, change in event.get(kind, {}).items()}
        kept[kind] = {each: value for each, value in (view[kind] | told).items() if value is not None}
    return kept


def _after(old: Any, change: Any) -> Any:
    if not isinstance(change, dict) or "~" not in change:
        return change
    parts = {key: _after(old[int(key) if isinstance(old, list) else key], part) for key, part in change["~"].items()}
    if isinstance(old, list):
        return [parts.get(str(place), each) for place, each in enumerate(old)]
    return old | parts
