"""The processes of scripts on a node, without processes: who is ended when one of them fails or is interrupted."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from monarch_nb.allocator.processes import scripts
from monarch_nb.allocator.processes.forking import program_text
from monarch_nb.allocator.processes.scripts import Scripts
from monarch_nb.allocator.processes.supervisor import RankProcess
from monarch_nb.allocator.state.state import NodeState
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire


class Link:
    """A process that takes in what it is told, and says nothing."""

    is_open = True

    def __init__(self) -> None:
        self.told: list[wire.ControlRequest] = []
        self.is_told = asyncio.Event()

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> None:
        self.told.append(request)
        self.is_told.set()


class Node:
    """Two processes of the script "run"."""

    def __init__(self) -> None:
        self.state, self.killed, self.is_killed = NodeState(2), list[int](), asyncio.Event()
        self.links = [Link(), Link()]
        processes = {("run", rank): self._process(rank) for rank in (0, 1)}
        self.supervisor = SimpleNamespace(ranks=processes, kill=self._kill)

    def _process(self, rank: int) -> RankProcess:
        record = state_pb2.RankRecord(mesh_id="run", rank=rank, script_of="m")
        watch: Any = SimpleNamespace(kill=lambda: None)
        return RankProcess("run", rank, record, self.links[rank], watch, 0)  # type: ignore[arg-type]

    def _kill(self, processes: list[RankProcess]) -> None:
        self.killed += [process.rank for process in processes]
        self.is_killed.set()

    def scripts(self) -> Scripts:
        return Scripts(Mock(state=self.state, supervisor=self.supervisor))


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scripts, "UNATTENDED_S", 0.0)
    return Node()


@pytest.mark.parametrize("outcome", [run_pb2.OUTCOME_ERROR, run_pb2.OUTCOME_DIED])
async def test_where_one_has_failed_the_others_end_although_no_client_sees_to_it(
    node: Any, outcome: run_pb2.Outcome.ValueType
) -> None:
    failed = node.supervisor.ranks.pop(("run", 0))
    node.scripts().on_result(failed, run_pb2.RankResult(run_id="run", rank=0, outcome=outcome))
    async with asyncio.timeout(10):
        await node.links[1].is_told.wait()
        await node.is_killed.wait()
    assert [request.interrupt.run_id for request in node.links[1].told] == ["run"]
    assert node.killed == [1]


async def test_where_one_has_ended_well_the_others_go_on_and_are_killed_by_name_only(node: Any) -> None:
    ended, scripts_ = node.supervisor.ranks.pop(("run", 0)), node.scripts()
    scripts_.on_result(ended, run_pb2.RankResult(run_id="run", rank=0, outcome=run_pb2.OUTCOME_OK))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (node.links[1].told, node.killed) == ([], [])
    assert scripts_.kill("another", [0, 1]) == []
    assert [process.rank for process in scripts_.kill("run", [1])] == [1]


def test_what_python_executes_of_a_script_or_of_a_module_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "package/sub").mkdir(parents=True)
    for name in ("train", "package/__init__", "package/train", "package/sub/__init__", "package/sub/__main__"):
        (tmp_path / f"{name}.py").write_text(f"{name}.py")

    def texts(path: str, *, module: bool = True) -> list[str]:
        return program_text(run_pb2.Script(path=path, module=module), tmp_path).decode().split()

    assert texts("train.py", module=False) == texts("train") == ["train.py"]
    assert texts("package.train") == ["package/__init__.py", "package/train.py"]
    assert texts("package.sub") == ["package/__init__.py", "package/sub/__init__.py", "package/sub/__main__.py"]
    assert texts("json.tool") == texts("no.py", module=False) == []
    assert texts("package/sub", module=False) == ["package/sub/__main__.py"]
    with zipfile.ZipFile(tmp_path / "program", "w") as packed:
        packed.writestr("__main__.py", "packed")
    assert texts("program", module=False) == ["packed"]
