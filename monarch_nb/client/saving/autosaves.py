"""Saves that the ranks of a mesh make by themselves: armed once, they need no kernel; also before they are released."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from monarch_nb.client.connections.bridge import call
from monarch_nb.client.saving.asking import directory_of_saves, missing_names, names_of, note_directory
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, SaveError, UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.proto import run_pb2
from monarch_nb.times import Duration, duration, seconds_of, time_of_day
from monarch_nb.worker.saving.asked import KEPT_SAVES, near

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh

_STEPS = re.compile(r"(\d[\d,_]*)\s*steps?")
STATUS_TIMEOUT_S = patience(2.0)
SHORTEST_S = 1.0


@dataclass(frozen=True, repr=False)
class AutosaveStatus:
    """The saves that ranks make by themselves.

    Attributes:
        directory: of the saves, on the ranks. names: what is saved; empty for all that can be.
        every_s, every_steps: how often; 0: not by the clock, not by steps.
        at_end: before the nodes are taken away, too. before_s: so long before a time limit.
        background: ranks write while they go on. keep: how many of the newest saves stay.
        last: the path of the last save; empty when there was none. last_at: when it was made.
        last_run: the number of the run that it was made of. last_step: at which step of that run, which counts its own
            steps; 0 between runs.
        problem: why the last attempt saved nothing; empty when it did.
        missing: names that no rank had when it was armed, with what is said of each. Ranks that ran something then
            were not asked.
    """

    directory: str
    names: tuple[str, ...] = ()
    every_s: float = 0.0
    every_steps: int = 0
    at_end: bool = False
    before_s: float = 0.0
    background: bool = False
    keep: int = KEPT_SAVES
    last: str = ""
    last_at: float = 0.0
    last_run: int = 0
    last_step: int = 0
    problem: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def when(self) -> str:
        """When ranks save, for people: "every 10 min and before the nodes are taken away"."""
        return when_saved(self)

    def __repr__(self) -> str:
        """When ranks save and where, and what they saved last: lines for people."""
        lines = [f"ranks save by themselves in {near(self.directory)}, {self.when}"]
        if self.last:
            at = f" at step {self.last_step:,} of run {self.last_run}" if self.last_step else ""
            lines.append(f"last saved {near(self.last)}{at}, at {time_of_day(self.last_at)}")
        if self.problem:
            lines.append(f"the last attempt saved nothing: {self.problem}")
        lines += [f"`{name}`: {why}" for name, why in self.missing.items()]
        if self.missing:
            lines.append("until a rank has all of these names, nothing is saved")
        return "\n".join(lines)


def autosave(
    mesh: Mesh,
    directory: str | os.PathLike[str],
    names: Iterable[str] = (),
    *,
    every: Duration | None = None,
    at_end: bool = False,
    before: Duration | None = None,
    keep: int = KEPT_SAVES,
    background: bool = False,
) -> AutosaveStatus:
    """Have all ranks save by themselves from now on, also without this process. What was armed before is replaced.

    While a cell trains, all ranks save after the same step of their optimizers. Between cells they save
    what they hold.

    Args:
        directory, names, keep, background: as for `save`.
        every: a time such as "10m", or a number of steps such as "500steps".
        at_end: also save before the nodes are taken away: before the time limit, and when the engine ends the job.
        before: how long before the time limit; by default 10 minutes.

    Raises:
        UsageError: neither `every` nor `at_end` is said; or this is a part of a mesh.
        SaveError: ranks can not write there.

    Example:
        >>> mesh.autosave("checkpoints/a", every="10m", at_end=True)  # doctest: +SKIP
        >>> mesh.save_now("before I leave", within="1m").last  # doctest: +SKIP
        '/home/me/project/checkpoints/a/0003'
        >>> print(mesh.autosave_status())  # doctest: +SKIP
        >>> mesh.autosave_off()  # doctest: +SKIP
    """
    every_s, every_steps = read_every(every)
    if not (every_s or every_steps or at_end):
        raise UsageError("say when ranks save by themselves: every 10m, every 500steps, or at the end")
    if before is not None and not at_end:
        raise UsageError("--before is how long before the end: say --at-end as well")
    armed = run_pb2.ArmSaves(
        secret=secrets.token_hex(),
        directory=directory_of_saves(mesh.reservation, directory),
        names=names_of(names),
        every_s=every_s,
        every_steps=every_steps,
        at_end=at_end,
        before_s=seconds_of(before, "--before") if before is not None else 0.0,
        background=background,
        keep=keep,
        reservation=mesh.reservation.name,
        mesh=mesh.name,
    )
    if problems := _arm(mesh, armed):
        mesh.autosave_off()
        raise SaveError("\n".join(f"{name_ranks(ranks)}: {problem}" for problem, ranks in problems.items()))
    mesh.core.armed_saves = armed
    note_directory(armed.directory)
    status = _status(run_pb2.SavesStatus(armed=armed))
    with contextlib.suppress(MonarchNbError):  # a rank that can not answer is armed nevertheless
        return replace(status, missing=missing_names(mesh, armed.names))
    return status


def autosave_off(mesh: Mesh) -> None:
    """Have the ranks save by themselves no more. Saves that there are stay."""
    mesh.core.armed_saves = None
    _arm(mesh, run_pb2.ArmSaves())


def autosave_status(mesh: Mesh) -> AutosaveStatus | None:
    """Return what is armed, and what came of it; None when nothing is, or no rank answers."""
    first = next((rank for rank in mesh.ranks if rank not in mesh.core.dead), None)
    if first is None:
        return None
    replies = call(mesh.core.control([first], timeout_s=STATUS_TIMEOUT_S, saves=True))
    told = [reply.saves for reply in replies.values() if reply.saves.HasField("armed")]
    return _status(told[0]) if told else None


def save_now(mesh: Mesh, why: str, within: Duration, *, is_last: bool = False) -> AutosaveStatus | None:
    """Have the ranks save as soon as they can, in the middle of a cell too, where saves by itself are armed.

    Args:
        why: for people. within: what is not done by then is given up.
        is_last: write everything before this returns, also where ranks write in the background.

    Returns:
        What came of it; None when nothing is armed.
    """
    within_s = seconds_of(within, "within")
    wanted = run_pb2.SaveNow(why=why, within_s=within_s, is_last=is_last)
    replies = call(mesh.core.control(mesh.ranks, timeout_s=within_s + STATUS_TIMEOUT_S, save_now=wanted))
    told = [reply.saves for reply in replies.values() if reply.saves.HasField("armed")]
    return _status(told[0]) if told else None


def when_saved(armed: AutosaveStatus | run_pb2.ArmSaves) -> str:
    """Return when ranks save by themselves, for people. Pure.

    Example:
        >>> when_saved(AutosaveStatus("checkpoints", every_s=600, at_end=True))
        'every 10 min and before the nodes are taken away'
    """
    said = [f"every {duration(armed.every_s)}"] if armed.every_s else []
    said += [f"every {armed.every_steps:,} steps"] if armed.every_steps else []
    said += ["before the nodes are taken away"] if armed.at_end else []
    return " and ".join(said)


def armed_here(mesh: Mesh) -> AutosaveStatus | None:
    """Return what saves this process has armed for a mesh, whose nodes may be gone; None when there are none."""
    armed: run_pb2.ArmSaves | None = mesh.core.armed_saves
    return _status(run_pb2.SavesStatus(armed=armed)) if armed is not None else None


def arm_again(mesh: Mesh, before: AutosaveStatus) -> None:
    """Have the ranks of a new mesh save by themselves as those of another did.

    Raises:
        SaveError: as for `Mesh.autosave`.
    """
    mesh.autosave(
        before.directory,
        before.names,
        every=f"{before.every_steps}steps" if before.every_steps else before.every_s or None,
        at_end=before.at_end,
        before=before.before_s or None,
        keep=before.keep,
        background=before.background,
    )


def read_every(every: Duration | None) -> tuple[float, int]:
    """Return how often ranks save, in seconds and in steps; one of them is 0.

    Raises:
        UsageError: it can not be read.
    """
    if every is None:
        return 0.0, 0
    if isinstance(every, str) and (match := _STEPS.fullmatch(every.strip().lower())):
        steps = int(re.sub("[,_]", "", match[1]))
        if steps:
            return 0.0, steps
    if isinstance(every, str) and "step" in every.lower():
        raise UsageError(f"--every {every}: a number of steps is written as 500steps")
    if isinstance(every, str) and every.strip().isdigit():
        raise UsageError(f"--every {every} of what? A time such as 10m, or steps such as {every}steps")
    return max(SHORTEST_S, seconds_of(every, "--every")), 0


def _arm(mesh: Mesh, armed: run_pb2.ArmSaves) -> dict[str, list[int]]:
    """Tell all ranks what is armed; return why some can not save so."""
    if len(mesh.ranks) != mesh.core.extent.size:
        raise UsageError(f"all ranks of a mesh save by themselves, not {name_ranks(mesh.ranks)} alone")
    call(mesh.core.check_nodes(mesh.ranks))
    problems: dict[str, list[int]] = {}
    for rank, reply in sorted(call(mesh.core.control(mesh.ranks, arm_saves=armed)).items()):
        if reply.saves.problem:
            problems.setdefault(reply.saves.problem, []).append(rank)
    return problems


def _status(told: run_pb2.SavesStatus) -> AutosaveStatus:
    armed = told.armed
    return AutosaveStatus(
        directory=armed.directory,
        names=tuple(armed.names),
        every_s=armed.every_s,
        every_steps=armed.every_steps,
        at_end=armed.at_end,
        before_s=armed.before_s,
        background=armed.background,
        keep=armed.keep,
        last=told.path,
        last_at=told.saved_at,
        last_run=told.run,
        last_step=told.step,
        problem=told.problem,
    )


WITHIN_S = patience(600.0)
"""So long ranks may take to save before they are released."""


def save_before_release(name: str, meshes: Iterable[Mesh], said: list[str]) -> None:
    """Save what the ranks of a reservation hold, where they save by themselves; add what to say of it, also of a save
    that is interrupted.

    Args:
        name, meshes: of the reservation.

    Raises:
        UsageError: they do not. SaveError: nothing was saved.
    """
    is_armed = False
    for mesh in meshes:
        before = mesh.autosave_status()
        if before is None:
            continue
        is_armed = True
        try:
            status = mesh.save_now(f"{name} is released", WITHIN_S, is_last=True)
        except KeyboardInterrupt:
            said.append(_saved_since(mesh, before))
            raise
        if status is None or status.problem:
            why = status.problem if status is not None else "no rank answers"
            raise SaveError(f"not released, because nothing was saved: {why}: %mesh release without --save releases it")
        said.append(f"saved {near(status.last)}" if status.last else "nothing to save: no cell has run")
    if not is_armed:
        raise UsageError("not released: its ranks do not save by themselves: first say where, %mesh save DIR --at-end")


def _saved_since(mesh: Mesh, before: AutosaveStatus) -> str:
    """Return what became of a save that nobody waits for any more."""
    now = mesh.autosave_status()
    if now is not None and now.last and now.last != before.last:
        return f"saved {near(now.last)}"
    after = f", after {near(before.last)}" if before.last else ""
    return f"ranks may still save{after}: %mesh status says what they saved last"
