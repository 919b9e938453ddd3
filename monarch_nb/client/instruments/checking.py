"""Whether a run can have the instruments that somebody asks for: that is said before anything is sent to ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch_nb.client.instruments.asked import Instruments
from monarch_nb.client.instruments.compared import LAST, MeshWithRecords, with_run
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import name_ranks

WATCHED = ("grad", "loss", "param")
"""What `watch` can look at."""
MOST_HZ = 1000
"""So often a second `python-profile` can look."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 1


def _are_ranks(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple | range) and all(isinstance(each, int) for each in value))


def _are_watched(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(each in WATCHED for each in value)


_RANKS = (_are_ranks, "a list of ranks")
_COUNT = (_is_count, "a number from 1 on")
_OPTIONS: Mapping[str, Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "torch-profile": {
        "steps": _COUNT,
        "ranks": _RANKS,
        "most_s": (_is_number, "seconds"),
        "most_events": _COUNT,
        "most_bytes": (lambda value: value is None or _is_count(value), "a number from 1 on"),
    },
    "python-profile": {"hz": (lambda value: _is_number(value) and 1 <= value <= MOST_HZ, f"between 1 and {MOST_HZ}")},
    "memory-history": {"ranks": _RANKS},
    "watch": {"what": (_are_watched, f"a list with some of {', '.join(WATCHED)}")},
    "deterministic": {
        "seed": (lambda value: value is None or (isinstance(value, int) and value >= 0), "a number from 0 on"),
        "compare_with": (lambda value: value == LAST or value == 0 or _is_count(value), f"a run's number, or {LAST!r}"),
    },
}
"""The options of each instrument, as its class has them: which values are right, and these in words."""


def checked(instruments: Instruments | None, mesh: MeshWithRecords) -> Instruments | None:
    """Return instruments as the ranks of a mesh are told of them. Where a run is to be compared with another, the ranks
    are asked for their records: that waits until they are idle.

    Raises:
        UsageError: there is no such instrument or option, or a value makes no sense; a rank is to be recorded that the
            run is not on; or ranks have no record of the run to compare with.
    """
    for name, options in (instruments or {}).items():
        if name not in _OPTIONS:
            raise UsageError(f"there is no instrument {name!r}: there are {', '.join(_OPTIONS)}")
        for option, value in options.items():
            _check(name, option, value)
        if absent := sorted(set(options.get("ranks") or ()) - set(mesh.ranks)):
            raise UsageError(f"{name} is to record {name_ranks(absent)}, but the run is on {name_ranks(mesh.ranks)}")
    return with_run(instruments, mesh)


def _check(name: str, option: str, value: Any) -> None:
    if option not in _OPTIONS[name]:
        raise UsageError(f"{name} has no option {option!r}: it has {', '.join(_OPTIONS[name])}")
    is_right, what = _OPTIONS[name][option]
    if not is_right(value):
        raise UsageError(f"{option} of {name} is {what}, not {value!r}")
