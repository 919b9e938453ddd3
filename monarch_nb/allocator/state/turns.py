"""The order of those who wait for slots: fair between people, not between requests. Pure.

Somebody stands in the line as if he had come later than he did: by that share of a day which he holds of the pool. Who
holds a quarter of its GPUs comes six hours later. What he waits for already, before this request, counts as if he held
it. So who holds more waits longer; of people who hold equally much, who came first is first; and nobody waits for ever:
whoever comes more than a day after somebody is behind him, whatever the two hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DAY_S = 86400.0
"""As if he had come so much later, for whoever holds everything."""


@dataclass(frozen=True)
class Waiter:
    """One request of a person for slots of a kind.

    Attributes:
        key: tells it from others, and decides between those that came at once.
        came: when. slots: how many it is for, on all nodes together.
    """

    key: str
    person: str
    slots: int
    came: float


def tickets(waiting: Iterable[Waiter], held: Mapping[str, int], slots: int) -> dict[str, float]:
    """Return the ticket of each, by key: who has the lower one is ahead.

    Args:
        held: how many slots of the kind people hold. slots: how many there are in the pool.

    Example:
        >>> came = [Waiter("a", "alice", 4, 0.0), Waiter("b", "bob", 4, 60.0)]
        >>> tickets(came, {"alice": 8}, 32)
        {'a': 21600.0, 'b': 60.0}
    """
    has = Counter(held)
    given = {}
    for one in sorted(waiting, key=lambda one: (one.came, one.key)):
        share = min(1.0, has[one.person] / slots) if slots else 0.0
        given[one.key] = one.came + share * DAY_S
        has[one.person] += one.slots
    return given
