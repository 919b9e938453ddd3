"""notebooks/resume.ipynb: the time is up in the middle of a training, which goes on on fewer ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from integration.notebooks import NOTEBOOKS, execute
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WRAPPED = "nn.Linear(64, 1))"
SETUP, PAUSE = "%%mesh\n", "        time.sleep(0.1)  # as if the model were larger"


def setup(*, exact: bool = False) -> str:
    """Return the cell of the notebook that makes all that is trained, without its pauses.

    Args:
        exact: gradients are added up in the same order in every step. DDP changes the order of its buckets after the
            first step that it makes, and so in the last bits what comes of it; it leaves them if told to find unused
            parameters. It is the same with torch.save and torch.load.
    """
    cells = nbformat.read(NOTEBOOKS / "resume.ipynb", as_version=4).cells
    [code] = [cell.source for cell in cells if "setup" in cell.metadata.get("tags", ())]
    assert PAUSE in code
    code = str(code).removeprefix(SETUP).replace(PAUSE, "")
    assert WRAPPED in code
    return code.replace(WRAPPED, f"{WRAPPED}, find_unused_parameters=True") if exact else code


@contextmanager
def held(nodes: int) -> Iterator[Mesh]:
    """The mesh of a reservation with 2 ranks on each node."""
    reservation = reserve("exact", nodes=nodes, procs=2)
    try:
        yield reservation.mesh
    finally:
        reservation.release()


def test_the_notebook_goes_on_on_fewer_ranks(shared_pool: list[Node], tmp_path: Path) -> None:
    notebook = execute("resume", tmp_path)
    saved = re.search(r"saved \S+ at step (\d+) \(the time is up in 15 s\)", notebook.text("train(until=2000)"))
    assert saved is not None
    step = int(saved[1])
    assert "its time of 40 s was up" in notebook.text("train(until=2000)")
    assert "an earlier dev left a save (" in notebook.text("%mesh reserve dev --procs 2")
    assert "%mesh load checkpoints/resume/0001 loads it" in notebook.text("%mesh reserve dev --procs 2")
    assert "into 2 ranks, saved by 4 ranks" in notebook.text("%mesh load")
    assert f"[0-1] goes on after step {step}" in notebook.text("saved_at = step")
    assert notebook.images("plt.semilogy") == 1
    with held(nodes=1) as mesh:
        mesh.run(setup())
        mesh.run(f"train(until={step + 50})")
        uninterrupted = mesh.pull("losses")[0]
        mesh.run(setup())
        mesh.load(tmp_path / "checkpoints" / "resume")
        mesh.run(f"train(until={step + 50})")
        resumed = mesh.pull("losses")[0]
    assert resumed == pytest.approx(uninterrupted, rel=1e-3), "four ranks add up in another order than two"


def test_the_same_number_of_ranks_goes_on_bit_for_bit(shared_pool: list[Node], tmp_path: Path) -> None:
    with held(nodes=2) as mesh:
        mesh.run(setup(exact=True))
        mesh.run("train(until=60)")
        uninterrupted = mesh.pull("losses, [each.detach().sum().item() for each in model.parameters()]")
        mesh.restart()
        mesh.run(setup(exact=True))
        mesh.autosave(tmp_path, every="25steps")
        mesh.run("train(until=30)")
        mesh.autosave_off()
        [save] = mesh.saves(tmp_path)
        mesh.restart()
        mesh.run(setup(exact=True))
        mesh.load(save.path)
        assert mesh.pull("(step, len(losses), schedule.last_epoch)") == [(25, 25, 25)] * 4, "all of the same step"
        mesh.run("train(until=60)")
        assert mesh.pull("losses, [each.detach().sum().item() for each in model.parameters()]") == uninterrupted
