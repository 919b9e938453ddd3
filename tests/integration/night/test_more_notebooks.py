"""The notebooks about packages, Lightning and actors, run to their ends by nbclient, each in a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from integration.notebooks import Executed, execute
from integration.pools import PoolOfMany, release_all
from monarch_nb.provision import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


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
        release_all()  # nothing is held, unless the notebook failed half-way


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
