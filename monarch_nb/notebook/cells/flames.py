"""`%%mesh --profile=python`: a flame graph below the cell, and the file beside the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from monarch_nb.client.flames.flames import DIRECTORY
from monarch_nb.notebook.output.tables import calm_line

if TYPE_CHECKING:
    from monarch_nb.client.meshes.mesh import Mesh
    from monarch_nb.client.runs.run import Run


def flames_found(run: Run) -> Iterator[object]:
    """Yield where the time of a run went, and write that down."""
    flames = cast("Mesh", run.mesh).flames_of(run)
    if not flames.groups:
        yield calm_line("; ".join(flames.notes) or "no profile: the cell ended before the first look at its stacks")
        return
    yield flames
    path = Path(DIRECTORY) / f"run{run.number}.speedscope.json"
    try:
        wrote = f"wrote {flames.save(path)}: https://www.speedscope.app opens it"
    except OSError as error:
        wrote = f"{path} can not be written ({error.strerror}): mesh.flames_of(run).save(PATH) is for another place"
    yield calm_line("\n".join([wrote, *flames.notes]))
