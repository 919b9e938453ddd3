"""Which ranks have called collectives that do not match, once a rank has died of that. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monarch_nb.ground.rank_sets import name_ranks

MISMATCH = "collectives do not match"
"""What the death of a rank is put down to that Gloo has ended: its peers know more."""


@dataclass(frozen=True)
class Called:
    """A call of a collective that a broken group has ended.

    Attributes:
        group: "the default group". size: how many ranks that has.
        number: counts the calls in the group.
        what: "all_reduce of float32[1024]".
    """

    group: str
    size: int
    number: int
    what: str


def explain_calls(calls: Mapping[int, Called], dead: Collection[int]) -> str:
    """Return who has called what when ranks died of a mismatch; empty when nobody knows.

    Args:
        calls: the last ones of ranks that live.
        dead: the ranks that died of it, and can not say what they have called.

    Example:
        >>> eight, many = (Called("the default group", 4, 3, f"all_reduce of float32[{n}]") for n in (8, 1024))
        >>> explain_calls({0: eight, 2: many, 3: eight}, [1])
        'call 3 in the default group is all_reduce of float32[8] on ranks 0,3, all_reduce of float32[1024] on rank 2'
        >>> explain_calls({0: eight, 2: eight, 3: eight}, [1])
        'call 3 in the default group is all_reduce of float32[8] on ranks 0,2-3; rank 1 called something else'
    """
    alike: dict[tuple[str, int], dict[str, list[int]]] = {}
    for rank, call in sorted(calls.items()):
        alike.setdefault((call.group, call.number), {}).setdefault(call.what, []).append(rank)
    told = [
        f"call {number:,} in {group} is {', '.join(f'{what} on {name_ranks(ranks)}' for what, ranks in whats.items())}"
        for (group, number), whats in sorted(alike.items())
    ]
    sizes = {call.size for call in calls.values()}
    if len(set(calls.values())) == 1 and sizes == {len(calls) + len(dead)}:
        told.append(f"{name_ranks(sorted(dead))} called something else")
    return "; ".join(told)
