"""`Mesh.flames_of`: the stacks of a run that was looked at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from monarch_nb.client.flames.speedscope import speedscope
from monarch_nb.client.flames.svg import MOST_FLAMES, svg
from monarch_nb.client.flames.trees import Flame, flame_of, together
from monarch_nb.client.instruments.asked import found_on
from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import counted, name_ranks
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.client.pools.facts.infos import RankInfo, RunInfo
    from monarch_nb.client.runs.run import Run

PYTHON_PROFILE = "python-profile"
DIRECTORY = "traces"
_MOST_LINES, _LEAST_SHARE = 5, 0.005


class _Mesh(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def select(self, ranks: Any) -> Any: ...

    def status(self) -> list[RankInfo]: ...

    def unfinished(self) -> list[RunInfo]: ...


@dataclass(frozen=True)
class Flames:
    """Where the time of a run went, by stacks of Python. A notebook shows it as a picture.

    Attributes:
        name: of the run: "run 12".
        groups: the stacks of ranks that look the same, the most ranks first.
        missing: ranks that told nothing: they are dead, compute something else now, or were asked before.
        dead: those of them that are.
    """

    name: str
    groups: tuple[Flame, ...]
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What there is to say besides."""
        said = []
        if self.dead:
            is_dead = "is dead, so it tells" if len(self.dead) == 1 else "are dead, so they tell"
            said.append(f"{name_ranks(self.dead)} {is_dead} nothing")
        if silent := set(self.missing) - set(self.dead):
            verb = "tells" if len(silent) == 1 else "tell"
            said.append(f"{name_ranks(silent)} {verb} nothing (busy with another run, or asked before)")
        if (hidden := len(self.groups) - MOST_FLAMES) > 0:
            said.append(f"{counted(hidden, 'other group')} of ranks in the file alone")
        if any(flame.is_cut for flame in self.groups):
            said.append("there were more stacks than are kept: some time counts for the frames that called them")
        return said

    def svg(self) -> str:
        """Return the picture."""
        return svg(self.groups)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file that https://www.speedscope.app opens, and return its path.

        Raises:
            OSError: it can not be written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(speedscope(self.name, self.groups), separators=(",", ":")), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return "\n".join([*(line for flame in self.groups for line in _hottest(flame)), *self.notes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if not self.groups:
            return {"text/plain": str(self)}
        return {"image/svg+xml": self.svg(), "text/plain": str(self)}


class TellsFlames:
    """A part of `Mesh`: the stacks of its ranks in a run that was looked at."""

    def flames_of(self: _Mesh, run: Run) -> Flames:
        """Return where the time of a run went, by stacks of Python that its ranks had. It can be asked for once.

        Args:
            run: that has ended, also by failing, with the instrument "python-profile".

        Raises:
            UsageError: it goes on.

        Example:
            >>> run = mesh.run("train()", instruments={"python-profile": {}})  # doctest: +SKIP
            >>> flames = mesh.flames_of(run)  # doctest: +SKIP
            >>> flames.save("traces/train.speedscope.json")  # doctest: +SKIP
        """
        if not run.done:
            raise UsageError(f"run {run.number} goes on: run.result() waits for its end, then there is a profile")
        found = found_on(self, run, PYTHON_PROFILE)
        flames = [flame_of(rank, told) for rank, told in sorted(found.items()) if told["looks"]]
        missing = tuple(rank for rank in run.ranks if rank not in found)
        died = {failure.rank for failure in run.failures if failure.kind == "died"}
        if missing and not run.is_script:
            died |= {info.rank for info in self.status() if info.state == "dead"}
        dead = tuple(rank for rank in missing if rank in died)
        return Flames(f"run {run.number}", tuple(together(flames)), missing, dead)


def _hottest(flame: Flame) -> Iterator[str]:
    """Yield the lines of the user's where most of the time went."""
    whole_s = flame.root.total_s or 1.0
    yield f"{name_ranks(flame.ranks)} · {duration(whole_s)}"
    lines = sorted(flame.lines().items(), key=lambda one: -one[1])[:_MOST_LINES]
    for frame, seconds in lines:
        if seconds / whole_s >= _LEAST_SHARE:
            yield f"  {seconds / whole_s:4.0%}  {frame}"
