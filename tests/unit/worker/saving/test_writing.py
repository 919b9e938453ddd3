"""Saves and loads of several ranks, as threads: what is written once, and by rank, and what fits where."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving.asked import LoadReport, Origin, SaveReport, SaveRequest
from monarch_nb.worker.saving.collecting import RANDOM_STATES, collect
from monarch_nb.worker.saving.dcp import Writer
from monarch_nb.worker.saving.manifest import Manifest, damage
from monarch_nb.worker.saving.reading import merged, said_of
from monarch_nb.worker.saving.writing import save
from unit.worker.saving.threads import loaded, on_ranks, saved, try_to_save

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_what_ranks_say_is_put_together() -> None:
    said = merged([{"a": "x"}, {"a": "x", "b": "y"}, {"a": "z"}], [4, 5, 6])
    assert said == {"a": "x (ranks 4-5); z (rank 6)", "b": "y (rank 5)"}


def test_a_save_leaves_torch_s_checksums_on_for_what_user_code_saves_meanwhile(tmp_path: Path) -> None:
    are_on: list[bool] = []
    writer = Writer(tmp_path, lambda _: are_on.append(torch.serialization.get_crc32_options()))
    checkpoint.save({"weight": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert are_on
    assert all(are_on)


def make(rank: int, seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 + seed)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "step": 7 + seed,
        "mine": rank + seed,
        "log": {1: [2.0, torch.ones(2)]},
    }


def test_what_was_saved_is_loaded_on_any_number_of_ranks(tmp_path: Path) -> None:
    report = saved(tmp_path, [make(rank) for rank in range(3)])
    assert SaveReport.from_json(report.to_json()) == report
    assert [part.name for part in report.parts if part.by_rank] == ["mine", RANDOM_STATES]
    path = Path(report.path)
    assert damage(path, Manifest.read(path)) == {}
    assert Manifest.read(path).leaves["model.0.weight"].device == "cpu"
    sizes = [size.stat().st_size for size in path.glob("*.distcp")]
    assert sum(sizes) < 2 * max(sizes) + 60_000, "ranks share the work"
    before = make(0)
    for number in (3, 1, 4):
        namespaces = [make(rank, seed=9) for rank in range(number)]
        del namespaces[0]["log"]
        reports = loaded(tmp_path, namespaces)
        assert all(isinstance(each, LoadReport) for each in reports), reports
        for rank, each in enumerate(namespaces):
            assert each["step"] == 7
            assert each["log"][1][1].tolist() == [1, 1]
            assert each["mine"] == (rank if number == 3 else rank + 9)
            assert each["optimizer"].param_groups[0]["lr"] == 0.5
            for key, tensor in before["model"].state_dict().items():
                assert torch.equal(each["model"].state_dict()[key], tensor)
            for place, state in before["optimizer"].state_dict()["state"].items():
                assert torch.equal(each["optimizer"].state_dict()["state"][place]["exp_avg"], state["exp_avg"])


def test_a_name_that_only_some_ranks_have_is_saved_by_these(tmp_path: Path) -> None:
    namespaces: list[dict[str, Any]] = [{"step": 1}, {"step": 1, "solo": torch.ones(2)}, {"step": 1}]
    report = saved(tmp_path, namespaces, "step", "solo")
    assert [part.name for part in report.parts if part.by_rank] == ["solo"]
    assert str(report).endswith("different by rank, and kept by rank: solo\nonly rank 1 has solo")
    assert saved(tmp_path, namespaces).notes == ("only rank 1 has solo",), "also where nothing was named"
    namespaces[1]["solo"].zero_()
    assert {each.names for each in loaded(tmp_path, namespaces, "step", "solo")} == {("step", "solo")}
    assert namespaces[1]["solo"].tolist() == [1, 1]
    assert "solo" not in namespaces[0]
    first, *_ = try_to_save(tmp_path, namespaces, "step", "solo", strict=True)
    assert str(first) == "nothing was saved, because of --strict: only rank 1 has solo"
    first, *_ = try_to_save(tmp_path, namespaces, "stpe", "solo")
    assert "`stpe` can not be saved: there is no such name; did you mean `step`?" in str(first)
    assert [each.name for each in sorted(tmp_path.iterdir())] == ["0001", "0002"], "nothing is left of these"


def test_a_fresh_optimizer_takes_the_state_of_one_that_has_made_steps(tmp_path: Path) -> None:
    before = make(0)
    saved(tmp_path, [before])
    now = make(0, seed=1)
    now["optimizer"] = torch.optim.Adam(now["model"].parameters())
    [report] = loaded(tmp_path, [now], "optimizer")
    assert report.names == ("optimizer",)
    assert torch.equal(
        now["optimizer"].state[now["model"][0].weight]["exp_avg"],
        before["optimizer"].state[before["model"][0].weight]["exp_avg"],
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("model", torch.nn.Linear(4, 8), "model.0.bias is only in the save"),
        (
            "model",
            torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.BatchNorm1d(9)),
            "has the shape (9,) here, and",
        ),
        ("model", make(0)["model"].double(), "is float64 here, and float32 in the save"),
        ("model", 3, "was saved as a Sequential, and is an int"),
        ("optimizer", torch.optim.Adam([torch.ones(2)]), "has groups of 1 parameters here, and of 4 in the save"),
        ("step", [1], "was saved as an int, and is a list: after `del step` it is loaded"),
        ("model", len, "was saved as a Sequential, and is a function"),
    ],
    ids=["keys", "shape", "dtype", "kind", "parameters", "type", "function"],
)
def test_what_does_not_fit_changes_nothing_on_any_rank(tmp_path: Path, name: str, value: object, why: str) -> None:
    saved(tmp_path, [make(0), make(1)])
    namespaces = [make(0, seed=2), make(1, seed=2) | {name: value}]
    before = {key: tensor.clone() for key, tensor in namespaces[0]["model"].state_dict().items()}
    for error in loaded(tmp_path, namespaces):
        assert isinstance(error, SaveError)
        said = error.problems[name]
        assert [*error.problems] == [name]
        assert why in said
        assert "(rank 1)" in said
        assert str(error) == f"nothing was loaded: {said_of(name, said)}"
        assert f"`{name}` {name}" not in str(error), "a name is said once"
    assert namespaces[0]["step"] == 9
    assert all(torch.equal(tensor, before[key]) for key, tensor in namespaces[0]["model"].state_dict().items())


def test_damage_is_seen_before_anything_changes(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, [make(0), make(1)]).path)
    for name in [".metadata", "__1_0.distcp"]:
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:-1])
        for error in loaded(tmp_path, [make(0), make(1)]):
            assert f"{path / name}` has {len(whole) - 1:,} bytes in place of {len(whole):,}" in str(error)
        (path / name).write_bytes(whole)
    (path / "__1_0.distcp").unlink()
    assert "can not be read: No such file or directory" in str(loaded(tmp_path, [make(0)])[0])
    manifest = json.loads((path / "save.json").read_text())
    (path / "save.json").write_text(json.dumps(manifest | {"format": 99}))
    assert "was saved by a newer monarch_nb" in str(loaded(tmp_path, [make(0)])[0])


class Own:
    """What only unpickling brings back."""


class Holding:
    def __init__(self) -> None:
        self.held: Any = Own()

    def state_dict(self) -> dict[str, Any]:
        return {"held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


def test_pickles_are_only_executed_if_nobody_else_can_have_written_them(tmp_path: Path) -> None:
    path = Path(saved(tmp_path, [{"x": Holding(), "y": 1}]).path)
    assert loaded(tmp_path, [{"x": Holding()}])[0].names == ("x", "y", RANDOM_STATES)
    path.chmod(0o777)
    assert "can only be unpickled, which executes what the file says" in str(loaded(tmp_path, [{"x": Holding()}])[0])
    assert loaded(tmp_path, [{}], "y")[0].names == ("y",)


def test_strict_refuses_what_would_be_left_out(tmp_path: Path) -> None:
    saved(tmp_path, [make(0), make(1)])
    assert "differs by rank: 2 saved, and 1 load" in str(loaded(tmp_path, [make(0)], strict=True)[0])
    assert "`more` is not in the save" in str(loaded(tmp_path, [make(0) | {"more": 1}, make(1)], strict=True)[0])
    assert "`nope` is not in the save, which has log, mine," in str(loaded(tmp_path, [make(0)], "nope")[0])


def test_what_makes_random_numbers_is_made_where_it_is_not_there(tmp_path: Path) -> None:
    makers: dict[str, Any] = {
        "torch_s": torch.Generator().manual_seed(3),
        "numpy_s": numpy.random.default_rng(3),
        "old_numpy_s": numpy.random.RandomState(3),
        "python_s": random.Random(3),
    }
    saved(tmp_path, [makers])
    now: dict[str, Any] = {}
    [report] = loaded(tmp_path, [now])
    assert set(report.names) >= set(makers), report
    assert torch.equal(torch.rand(2, generator=now["torch_s"]), torch.rand(2, generator=makers["torch_s"]))
    assert now["numpy_s"].random() == makers["numpy_s"].random()
    assert now["old_numpy_s"].random() == makers["old_numpy_s"].random()
    assert now["python_s"].random() == makers["python_s"].random()


def test_what_only_a_function_held_is_loaded_where_it_is_there_and_else_left_in_the_save(tmp_path: Path) -> None:
    namespace = make(0) | {"nets": make_gan(3)["nets"]}
    request = SaveRequest(str(tmp_path), of_functions=("model", "optimizer", "nets"))
    on_ranks(1, lambda rank, exchange: save(request, collect(namespace), exchange, "mesh"))
    now = make(0, seed=4)
    del now["optimizer"]
    [report] = loaded(tmp_path, [now])
    assert report.names == ("model", "step", "mine", "log", RANDOM_STATES)
    assert set(report.left_out) == {"optimizer", "nets.g", "nets.d"}
    assert "(functions or actors held them that trained" in str(report)
    assert torch.equal(now["model"][0].weight, namespace["model"][0].weight)
    [error] = loaded(tmp_path, [now], "optimizer")
    assert "`optimizer` is not there: run the cells that make it (an Adam)" in str(error), "it was named"
    [error] = loaded(tmp_path, [now], strict=True)
    assert "optimizer" in str(error)


def test_containers_keep_their_types(tmp_path: Path) -> None:
    before: dict[str, Any] = {
        "by_name": defaultdict(list, a=[1]),
        "counts": Counter("aab"),
        "ordered": OrderedDict(b=1, a=torch.ones(2)),
        "inside": {"counts": Counter("b")},
    }
    saved(tmp_path, [before, before])
    now: dict[str, Any] = {}
    others: dict[str, Any] = {"by_name": defaultdict(list, b=[3]), "counts": Counter("zz")}
    assert all(isinstance(each, LoadReport) for each in loaded(tmp_path, [now, others]))
    for each in (now, others):
        assert {name: type(each[name]) for name in before} == {name: type(value) for name, value in before.items()}
        assert each["by_name"]["new"] == []
        assert each["counts"] == before["counts"]
        assert type(each["inside"]["counts"]) is Counter
        assert each["ordered"]["a"].tolist() == [1, 1]


def make_gan(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    nets = {"g": torch.nn.Linear(2, 3), "d": torch.nn.Linear(3, 1)}
    optimizers = [torch.optim.Adam(each.parameters()) for each in nets.values()]
    nets["d"](nets["g"](torch.ones(1, 2))).sum().backward()
    for each in optimizers:
        each.step()
    return {"nets": nets, "optimizers": optimizers, "run": {"average": [torch.nn.Linear(1, 1)], "epoch": seed}}


def test_what_stands_in_containers_is_loaded_where_it_is(tmp_path: Path) -> None:
    before = [make_gan(3) for _ in range(2)]
    before[0]["run"]["best"] = before[1]["run"]["best"] = 0.5
    report = saved(tmp_path, before)
    names = ("nets.g", "nets.d", "optimizers.0", "optimizers.1", "run.average.0", "run.epoch", "run.best")
    assert [part.name for part in report.parts] == [*names, RANDOM_STATES]
    now = make_gan(4)
    generator = now["nets"]["g"]
    [told] = loaded(tmp_path, [now])
    assert told.names == names
    assert now["nets"]["g"] is generator
    assert torch.equal(generator.weight, before[0]["nets"]["g"].weight)
    assert torch.equal(
        now["optimizers"][1].state_dict()["state"][0]["exp_avg"],
        before[0]["optimizers"][1].state_dict()["state"][0]["exp_avg"],
    )
    assert (now["run"]["epoch"], now["run"]["best"]) == (3, 0.5)
    assert set(now) == {"nets", "optimizers", "run"}

    [told] = loaded(tmp_path, [make_gan(5)], "nets.d", "optimizers")
    assert told.names == ("nets.d", "optimizers.0", "optimizers.1")

    del now["nets"]["d"], now["run"]
    [refused] = loaded(tmp_path, [now])
    assert set(refused.problems) == {"nets.d", "run.average.0", "run.epoch", "run.best"}
    assert refused.problems["nets.d"] == "is not there: run the cells that make it (a Linear)"

    dcp_to_torch_save(Path(report.path), tmp_path / "all.pt")
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    assert torch.equal(whole["nets"]["g"]["weight"], generator.weight)


def test_a_container_is_loaded_with_those_that_were_saved_under_another_name(tmp_path: Path) -> None:
    before, now = make_gan(3), make_gan(4)
    before["critic"] = before["nets"]["d"]
    assert "nets.d" not in [part.name for part in saved(tmp_path, [before]).parts]
    [told] = loaded(tmp_path, [now], "nets")
    assert torch.equal(now["nets"]["d"].weight, before["critic"].weight), told
    assert set(now) == {"nets", "optimizers", "run"}


def test_saves_by_themselves_do_not_remove_those_of_people(tmp_path: Path) -> None:
    def save_once(reason: str, keep: int) -> None:
        request = SaveRequest(str(tmp_path), keep=keep, origin=Origin(reason=reason))
        on_ranks(1, lambda rank, exchange: save(request, collect({"step": 1}), exchange, "mesh"))

    for reason, keep in [("", 1), ("every 2 steps", 2), ("every 2 steps", 2), ("the time is up", 2)]:
        save_once(reason, keep)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0001", "0003", "0004"]
    save_once("", 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0003", "0004", "0005"], "nor the other way round"
