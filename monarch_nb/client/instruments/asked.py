"""The instruments of a run, and what they found on its ranks."""

from __future__ import annotations

import asyncio
import json
import pickle
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb.client.connections.bridge import call
from monarch_nb.config import found_blob
from monarch_nb.errors import MonarchNbError

if TYPE_CHECKING:
    from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
    from monarch_nb.client.runs.run import Run

Instruments = Mapping[str, Mapping[str, Any]]
"""What ranks switch on while a run goes on: options, plain data, by the instrument's name."""

_ON_RANKS = '__import__("monarch_nb.worker.runs.instruments", fromlist=["_"])'


class _Mesh(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def select(self, ranks: Any) -> Any: ...

    def status(self) -> list[RankInfo]: ...

    def unfinished(self) -> list[RunInfo]: ...


def packed(instruments: Instruments | None) -> dict[str, str]:
    """Return instruments as ranks are told of them."""
    return {name: json.dumps(dict(options)) for name, options in (instruments or {}).items()}


def found_on(mesh: _Mesh, run: Run, instrument: str) -> dict[int, Any]:
    """Return what an instrument found in a run that has ended, by rank. Ranks forget it then.

    A rank that is dead, or computes something else now, is left out, and so is one where it found nothing. A script's
    ranks have left it on their nodes.
    """
    if run.is_script:
        return call(_left_by(run, instrument))
    computing = {rank for other in mesh.unfinished() for rank in other.ranks}
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
