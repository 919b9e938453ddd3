"""What the ranks of a reservation hold is saved before they are released, where they save by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from monarch_nb.client.saving.autosaves import AutosaveStatus
from monarch_nb.config import patience
from monarch_nb.errors import SaveError, UsageError
from monarch_nb.times import Duration
from monarch_nb.worker.saving.places import near

WITHIN_S = patience(600.0)
"""So long ranks may take to save before they are released."""


class ReleasedMesh(Protocol):
    """What is needed of a `Mesh`, which says what each of these is."""

    def autosave_status(self) -> AutosaveStatus | None: ...

    def save_now(self, why: str, within: Duration, *, is_last: bool = False) -> AutosaveStatus | None: ...


def save_before_release(name: str, meshes: Iterable[ReleasedMesh], said: list[str]) -> None:
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


def _saved_since(mesh: ReleasedMesh, before: AutosaveStatus) -> str:
    """Return what became of a save that nobody waits for any more."""
    now = mesh.autosave_status()
    if now is not None and now.last and now.last != before.last:
        return f"saved {near(now.last)}"
    after = f", after {near(before.last)}" if before.last else ""
    return f"ranks may still save{after}: %mesh status says what they saved last"
