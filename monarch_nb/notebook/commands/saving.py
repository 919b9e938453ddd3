"""`%mesh save`, `load` and `saves`; and `release`, which saves what ranks hold if that is wanted, before they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.jobs import release_unattached
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.saving import saves
from monarch_nb.client.saving.asking import missing_names, saved_elsewhere
from monarch_nb.client.saving.autosaves import save_before_release
from monarch_nb.client.saving.saves import DEFAULT_DIRECTORY, here, last_save
from monarch_nb.errors import MonarchNbError, ReservationNotFound, UsageError, say_too
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.progress import LateProgress, Progress
from monarch_nb.notebook.output.tables import calm_line, show, table
from monarch_nb.notebook.session import Session, shape
from monarch_nb.notebook.syntax.command_line import Parsed
from monarch_nb.times import duration
from monarch_nb.worker.saving.asked import KEPT_SAVES


def save(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Save, and say what was saved and what not.

    Raises:
        SaveError: see Mesh.save.
    """
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    if parsed.switch("off"):
        if parsed.words:
            raise UsageError("--off stands alone: %mesh save --off")
        mesh.autosave_off()
        show(calm_line("ranks no longer save by themselves: %mesh save DIR --every 10m has them do it again"))
        return
    if not parsed.words:
        raise UsageError("%mesh save needs a directory, as in %mesh save checkpoints/a")
    directory, *names = parsed.words
    if not names:
        _check_is_no_name(mesh, directory)
    every, at_end = parsed.text("every"), parsed.switch("at_end")
    if every is not None or at_end or parsed.seconds("before") is not None:
        if parsed.switch("bring"):
            raise UsageError("--bring is for one save: ranks that save by themselves need common storage")
        if parsed.switch("strict"):
            raise UsageError("--strict is for one save: ranks that save by themselves save the names that they have")
        before = mesh.autosave_status()
        status = mesh.autosave(
            directory,
            names,
            every=every,
            at_end=at_end,
            before=parsed.seconds("before"),
            keep=parsed.count("keep") or KEPT_SAVES,
            background=parsed.switch("async"),
        )
        lost = ""
        if before is not None and before.at_end and not status.at_end:
            lost = "\nno longer before the nodes are taken away: add --at-end for that"
        show(calm_line(f"{status} (%mesh save --off ends it){lost}"))
        return
    with LateProgress(shell, interrupted="interrupted: earlier saves are whole; %mesh saves lists them") as progress:
        report = mesh.save(
            directory,
            names,
            keep=parsed.count("keep") or KEPT_SAVES,
            background=parsed.switch("async"),
            bring=parsed.switch("bring"),
            strict=parsed.switch("strict"),
            cell_number=_cell_number(shell),
            progress=lambda done, total: progress(f"rank {mesh.ranks[0]} saves", done, total),
        )
        progress.done(str(report))


def _check_is_no_name(mesh: Mesh, directory: str) -> None:
    """Refuse `%mesh save model`: it would save everything in a directory `model`.

    Raises:
        UsageError: the ranks have such a name, and no directory is called so.
    """
    if not directory.isidentifier() or here(directory).exists():
        return
    if any(run.holds_ranks for run in mesh.unfinished()):  # they can not be asked
        return
    if not missing_names(mesh, [directory]):
        raise UsageError(
            f"`{directory}` is a name of the ranks: say the directory first, as in %mesh save checkpoints/a "
            f"{directory}. %mesh save ./{directory} saves all in a directory of that name"
        )


def load(session: Session, shell: InteractiveShell, parsed: Parsed) -> None:
    """Load, and say what was loaded and what not.

    Raises:
        SaveError: see Mesh.load.
    """
    directory, *names = parsed.words
    names += (parsed.text("only") or "").replace(",", " ").split()
    mesh = session.mesh(parsed.text("targets"), parsed.text("mesh"))
    report = mesh.load(
        directory,
        names,
        strict=parsed.switch("strict"),
        bring=parsed.switch("bring"),
        cell_number=_cell_number(shell),
    )
    show(calm_line(str(report)))


def list_saves(session: Session, parsed: Parsed) -> None:
    """Show the saves of a directory, which needs a reservation only if the kernel does not see the directory.

    Raises:
        UsageError: the kernel does not see it, and no reservation is held (any more).
    """
    directory = parsed.word or DEFAULT_DIRECTORY
    try:
        found = _saves(session, parsed, directory)
    except UsageError as error:
        say_too(error, _elsewhere(session, parsed, directory))
        raise
    title = f"{directory}: {counted(len(found), 'save')}"
    if not found and not here(directory).is_dir():
        title += ", because there is no such directory"
    notes = [] if found else filter(None, [_elsewhere(session, parsed, directory)])
    show(table(title, saves.SAVES_HEADERS, [info.row() for info in found], notes))


def _saves(session: Session, parsed: Parsed, directory: str) -> saves.SaveInfos:
    if session.reservation is not None and not here(directory).is_dir():
        with suppress(ReservationNotFound):
            return session.mesh(name=parsed.text("mesh")).saves(directory)
    return saves.list_saves(directory)


def _elsewhere(session: Session, parsed: Parsed, directory: str) -> str:
    """Return where there are saves when a directory has none, and what lists these."""
    armed = None
    if session.reservation is not None:
        with suppress(MonarchNbError):  # it has ended, or its nodes do not answer
            armed = session.mesh(name=parsed.text("mesh")).autosave_status()
    return saved_elsewhere(directory, armed.directory if armed else "")


def last_save_line(reservation: Reservation, directory: str | None) -> list[str]:
    """Say that an earlier reservation of that name has left a save, and what loads it; nothing if it has left none.

    Args:
        reservation: a new one. directory: of its saves; None for where saves lie by default.
    """
    info = last_save(reservation, reservation.name, directory or DEFAULT_DIRECTORY)
    if info is None:
        return []
    when = datetime.fromtimestamp(info.saved_at).strftime("%Y-%m-%d %H:%M")
    if info.origin.step:
        when += f", after step {info.origin.step:,} of run {info.origin.run}"
    holds = f"{listed(info.names)} of {counted(info.ranks, 'rank')}"
    return [f"an earlier {reservation.name} left a save ({when}: {holds}): {info.way_back} loads it"]


def _cell_number(shell: InteractiveShell) -> int:
    number: int = shell.displayhook.prompt_count  # of this cell, whenever IPython counts it
    return number


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
