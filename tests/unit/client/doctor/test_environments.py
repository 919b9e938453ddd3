"""Which nodes run in one environment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.files import node_files
from monarch_nb.client.doctor.environments import (
    NodeEnvironment,
    PipReport,
    distinct_environments,
    may_change,
    pip_code,
)
from monarch_nb.proto import files_pb2


class FakeNode:
    """A node whose ranks' python installs into `place`, which it calls by a path of its own."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place = name, place

    async def unary(self, method: str, request: Any, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        if method == "DescribeEnvironment":
            return files_pb2.DescribeEnvironmentReply(json=f'{{"installs_into": "{self.place}"}}')
        why_not = node_files.handle(request)
        return files_pb2.SeeTokenReply(seen=not why_not, why_not=why_not)


async def environments(here: Path, *places: Path) -> list[NodeEnvironment]:
    nodes: Any = {rank: FakeNode(f"node{rank}", place) for rank, place in enumerate(places)}
    return await distinct_environments(nodes, "", str(here))


async def test_nodes_are_together_that_see_what_one_writes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (tmp_path / "mounted").symlink_to(one)  # the same environment under another path
    assert await environments(two, one, two, tmp_path / "mounted", two) == [
        NodeEnvironment((0, 2), ("node0", "node2"), here=False),
        NodeEnvironment((1, 3), ("node1", "node3"), here=True),
    ]
    assert [*one.iterdir(), *two.iterdir()] == [], "no token is left"


async def test_an_environment_that_can_not_be_written_is_nobody_elses(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert await environments(tmp_path, gone, tmp_path, gone) == [
        NodeEnvironment((0,), ("node0",), here=None),
        NodeEnvironment((1,), ("node1",), here=True),
        NodeEnvironment((2,), ("node2",), here=None),
    ]


@pytest.mark.parametrize(("here", "told"), [(True, False), (None, False), (False, True)])
def test_the_kernels_own_environment_is_told_about_when_it_is_another_one(here: bool | None, told: bool) -> None:
    environments = (NodeEnvironment((0, 1), ("node0", "node1"), here), NodeEnvironment((2,), ("node2",), False))
    lines = PipReport(environments, changes=True).lines()
    assert lines[0] == "pip ran once for node[0-1], once for node2"
    assert any("this kernel's own environment is another one" in line for line in lines) == told
    assert len(PipReport(environments, changes=False).lines()) == 1


def test_one_environment_of_all_nodes_is_said_to_be_one() -> None:
    def told(*names: str) -> str:
        return str(PipReport((NodeEnvironment(tuple(range(len(names))), names, True),), changes=False))

    assert told("node0", "node1") == "pip ran once: all nodes share one environment"
    assert told("node0") == "pip ran once for node0"


def test_arguments_reach_pip_as_they_are() -> None:
    assert pip_code(["install", "a>=1", "it's", "\\d"]).endswith("pip.run('install', 'a>=1', \"it's\", '\\\\d')")


def test_options_before_the_command_do_not_hide_that_pip_changes_something() -> None:
    for words in ("install x", "-q install x", "--proxy p uninstall x"):
        assert may_change(words.split())
        assert not may_change([word for word in words.split() if "install" not in word])
