"""The two notebooks that users see first, run to their ends by nbclient on a real pool, each in a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

import monarch_nb
from integration.notebooks import NOTEBOOKS, Executed, execute
from integration.pools import release_all
from monarch_nb.provision import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both lie."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def quickstart(shared_pool: list[Node], folder: Path) -> Iterator[Executed]:
    """The first notebook, executed once for all tests here."""
    try:
        yield execute("quickstart", folder)
    finally:
        release_all()  # nothing is held, unless a notebook failed half-way


@pytest.fixture(scope="module")
def reattach(quickstart: Executed, folder: Path) -> Executed:
    """The one after it."""
    return execute("reattach", folder)


def test_notebooks_are_stored_clean() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata.kernelspec.name == "python3"
        for cell in notebook.cells:
            assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


def test_rank_sets_fold_equal_lines(quickstart: Executed) -> None:
    text = quickstart.text("import torch.distributed as dist\n\ndist.init")
    for rank in range(8):
        assert f"[{rank}] rank {rank} of 8 on cpu" in text
    assert re.search(r"\[0-7\] [\d,]+ characters, 112,384 parameters", quickstart.text("model = GPT()"))


def test_loss_falls_and_goes_on_falling_at_an_edited_learning_rate(quickstart: Executed) -> None:
    first = quickstart.losses("learning_rate=6e-3")
    edited = quickstart.losses("train(steps=100, learning_rate=2e-3)")
    assert first[25] > 3.0
    assert first[250] < 1.9
    assert list(edited) == [275, 300, 325, 350]
    assert edited[350] < min(first.values())


def test_figures_of_a_rank_and_of_the_kernel(quickstart: Executed) -> None:
    assert quickstart.images("pca_lowrank") == 1
    assert quickstart.images("losses = np.array(losses)") == 1


def test_a_rank_that_raises_is_named_and_the_others_are_freed(quickstart: Executed) -> None:
    stuck = quickstart.text("rank 5 read a bad batch")
    assert "ranks 0-4,6-7 waited in all_reduce" in stuck
    assert "for rank 5, which raised ValueError" in stuck
    assert "ranks 0-4,6-7 freed: rank 5 failed and can never join them" in stuck
    assert "ValueError: rank 5 read a bad batch" in stuck
    assert not re.search(r"mean loss \d", stuck)
    again = quickstart.text("# also gives all")
    assert re.search(r"\[0-7\] step 360, norm of the weights", again)
    assert quickstart.losses("train(steps=50, learning_rate=2e-3)")[400] < 1.6


def test_a_rank_that_died_is_reported_and_its_successor_takes_part(quickstart: Executed) -> None:
    assert "killed by signal 9 (SIGKILL)" in quickstart.text("signal.SIGKILL")
    assert "7 of 8 ranks alive" in quickstart.text("%mesh status")
    joined = quickstart.text("state = [optimizer", place=-1)
    assert re.search(r"\[0-7\] step 410, norm of the weights", joined)
    assert list(quickstart.losses("falls to zero")) == list(range(425, 601, 25))


def test_the_model_writes_python(quickstart: Executed) -> None:
    written = quickstart.text("model.write")
    assert len(written) > 500
    assert "self" in written


def test_another_kernel_goes_on_with_the_live_model(reattach: Executed) -> None:
    """The run that outlived its kernel is followed to its end, and the next losses continue from there."""
    followed = reattach.losses("%mesh attach dev")
    assert max(followed) == 800
    assert "step 810" in reattach.text("optimizer.state")
    continued = reattach.losses("train(steps=50")
    assert abs(continued[min(continued)] - followed[800]) < 0.15
    assert reattach.images("np.convolve") == 1


def test_release_ends_it(reattach: Executed) -> None:
    assert "released" in reattach.text("%mesh release")
    assert not monarch_nb.list_reservations()
