"""A cell whose nodes the engine took back asks for as many again, loads the last save, and runs again.

`%mesh reserve … --on ENGINE --save DIR --resume --setup TAG` switches it on. The cells of the notebook that have the
tag make what is loaded into: they are read from its file, as papermill reads its parameters.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.client.saving.autosaves import arm_again, armed_here
from monarch_nb.client.saving.saves import DEFAULT_DIRECTORY, last_save
from monarch_nb.errors import MonarchNbError, PoolError, ReservationExpired, SaveError, UsageError, say_too
from monarch_nb.ground.rank_sets import counted
from monarch_nb.notebook.cells.progress import Progress
from monarch_nb.notebook.output.tables import calm_line, is_notebook, show
from monarch_nb.notebook.session import ResumePlan, Session
from monarch_nb.provision.jobs import what_became


class SetupFailed(MonarchNbError):
    """A cell that makes what is loaded into failed; its traceback has been shown."""


def checked_plan(plan: ResumePlan, notebook: str | None, *, on: str | None) -> ResumePlan:
    """Return a plan that can work.

    Raises:
        UsageError: nobody takes these nodes back; or there is no save, or no cell, to go on from.
    """
    if not on:
        raise UsageError("--resume is for nodes of an engine (--on slurm): nobody takes back those of a pool")
    if not plan.directory:
        raise UsageError("--resume loads what --save DIR has saved: name the directory, as in --save checkpoints/dev")
    if plan.tags:
        tagged_cells(notebook, plan.tags)
    return plan


def tagged_cells(notebook: str | None, tags: Sequence[str]) -> list[str]:
    """Return the code of the cells that have one of some tags, in the order of the notebook.

    Raises:
        UsageError: a tag that no cell has, or no notebook is known.
    """
    if notebook is None:
        raise UsageError("--setup names tags of the notebook's cells, but this is no notebook whose file is known")
    path = Path(notebook)
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the tags of {path.name} can not be read: {error}") from error
    of_cells = [set(cell.get("metadata", {}).get("tags", ())) for cell in cells]
    for tag in tags:
        if not any(tag in found for found in of_cells):
            raise UsageError(
                f"no cell of {path.name} has the tag {tag!r}: add it to the cells that make model and optimizer "
                "(in JupyterLab: Property Inspector → Cell Tags), and save the notebook"
            )
    chosen = [cell for cell, found in zip(cells, of_cells, strict=True) if found.intersection(tags)]
    return [_text(cell["source"]) for cell in chosen if cell.get("cell_type") == "code"]


def taken_back(session: Session, error: MonarchNbError) -> str:
    """Return why the engine took the nodes of a failed cell back; empty if it did not: if a person released them, or
    nobody used them."""
    if session.resume is None or session.pool is None:
        return ""
    if isinstance(error, ReservationExpired):
        return str(error).partition(";")[0] if error.is_time_up else ""
    if not isinstance(error, PoolError):
        return ""
    said, is_over = what_became(session.pool)
    return said.partition(":")[0] if is_over else ""


def say_what_is_saved(session: Session, error: MonarchNbError) -> None:
    """Have the error of a notebook whose time was up name the save that its ranks have left, if this computer sees
    one."""
    held = session.reservation
    if not isinstance(error, ReservationExpired) or not error.is_time_up or held is None or held.name != error.name:
        return
    armed = armed_here(held.mesh)
    directory = armed.directory if armed is not None else DEFAULT_DIRECTORY
    if (info := last_save(held, held.name, directory)) is not None:
        said = f"its last save is of {info.when}: {info.way_back} loads that"
        say_too(error, *([said] if said not in str(error) else []))


def come_back(shell: InteractiveShell, session: Session, plan: ResumePlan, why: str) -> None:
    """Have as many nodes again, run the cells that have the tags, load the newest save, and arm again what was armed.

    Raises:
        MonarchNbError: there are no nodes, or the save does not fit. What was saved is still there.
        SetupFailed: a cell failed.
    """
    before = armed_here(session.reservation.mesh) if session.reservation is not None else None
    show(calm_line(f"{why}: resuming"))
    with Progress(is_notebook(shell)) as progress:
        try:
            with contextlib.suppress(MonarchNbError):  # a job whose time is nearly up would have its nodes once more
                session.current().release(progress=progress)
            reservation = plan.reserve(progress=progress)
        except KeyboardInterrupt:
            progress.done("not resumed: interrupted. The saves are still there; %mesh load loads the newest")
            raise
        session.hold(reservation, session.pool)
        session.resume = plan
        progress.done(f"{reservation.name}: {counted(len(reservation.mesh.ranks), 'rank')} ready again")
    for code in tagged_cells(session.notebook, plan.tags) if plan.tags else ():
        if not shell.run_cell(code, store_history=False).success:
            raise SetupFailed("not resumed: a cell that makes what is loaded into failed; its traceback is above")
    mesh = reservation.mesh
    try:
        directory = before.directory if before is not None and mesh.saves(before.directory) else plan.directory
        show(calm_line(str(mesh.load(directory))))
    except SaveError as error:
        raise SaveError(f"not resumed: {error}") from error
    if before is None:
        mesh.autosave(plan.directory, at_end=True)
    else:
        arm_again(mesh, before)


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
