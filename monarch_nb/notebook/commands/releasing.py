"""`%mesh release`: what ranks hold is saved if that is wanted, and then they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.unattached import release_unattached
from monarch_nb.client.saving.autosaves import AutosaveStatus
from monarch_nb.errors import MonarchNbError, SaveError, UsageError
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.session import Session, shape
from monarch_nb.times import duration

WITHIN_S = 600.0
"""So long ranks may take to save before they are released."""


def end(
    session: Session, current: Reservation | None, name: str, pool: str | None, progress: Progress, *, saves: bool
) -> str:
    """Release a reservation, also one whose nodes are away, gone or were never there; return what to say of it.

    Args:
        current: the reservation, if the notebook holds it. saves: first save what its ranks hold.

    Raises:
        RunInterrupted: by Ctrl-C. It says what was saved, and whether the reservation is released.
        UsageError, SaveError: as of `save_before_release`.
    """
    said: list[str] = []
    with _interrupted(f"{name} is not released", said, "nothing was saved" if saves else ""):
        progress(f"releasing {name}")
        try:
            reservation = current or session.client.attach(name, pool=pool)
        except MonarchNbError as error:
            return release_unattached(name, pool, error, progress)
        if saves:
            save_before_release(reservation, said)
    with _interrupted(f"%mesh list says whether {name} is released", said):
        kept = reservation.release()
    line = f"{name}: released {shape(reservation)} in {duration(progress.elapsed_s)}"
    return "\n".join([*said, line, *map(str, kept)])


def save_before_release(reservation: Reservation, said: list[str]) -> None:
    """Save what the ranks of a reservation hold, where they save by themselves; add what to say of it, also of a save
    that is interrupted.

    Raises:
        UsageError: they do not. SaveError: nothing was saved.
    """
    is_armed = False
    for mesh in reservation.meshes.now():
        before = mesh.autosave_status()
        if before is None:
            continue
        is_armed = True
        try:
            status = mesh.save_now(f"{reservation.name} is released", WITHIN_S, is_last=True)
        except KeyboardInterrupt:
            said.append(_saved_since(mesh, before))
            raise
        if status is None or status.problem:
            why = status.problem if status is not None else "no rank answers"
            raise SaveError(f"not released, because nothing was saved: {why}: %mesh release without --save releases it")
        said.append(f"saved {status.last}" if status.last else "nothing to save: no cell has run")
    if not is_armed:
        raise UsageError("not released: its ranks do not save by themselves: first say where, %mesh save DIR --at-end")


@contextmanager
def _interrupted(what: str, said: list[str], else_said: str = "") -> Iterator[None]:
    """Say what was done when Ctrl-C ends the block: what, and what was said of saves, or else."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted("; ".join(filter(None, [f"interrupted: {what}", *(said or [else_said])]))) from None


def _saved_since(mesh: Mesh, before: AutosaveStatus) -> str:
    """Return what became of a save that nobody waits for any more."""
    now = mesh.autosave_status()
    if now is not None and now.last and now.last != before.last:
        return f"saved {now.last}"
    after = f", after {before.last}" if before.last else ""
    return f"ranks may still save{after}: %mesh status says what they saved last"
