"""Templates of a node: which one a process needs, and when one ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.allocator.processes import templates as templates_module
from monarch_nb.allocator.processes.templates import Templates, template_key, what_is_wrong
from monarch_nb.config import NodePaths


class FakeTemplates(Templates):
    """Templates without processes, whose modules have read HF_HOME."""

    def __init__(self, directory: Path) -> None:
        super().__init__(NodePaths(directory), lambda *_: None, lambda *_: None)
        self.started: list[tuple[list[str], dict[str, str]]] = []

    async def _start(self, key: str, python: str, preload: Any, environment: Any) -> Any:
        self.started.append((list(preload), dict(environment)))
        ended: list[str] = []
        self._watches[key] = SimpleNamespace(kill=lambda: ended.append(key))  # type: ignore[assignment]
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ready.set_result(SimpleNamespace(reads=["HF_HOME"]))
        return SimpleNamespace(ready=ready, alive=True, ended=ended)


@pytest.fixture
def templates(tmp_path: Path) -> FakeTemplates:
    return FakeTemplates(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "program", "preload", "own", "late"),
    [
        ({}, b"", ["torch"], {}, []),
        ({"WANDB_MODE": "offline"}, b"", ["torch"], {}, []),
        (
            {"WANDB_MODE": "offline", "HF_HOME": "/x", "TORCH_LOGS": "+dynamo"},
            b"",
            ["torch"],
            {"HF_HOME": "/x", "TORCH_LOGS": "+dynamo"},
            [],
        ),
        ({}, b"import os\nos.environ['HF_HOME'] = '/x'\nimport torch", [], {}, ["HF_HOME"]),
    ],
)
async def test_which_template_a_process_needs(
    templates: FakeTemplates,
    wanted: dict[str, str],
    program: bytes,
    preload: list[str],
    own: dict[str, str],
    late: list[str],
) -> None:
    assert await templates.needs_own("python", ["torch"], wanted, program) == (preload, own, late)


async def test_there_is_one_for_each_environment(templates: FakeTemplates) -> None:
    assert not templates.has("python", ["torch"], {"PYTHONHASHSEED": "0"})
    for own in ({}, {"PYTHONHASHSEED": "0"}, {}, {"PYTHONHASHSEED": "0"}, {"PYTHONHASHSEED": "1"}):
        await templates.template("python", ["torch"], own)
    assert [environment.get("PYTHONHASHSEED") for _, environment in templates.started] == [None, "0", "1"]
    assert templates.has("python", ["torch"], {"PYTHONHASHSEED": "0"})


async def test_what_an_allocator_with_another_environment_has_left_is_another_one(
    templates: FakeTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await templates.template("python", ["torch"])
    monkeypatch.setenv("WINDOWID", "7")
    assert templates.has("python", ["torch"], {})
    monkeypatch.setenv("TORCH_LOGS", "+dynamo")
    assert not templates.has("python", ["torch"], {})


async def test_what_nobody_needs_ends_but_for_the_nodes_own(
    templates: FakeTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates_module, "UNUSED_S", 0.0)
    templates.keep_warm("python", ["torch"])
    await templates.ready.wait()
    own: Any = await templates.template("python", ["torch"])
    other: Any = await templates.template("python", ["torch"], {"PYTHONHASHSEED": "0"})
    while not other.ended:
        await asyncio.sleep(0)
    another: Any = await templates.template("python", [], {"PYTHONHASHSEED": "0"})  # begins after it, and ends
    await templates.template("python", ["torch"])
    while not another.ended:
        await asyncio.sleep(0)
    assert own.ended == []


async def test_one_that_ends_is_asked_for_nothing_more(
    templates: FakeTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates_module, "UNUSED_S", 0.0)
    first: Any = await templates.template("python", ["torch"])
    while not first.ended:
        await asyncio.sleep(0)
    assert not templates.has("python", ["torch"], {})  # although its end is yet to be seen
    assert await templates.template("python", ["torch"]) is not first


def test_names_of_one_python_share_a_template_and_environments_do_not(tmp_path: Path) -> None:
    base = tmp_path / "python3.11"
    base.touch()
    for environment in ("one", "two"):
        directory = tmp_path / environment
        directory.mkdir()
        (directory / "python3.11").symlink_to(base)
        (directory / "python").symlink_to("python3.11")
    key, *others = (template_key(str(tmp_path / name), ["torch"], {}) for name in ("one/python", "two/python", "none"))
    assert key == template_key(str(tmp_path / "one/python3.11"), ["torch"], {})
    assert key not in (*others, template_key(str(tmp_path / "one/python"), [], {}))
    assert template_key("/no/such/python", [], {}) != template_key("/no/such/other", [], {}), (
        "one that is not there has a key"
    )


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("/bin/cat: invalid option -- 'm'", ": is it a Python?"),
        ("", ": is it a Python?"),
        ("Traceback (most recent call last):\n  File …\nModuleNotFoundError: No module named 'rich'", "it has no rich"),
        (
            "/envs/a/bin/python: No module named monarch_nb",
            "it has no monarch_nb, which ranks need: /envs/a/bin/python -m",
        ),
        ("Traceback (most recent call last):\n  File …\nOSError: disk full", ""),
    ],
)
def test_what_is_wrong_with_a_python_that_does_not_start(said: str, wrong: str) -> None:
    told = what_is_wrong("/envs/a/bin/python", said)
    assert wrong in told
    assert bool(wrong) == bool(told)
