"""How much memory is in use, and which names hold it."""

from __future__ import annotations

import pickle
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monarch_nb.worker import memory
from monarch_nb.worker.memory import GpuFigures, Held, gpu_figures

MB = 1 << 20


@pytest.fixture(autouse=True)
def all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of other tests, which have no name here, push none out."""
    monkeypatch.setattr(memory, "MOST_TENSORS", 100_000)


def sizes(namespace: dict[str, Any]) -> dict[str, int]:
    found = Held().look(namespace).found()
    return {each.name: each.size_bytes for each in found.largest if each.name}


def test_figures_of_a_gpu_as_torch_tells_them() -> None:
    stats = {
        "allocated_bytes.all.current": 600 * MB,
        "allocated_bytes.all.peak": 900 * MB,
        "reserved_bytes.all.current": 1000 * MB,
    }
    blocks = [{"size": 600 * MB, "state": "active_allocated"}, {"size": 250 * MB, "state": "inactive"}]
    segments = [
        {"total_size": 850 * MB, "blocks": blocks},
        {"total_size": 150 * MB, "blocks": [{"size": 150 * MB, "state": "inactive"}]},
    ]
    figures = gpu_figures(stats, segments, 7 * MB, 2000 * MB)
    assert figures == GpuFigures(600 * MB, 1000 * MB, 250 * MB, 900 * MB, 7 * MB, 2000 * MB)
    assert figures.fragmentation == 400 * MB
    assert gpu_figures({}, []) == GpuFigures(0, 0, 0, 0)


def test_modules_optimizers_and_objects_hold_tensors_under_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False), torch.nn.BatchNorm1d(32, affine=False))
    model.cache = {"keys": [torch.zeros(300)]}  # type: ignore[assignment] -- what users hang on modules
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 64)).square().sum().backward()
    optimizer.step()
    found = sizes({"trainer": SimpleNamespace(model=model, optimizer=optimizer), "rank": 0, "torch": torch})
    assert found == {
        "trainer.model.0.weight": 8192,
        "trainer.model.0.weight.grad": 8192,
        "trainer.optimizer.state[trainer.model.0.weight]['exp_avg']": 8192,
        "trainer.optimizer.state[trainer.model.0.weight]['exp_avg_sq']": 8192,
        "trainer.optimizer.state[trainer.model.0.weight]['step']": 4,
        "trainer.model.1.running_mean": 128,
        "trainer.model.1.running_var": 128,
        "trainer.model.1.num_batches_tracked": 8,
        "trainer.model.cache['keys'][0]": 1200,
    }


def test_memory_that_tensors_share_counts_once_under_the_name_of_the_whole() -> None:
    whole = torch.zeros(1000)
    rows = [whole[:10], whole[10:20]]
    found = Held().look({"rows": rows, "part": whole[:2], "whole": whole, "again": whole}).found()
    (named,) = [each for each in found.largest if each.name]
    assert (named.name, named.facts, named.size_bytes) == ("whole", "[1000] float32 cpu", 4000)
    assert set(named.others) <= {"part", "again", "rows[0]", "rows[1]"}
    assert (found.tensors, found.size_bytes) == (1, {"cpu": 4000})


def test_a_tensor_that_has_no_name_is_found_unless_only_garbage_holds_it() -> None:
    kept = torch.zeros(12345)
    found = Held().look({"closure": lambda: kept}).found()
    assert any(each.name == "" and each.size_bytes == 4 * 12345 for each in found.largest)
    cycle: list[Any] = [torch.ones(3, 5, 7, 11)]
    cycle.append(cycle)
    del cycle
    told = pickle.loads(zlib.decompress(memory.now({})))
    assert not [facts for _, facts, *_ in told["held"][0] if "[3, 5, 7, 11]" in facts]


def test_the_search_ends_in_time_and_calls_nothing_of_the_users() -> None:
    class Hostile:
        @property
        def loss(self) -> torch.Tensor:
            raise AssertionError("called")

        def __getitem__(self, key: object) -> object:
            raise AssertionError("called")

        def __len__(self) -> int:
            raise AssertionError("called")

    inside: list[Any] = [Hostile(), torch.ones(3)]
    inside.append(inside)
    assert sizes({"inside": inside}) == {"inside[1]": 12}
    many = {"many": [[number] for number in range(5000)]}
    assert not Held(most_values=1000).look(many).found().is_whole
    assert not Held(within_s=0.0).look(many).found().is_whole


def test_what_frames_hold_is_noted_when_an_allocation_fails() -> None:
    def grow(batch: torch.Tensor) -> torch.Tensor:
        huge = torch.zeros(200_000)
        return torch.empty(1 << 50) + huge

    with pytest.raises(RuntimeError, match="can't allocate memory") as caught:
        grow(torch.ones(100_000))
    memory.note(caught.value, {"model": torch.zeros(50_000)}, "run")
    assert memory.take("another run") is None
    memory.note(caught.value, {"model": torch.zeros(50_000)}, "run")
    noted = memory.take("run")
    assert noted is not None
    own = test_what_frames_hold_is_noted_when_an_allocation_fails.__qualname__
    names = {each[0]: each[2] for each in noted["held"][0]}
    assert names[f"{own}.<locals>.grow(): huge"] == 800_000
    assert names[f"{own}.<locals>.grow(): batch"] == 400_000
    assert names["model"] == 200_000
    assert memory.take("run") is None
    memory.note(ValueError("no"), {}, "run")
    assert memory.take("run") is None
    assert memory.is_out_of_memory("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_memory_of_the_gpu_in_which_no_tensors_are_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "released" not in pickle.loads(zlib.decompress(memory.now({})))
    assert pickle.loads(zlib.decompress(memory.now({}, release=True)))["released"] == 0
    reserved = [7 * MB]
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        synchronize=lambda: None,
        ipc_collect=lambda: None,
        empty_cache=lambda: reserved.append(2 * MB),
        memory_reserved=lambda: reserved[-1],
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    assert memory.give_back() == 5 * MB


def test_at_a_breakpoint_a_variable_that_a_local_one_hides_has_a_name() -> None:
    names = {"w": torch.zeros(300), "v": torch.zeros(200)}
    told = pickle.loads(zlib.decompress(memory.now(names, {"w": torch.zeros(100)})))
    named = {each[0]: each[2] for each in told["held"][0] if each[0]}
    assert named == {"w": 400, "global w": 1200, "v": 800}
