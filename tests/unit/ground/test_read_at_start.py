"""Which variables a process must have when it starts, and which a program sets too late."""

from __future__ import annotations

import os

import pytest

from monarch_nb.ground.read_at_start import noting, of_start, set_before_imports, set_late, when_read

BASE = {"LANG": "C", "HOME": "/home/ann"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PYTHONHASHSEED",
            "PYTHONOPTIMIZE",
            "PYTHONSAFEPATH",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "MALLOC_ARENA_MAX",
            "LC_ALL",
            "KMP_AFFINITY",
        ),
        *(
            "OMP_PROC_BIND",
            "MKL_NUM_THREADS",
            "TQDM_DISABLE",
            "TORCH_LOGS",
            "TORCH_DISTRIBUTED_DEBUG",
            "TORCHINDUCTOR_CACHE_DIR",
        ),
        "HF_HOME",  # a module has read it
    ],
)
def test_what_is_read_at_the_start_must_be_there_then(name: str) -> None:
    assert of_start({name: "1", "RANK": "3"}, BASE, {"HF_HOME"}) == {name: "1"}
    assert of_start({name: "1"}, BASE | {name: "1"}, {"HF_HOME"}) == {}, "the node has it"


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "WANDB_MODE", "PYTHONPATH", "TZ"),
        *("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "COLUMNS", "MY_LR"),
    ],
)
def test_all_others_are_as_fast_as_ever(name: str) -> None:
    assert of_start({name: "1"}, BASE, {"COLUMNS", "RANK"}) == {}


def test_an_empty_one_is_as_none_to_those_that_read_it_at_the_start() -> None:
    empty = dict.fromkeys(("PYTHONVERBOSE", "LC_ALL", "LD_PRELOAD"), "")
    assert of_start(empty, BASE, ()) == {}
    assert of_start(empty, BASE | dict.fromkeys(empty, "1"), ()) == empty, "it takes away what the node has"
    assert of_start({"PYTHONTZPATH": ""}, BASE, {"PYTHONTZPATH"}) == {"PYTHONTZPATH": ""}, "a module has read it"
    assert of_start({"TORCH_LOGS": ""}, BASE, ()) == {"TORCH_LOGS": ""}


@pytest.mark.parametrize(
    ("program", "late"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", ["OMP_NUM_THREADS"]),
        ("from os import environ\nenviron.setdefault('TORCH_LOGS', '+dynamo')\nfrom torch import nn", ["TORCH_LOGS"]),
        (
            "import os\nif 1:\n    os.environ.update({'KMP_BLOCKTIME': '0'}, HF_HOME='/x')\nimport torch.nn",
            ["HF_HOME", "KMP_BLOCKTIME"],
        ),
        ("import os\ntry:\n    import torch\nexcept ImportError: pass\nos.environ['OMP_NUM_THREADS'] = '1'", []),
        (
            "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = os.environ['TOKENIZERS_PARALLELISM'] = '0'\nimport torch",
            [],
        ),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport json", []),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport lightning", ["OMP_NUM_THREADS"]),
        ("import rich\nimport os\nos.environ |= {'OMP_NUM_THREADS': '1'}\nimport lightning", ["OMP_NUM_THREADS"]),
        ("import os\ndef f():\n    import torch\nos.environ['KMP_BLOCKTIME'] = '0'\nimport torch", ["KMP_BLOCKTIME"]),
        ("import os\ndef f():\n    os.environ['KMP_BLOCKTIME'] = '0'\n    import torch\nf()", ["KMP_BLOCKTIME"]),
        ("import os\nimport torch\ndef f():\n    os.environ['KMP_BLOCKTIME'] = '0'\n    import rich\nf()", []),
        ("import torch as os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", []),
        ("def torch(:", []),
    ],
)
def test_what_a_program_sets_before_it_imports_what_reads_it(program: str, late: list[str]) -> None:
    assert set_before_imports(program.encode(), ["torch", "transformers.models"], {"HF_HOME"}) == late


def test_what_modules_read_is_noted_and_not_what_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IS_THERE", "1")
    kind = type(os.environ)
    with noting() as read:
        assert dict(os.environ)["IS_THERE"] == "1"
        [*os.environ.items()]
        assert not read
        os.environ.get("HF_HOME")
        assert os.getenv("IS_THERE") == "1"
        assert "NOT_THERE" not in os.environ
    assert read == {"HF_HOME", "IS_THERE", "NOT_THERE"}
    assert type(os.environ) is kind


def test_what_is_set_or_deleted_after_it_was_read_is_late() -> None:
    started = {"TORCH_LOGS": "dynamo", "HF_HOME": "/a", "MKL_NUM_THREADS": "1", "HOME": "/home/ann"}
    now = {"HF_HOME": "/b", "MKL_NUM_THREADS": "1", "HOME": "/tmp", "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO"}
    late = ["HF_HOME", "OMP_NUM_THREADS", "TORCH_LOGS"]
    assert set_late(started, now | {"TORCHINDUCTOR_CACHE_DIR": "/tmp", "RANK": "1"}, {"HF_HOME"}) == late


def test_it_is_said_what_reads_them() -> None:
    assert when_read(["TORCHINDUCTOR_CACHE_DIR"], ["torch", "torch.nn"]) == (
        "TORCHINDUCTOR_CACHE_DIR: read when torch is imported"
    )
    assert when_read(["A", "PYTHONHASHSEED", "B"], ["torch", "mine"]) == (
        "A, B: read when torch, mine are imported; PYTHONHASHSEED: read when Python starts"
    )
    assert when_read(["MKL_X"], []) == "MKL_X: read when a module is imported"
