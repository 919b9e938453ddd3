"""A node with logs, as plain files that a test writes."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from monarch_nb.allocator.logs.archive import Archives
from monarch_nb.allocator.logs.archiving import put_away
from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import stored_outputs
from monarch_nb.allocator.logs.watch import DirectoryWatch
from monarch_nb.allocator.serving.read_logs import LogReader
from monarch_nb.allocator.sessions.sessions import Session
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
        self.archives = Archives()

    def reader(self) -> LogReader:
        return LogReader(self.paths, self.state, self.watch, self.sessions, self.archives)  # type: ignore[arg-type]

    def archived(self, directory: Path) -> FakeNode:
        """Return a copy of this node in a directory, all of whose outputs are archived."""
        shutil.copytree(self.paths.directory, directory)
        twin = FakeNode(directory)
        twin.mesh, twin.state = self.mesh, self.state
        runs = twin.paths.runs("m")
        known = {(run.output, rank): run.number for run in self.mesh.runs.values() for rank in run.ranks}
        for output in stored_outputs(runs):
            for rank in self.mesh.ranks:
                files = RankFiles(runs, output, rank, twin.archives.of(runs))
                assert put_away(files, twin.archives.of(runs), known)
            assert not list((runs / str(output)).iterdir())
        return twin

    def close(self) -> None:
        self.watch.close()
        self.archives.close()

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
