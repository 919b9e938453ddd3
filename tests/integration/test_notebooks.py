"""The notebooks that users see first, run to their ends by nbclient on a real pool, each in a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import nbformat
import pytest

import monarch_nb
from integration.notebooks import NOTEBOOKS, Executed, execute
from integration.pools import PoolOfMany
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
        for reservation in monarch_nb.list_reservations():  # none, unless a notebook failed half-way
            monarch_nb.attach(reservation.name).release()


@pytest.fixture(scope="module")
def develop(_isolated: PoolOfMany, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """The notebook that edits a package. Its pool is this process's only meanwhile: the next notebook has another."""
    with _isolated.in_use():
        return execute("develop", tmp_path_factory.mktemp("develop"))


@pytest.fixture(scope="module")
def lightning(shared_pool: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """The notebook that trains with Lightning."""
    pytest.importorskip("lightning")
    return execute("lightning", tmp_path_factory.mktemp("lightning"))


@pytest.fixture(scope="module")
def actors(shared_pool: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Executed]]:
    """The notebook with actors, executed twice in the same ranks, each time by a new kernel; the second releases."""
    folder = tmp_path_factory.mktemp("actors")
    try:
        yield [execute("actors", folder, without="%mesh release"), execute("actors", folder)]
    finally:
        for reservation in monarch_nb.list_reservations():  # none, unless the notebook failed half-way
            monarch_nb.attach(reservation.name).release()


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


def test_a_package_reaches_every_node(develop: Executed) -> None:
    text = develop.text("print(spirals.__file__)")
    assert re.search(r"sent 3 files, .* to 4 nodes", text)
    assert len(set(re.findall(r"/(node\d)/\S+/spirals/__init__.py", text))) == 4


def test_a_living_model_gets_the_new_forward(develop: Executed) -> None:
    before = float(re.findall(r"accuracy (\S+)", develop.text("train(steps=200)"))[0])
    edited = develop.text("still a Net")
    assert before < 0.8
    assert "[0-7] still a Net: True, with Adam's moments of 6 tensors" in edited
    assert float(re.findall(r"step 600 .* accuracy (\S+)", edited)[0]) > 0.95


def test_a_mistake_in_a_module_is_shown_once_for_all_ranks(develop: Executed) -> None:
    text = develop.text("train(steps=100)")
    assert text.count("spirals/model.py could not be reloaded; the ranks still run the version before") == 1
    assert text.count("SyntaxError: '(' was never closed") == 1
    assert "step 700" in text
    assert re.search(r"sure by [01]\.\d+", develop.text("import confidence"))


def test_what_a_rank_wrote_is_fetched(develop: Executed) -> None:
    assert "net.pt" in develop.text("%mesh ls")
    assert "brought 1 file" in develop.text("%mesh fetch")
    assert develop.images("load_state_dict") == 1
    assert "node3" in develop.text("%mesh sync --status")
    assert "released" in develop.text("%mesh release")


def test_lightning_trains_on_all_ranks_and_goes_on_with_an_edited_module(lightning: Executed) -> None:
    def loss(code: str) -> float:
        return float(re.findall(r"on 4 ranks, \S+: loss (\S+)", lightning.text(code))[0])

    assert loss("straight = fit()") > 0.4
    assert loss("curved = fit()") < 0.1
    assert "bf16-mixed" in lightning.text("half = fit(")
    assert "[0-3] (16, 32) of (32, 32) weights here" in lightning.text("sharded = fit(")
    assert "this mesh has 4 ranks (nodes × ranks: 2 × 2)" in lightning.text("L.Trainer(devices=2")
    assert lightning.images("plt.semilogy") == 1


def test_lightning_resumes_from_its_checkpoint_after_a_fault(lightning: Executed) -> None:
    assert "killed by signal 9 (SIGKILL)" in lightning.text("Fault()")
    undisturbed, resumed = (lightning.text(f"{name} = fit(") for name in ("undisturbed", "resumed"))
    assert undisturbed == resumed
    assert "loss 0.0" in resumed
    assert "released" in lightning.text("%mesh release")


def test_actors_greet_from_every_rank_and_name_those_that_raise(actors: list[Executed]) -> None:
    for executed in actors:
        greeted = executed.text("class Greeter(Actor)")
        assert "[0-7] Good morning, notebook!" in greeted
        assert "ranks 4-7: 'greeting 1 from host 1'" in greeted
        assert "greeting 2 from host 0" in executed.text('"rank 3"')
        assert "raised on [2, 5] and answered on [0, 1, 3, 4, 6, 7]" in executed.text("class Fussy(Greeter)")


def test_a_trainer_is_configured_anew_and_evaluated_from_beside(actors: list[Executed]) -> None:
    for executed in actors:
        before, after = re.findall(r"mean loss (\S+), now (\S+)", executed.text("width=64"))[0]
        assert float(before) > 0.5
        assert float(after) < 0.1
        assert re.search(r"\[0-7\] norm of the weights \d", executed.text('trainer = actors["trainers"]'))
        assert re.search(r"off by \d\.\d\d at", executed.text("class Evaluator(Actor)"))
        assert re.search(r"trainers +Trainer +main +0-7 +idle", executed.text("%mesh actors"))
        assert re.search(r"evaluators +Evaluator +evaluators +0-1 +idle", executed.text("%mesh actors"))


def test_a_consumer_gets_what_every_rank_produces_and_actors_are_found_again(actors: list[Executed]) -> None:
    for executed in actors:
        assert executed.text("class Consumer(Actor)").count("[0, 1, 4, 9]") == 8
        assert "True" in executed.text("found = ")
    assert "8 ranks alive" in actors[1].text("%mesh reserve"), "they are the ranks of the first time"
    assert "released" in actors[1].text("%mesh release")
