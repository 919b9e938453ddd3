"""`%mesh release`: what ranks hold is saved if that is wanted, and then they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.unattached import release_unattached
from monarch_nb.client.saving.before_release import save_before_release
from monarch_nb.errors import MonarchNbError
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.session import Session, shape
from monarch_nb.times import duration


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
            save_before_release(reservation.name, reservation.meshes.now(), said)
    with _interrupted(f"%mesh list says whether {name} is released", said):
        kept = reservation.release()
    line = f"{name}: released {shape(reservation)} in {duration(progress.elapsed_s)}"
    return "\n".join([*said, line, *map(str, kept)])


@contextmanager
def _interrupted(what: str, said: list[str], else_said: str = "") -> Iterator[None]:
    """Say what was done when Ctrl-C ends the block: what, and what was said of saves, or else."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted("; ".join(filter(None, [f"interrupted: {what}", *(said or [else_said])]))) from None
