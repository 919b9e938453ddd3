"""The instruments of a run: whether it can have them, and what they found on its ranks."""

from __future__ import annotations

import asyncio
import json
import pickle
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from monarch_nb.client.connections.bridge import call
from monarch_nb.config import found_blob
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.ground.rank_sets import name_ranks

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

Instruments = Mapping[str, Mapping[str, Any]]
"""What ranks switch on while a run goes on: options, plain data, by the instrument's name."""

_ON_RANKS = '__import__("monarch_nb.worker.runs.instruments", fromlist=["_"])'


def packed(instruments: Instruments | None) -> dict[str, str]:
    """Return instruments as ranks are told of them."""
    return {name: json.dumps(dict(options)) for name, options in (instruments or {}).items()}


def found_on(mesh: Mesh, run: Run, instrument: str) -> dict[int, Any]:
    """Return what an instrument found in a run that has ended, by rank. Ranks forget it then.

    A rank that is dead, or computes something else now, is left out, and so is one where it found nothing. A script's
    ranks have left it on their nodes.
    """
    if run.is_script:
        return call(_left_by(run, instrument))
    computing = {rank for other in mesh.unfinished() if other.holds_ranks for rank in other.ranks}
    idle = {info.rank for info in mesh.status() if info.state != "dead"} - computing
    asked = [rank for rank in run.ranks if rank in idle]
    if not asked:
        return {}
    answers = mesh.select(asked).pull(f"{_ON_RANKS}.found({run.id!r}, {instrument!r})")
    return _read(dict(zip(asked, answers, strict=True)))


async def _left_by(run: Run, instrument: str) -> dict[int, Any]:
    answers: dict[int, bytes] = {}

    async def read(rank: int) -> None:
        with suppress(MonarchNbError):  # it has died, or its node does not answer
            name = found_blob(run.id, rank, instrument)
            answers[rank] = await run.mesh.core.connection_of(rank).read_blob(run.mesh.id, name)

    await asyncio.gather(*map(read, run.ranks))
    return _read(answers)


def _read(answers: Mapping[int, bytes]) -> dict[int, Any]:
    found = {rank: pickle.loads(zlib.decompress(answer)) for rank, answer in sorted(answers.items())}
    return {rank: value for rank, value in found.items() if value is not None}


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
    },
    "python-profile": {"hz": (lambda value: _is_number(value) and 1 <= value <= MOST_HZ, f"between 1 and {MOST_HZ}")},
    "memory-history": {"ranks": _RANKS},
    "watch": {"what": (_are_watched, f"a list with some of {', '.join(WATCHED)}")},
}
"""The options of each instrument, as its class has them: which values are right, and these in words."""


def checked(instruments: Instruments | None, ranks: Collection[int]) -> Instruments | None:
    """Return instruments, which a run on these ranks can have.

    Raises:
        UsageError: there is no such instrument or option, or a value makes no sense; or a rank is to be recorded that
            the run is not on.
    """
    for name, options in (instruments or {}).items():
        if name not in _OPTIONS:
            raise UsageError(f"there is no instrument {name!r}: there are {', '.join(_OPTIONS)}")
        for option, value in options.items():
            _check(name, option, value)
        if absent := sorted(set(options.get("ranks") or ()) - set(ranks)):
            raise UsageError(f"{name} is to record {name_ranks(absent)}, but the run is on {name_ranks(ranks)}")
    return instruments


def _check(name: str, option: str, value: Any) -> None:
    if option not in _OPTIONS[name]:
        raise UsageError(f"{name} has no option {option!r}: it has {', '.join(_OPTIONS[name])}")
    is_right, what = _OPTIONS[name][option]
    if not is_right(value):
        raise UsageError(f"{option} of {name} is {what}, not {value!r}")
