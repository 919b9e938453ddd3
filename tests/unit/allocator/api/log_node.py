"""A node with logs, as plain files that a test writes."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch_nb.allocator.api.read_logs import LogReader
from monarch_nb.allocator.logs.output import DirectoryWatch
from monarch_nb.allocator.logs.stored import KeptLogs
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.allocator.state.runs import Mesh, Run
from monarch_nb.config import NodePaths
from monarch_nb.errors import MeshNotFound
from monarch_nb.proto import allocator_pb2 as pb


@dataclass
class State:
    meshes: dict[str, Mesh] = field(default_factory=dict)

    def mesh(self, mesh_id: str) -> Mesh:
        if mesh_id not in self.meshes:
            raise MeshNotFound("released")
        return self.meshes[mesh_id]


class FakeNode:
    """As much of a Node as logs need."""

    def __init__(self, directory: Path, ranks: int = 2) -> None:
        self.paths = NodePaths(directory)
        self.mesh = Mesh(pb.SpawnRequest(mesh_id="m"), ranks=dict.fromkeys(range(ranks)))  # type: ignore[misc]
        self.state = State({"m": self.mesh})
        self.sessions: set[Session] = set()
        self.watch = DirectoryWatch(asyncio.get_running_loop())
        self.kept_logs = KeptLogs(self.paths, shutil.rmtree)

    def reader(self) -> LogReader:
        node: Any = self
        return LogReader(node)

    def close(self) -> None:
        self.watch.close()

    def add_run(self, number: int, ranks: list[int], output: int = 0) -> None:
        spec = {"run_id": f"run{number}", "number": number, "output": output}
        self.add(pb.Submit(mesh_id="m", run=spec, ranks=ranks))

    def add(self, submit: pb.Submit) -> None:
        self.mesh.add_run(Run(submit, 1.0))

    def write(self, output: int, rank: int, text: bytes, kind: str = "out") -> None:
        directory = self.paths.runs("m") / str(output)
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{rank}.{kind}").open("ab") as file:
            file.write(text)
