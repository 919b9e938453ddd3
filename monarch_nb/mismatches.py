"""Which ranks have called collectives that do not match, once a rank has died of that. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monarch_nb.ground.rank_sets import name_ranks

MISMATCH = "collectives do not match"
"""What the death of a rank is put down to that Gloo has ended: its peers know more."""
_TYPE = re.compile(r"\w+(?=\[)")


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


NO_CALLS: Mapping[int, Called] = {}


def what_differs(calls: Iterable[str]) -> str:
    """Return in what calls of the same collective differ; empty where they do not, or are of different ones.

    Example:
        >>> what_differs(["all_reduce of float32[8]", "all_reduce of float32[4,8]"])
        'shapes differ'
        >>> what_differs(["all_reduce of float32[8]", "all_reduce of float16[4]"])
        'shapes and dtypes differ'
    """
    told = [call.partition(" of ") for call in calls]
    if len({collective for collective, *_ in told}) > 1 or not all(operands for *_, operands in told):
        return ""
    shapes = len({_TYPE.sub("", operands) for *_, operands in told}) > 1
    dtypes = len({tuple(_TYPE.findall(operands)) for *_, operands in told}) > 1
    kinds = [kind for kind, is_so in (("shapes", shapes), ("dtypes", dtypes)) if is_so]
    return f"{' and '.join(kinds)} differ" if kinds else ""


def explain_calls(calls: Mapping[int, Called], dead: Mapping[int, Sequence[str]]) -> str:
    """Return who has called what when ranks died of a mismatch; empty when nobody knows.

    Args:
        calls: the last ones of ranks that live.
        dead: the ranks that died of it, and the lines of their stacks: these say what they have called, but not with
            which tensors.

    Example:
        >>> eight, many = (Called("group a", 4, 3, f"all_reduce of int8[{n}]") for n in (8, 99))
        >>> explain_calls({0: eight, 2: many}, {1: []})
        'call 3 in group a is all_reduce of int8[8] on rank 0, all_reduce of int8[99] on rank 2: shapes differ'
        >>> explain_calls({0: eight, 2: eight, 3: eight}, {1: ['  File "c10d.py", line 9 in all_reduce']})
        'call 3 in group a is all_reduce of int8[8] on ranks 0,2-3, all_reduce on rank 1: shapes or dtypes differ'
    """
    alike: dict[tuple[str, int], dict[str, list[int]]] = {}
    for rank, call in sorted(calls.items()):
        alike.setdefault((call.group, call.number), {}).setdefault(call.what, []).append(rank)
    are_all = len(alike) == 1 and {call.size for call in calls.values()} == {len(calls) + len(dead)}
    told = []
    for (group, number), whats in sorted(alike.items()):
        differs, of_dead = what_differs(whats), _called_by_dead(whats, dead) if are_all else {}
        if len(whats) == 1 and of_dead.keys() == {next(iter(whats)).partition(" of ")[0]} - whats.keys():
            differs = "shapes or dtypes differ"
        listed = ", ".join(f"{what} on {name_ranks(ranks)}" for what, ranks in [*whats.items(), *of_dead.items()])
        told.append(f"call {number:,} in {group} is {listed}{f': {differs}' if differs else ''}")
    return "; ".join(told)


def _called_by_dead(whats: Iterable[str], dead: Mapping[int, Sequence[str]]) -> dict[str, list[int]]:
    """Return the ranks that died, by what is known of their calls."""
    names = sorted({what.partition(" of ")[0] for what in whats})
    unknown = "something else" if len({*whats}) == 1 else "an unknown call"
    called: dict[str, list[int]] = {}
    for rank, stack in sorted(dead.items()):
        what = next((name for name in names if any(line.endswith(f" in {name}") for line in stack)), unknown)
        called.setdefault(what, []).append(rank)
    return called
