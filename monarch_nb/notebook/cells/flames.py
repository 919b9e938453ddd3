"""`%%mesh --profile=python`: a flame graph below the cell, and the file beside the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from monarch_nb.client.flames.flames import DIRECTORY
from monarch_nb.notebook.output.inside import file_line
from monarch_nb.notebook.output.tables import calm_line

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run

_SPEEDSCOPE = "https://www.speedscope.app"


def flames_found(run: Run) -> Iterator[object]:
    """Yield where the time of a run went, and write that down."""
    flames = cast("Mesh", run.mesh).flames_of(run)
    if not flames.groups:
        yield calm_line("; ".join(flames.notes) or "no profile: the cell ended before the first look at its stacks")
        return
    yield flames
    path = Path(DIRECTORY) / f"run{run.number}.speedscope.json"
    try:
        yield file_line("stacks", flames.save(path), _SPEEDSCOPE)
    except OSError as error:
        why = f"{path} can not be written ({error.strerror})"
        yield calm_line(f"{why}: mesh.flames_of(run).save(PATH) is for another place")
    if flames.notes:
        yield calm_line("\n".join(flames.notes))
