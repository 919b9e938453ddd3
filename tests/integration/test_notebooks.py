"""The two notebooks that users see first, run to their ends by nbclient on a real pool, each in a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import nbformat
import pytest

import monarch_nb
from integration.notebooks import NOTEBOOKS, Executed, execute
from integration.pools import release_all
from monarch_nb.provision import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Pair:
    """Both notebooks, run one after the other."""

    quickstart: Executed
    reattach: Executed


@pytest.fixture(scope="module")
def notebooks(shared_pool: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both notebooks, executed once for all tests here."""
    folder = tmp_path_factory.mktemp("notebooks")
    try:
        yield Pair(execute("quickstart", folder), execute("reattach", folder))
    finally:
        release_all()  # nothing is held, unless a notebook failed half-way


def test_notebooks_are_stored_clean() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata.kernelspec.name == "python3"
        for cell in notebook.cells:
            assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


def test_rank_sets_fold_equal_lines(notebooks: Pair) -> None:
    text = notebooks.quickstart.text("import torch.distributed as dist\n\ndist.init")
    for rank in range(8):
        assert f"[{rank}] rank {rank} of 8 on cpu" in text
    assert re.search(r"\[0-7\] [\d,]+ characters, 112,384 parameters", notebooks.quickstart.text("model = GPT()"))


def test_loss_falls_and_goes_on_falling_at_an_edited_learning_rate(notebooks: Pair) -> None:
    first = notebooks.quickstart.losses("learning_rate=6e-3")
    edited = notebooks.quickstart.losses("train(steps=100, learning_rate=2e-3)")
    assert first[25] > 3.0
    assert first[250] < 1.9
    assert list(edited) == [275, 300, 325, 350]
    assert edited[350] < min(first.values())


def test_figures_of_a_rank_and_of_the_kernel(notebooks: Pair) -> None:
    assert notebooks.quickstart.images("pca_lowrank") == 1
    assert notebooks.quickstart.images("losses = np.array(losses)") == 1


def test_a_rank_that_raises_is_named_and_the_others_are_freed(notebooks: Pair) -> None:
    told = notebooks.quickstart.text("notices.get")
    assert "ranks 0-4,6-7 wait in all_reduce" in told
    assert "rank 5 raised ValueError" in told
    assert "on ranks 0-4,6-7" in notebooks.quickstart.text("%mesh interrupt")
    stuck = notebooks.quickstart.text("rank 5 read a bad batch")
    assert "ValueError: rank 5 read a bad batch" in stuck
    assert not re.search(r"mean loss \d", stuck)
    again = notebooks.quickstart.text("# also gives all")
    assert re.search(r"\[0-7\] step 360, norm of the weights", again)
    assert notebooks.quickstart.losses("train(steps=50, learning_rate=2e-3)")[400] < 1.6


def test_a_rank_that_died_is_reported_and_its_successor_takes_part(notebooks: Pair) -> None:
    assert "killed by signal 9 (SIGKILL)" in notebooks.quickstart.text("signal.SIGKILL")
    assert "7 of 8 ranks alive" in notebooks.quickstart.text("%mesh status")
    joined = notebooks.quickstart.text("state = [optimizer", place=-1)
    assert re.search(r"\[0-7\] step 410, norm of the weights", joined)
    assert list(notebooks.quickstart.losses("falls to zero")) == list(range(425, 601, 25))


def test_the_model_writes_python(notebooks: Pair) -> None:
    written = notebooks.quickstart.text("model.write")
    assert len(written) > 500
    assert "self" in written


def test_another_kernel_goes_on_with_the_live_model(notebooks: Pair) -> None:
    """The run that outlived its kernel is followed to its end, and the next losses continue from there."""
    followed = notebooks.reattach.losses("%mesh attach dev")
    assert max(followed) == 800
    assert "step 810" in notebooks.reattach.text("optimizer.state")
    continued = notebooks.reattach.losses("train(steps=50")
    assert abs(continued[min(continued)] - followed[800]) < 0.15
    assert notebooks.reattach.images("np.convolve") == 1


def test_release_ends_it(notebooks: Pair) -> None:
    assert "released" in notebooks.reattach.text("%mesh release")
    assert not monarch_nb.list_reservations()
