"""What can not be done with a reservation as it is now, and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_FOR_ITS_HOLDER = ("restart", "resize")
_NEED_A_NODE = ("attach", *_FOR_ITS_HOLDER)


def refusals(held: Mapping[str, Any], ending: Collection[str] = ()) -> dict[str, str]:
    """Return why actions would be refused, by action. What is missing can be tried.

    Args:
        held: a reservation, as the view has it.
        ending: the ids of reservations that are released already, as far as nodes say.

    Example:
        >>> refusals({"id": "a", "name": "dev", "mine": True, "nodes_answering": 0})["attach"]
        'no node of dev answers: this can be done again as soon as one does'
    """
    name = held["name"]
    if held["id"] in ending:
        return dict.fromkeys(_NEED_A_NODE, f"{name} is being released")
    if not held["nodes_answering"]:
        away = f"no node of {name} answers: this can be done again as soon as one does"
        return dict.fromkeys(_NEED_A_NODE, away) | _of_others(held)
    return _of_others(held)


def _of_others(held: Mapping[str, Any]) -> dict[str, str]:
    return {} if held["mine"] else dict.fromkeys(_FOR_ITS_HOLDER, only_its_holder(held))


def only_its_holder(held: Mapping[str, Any]) -> str:
    """Return why somebody else's reservation is not changed."""
    return f"{held['name']} is held by {held['owner']}, and only its holder can do this"
