"""The newest outputs of a mesh stay, and those that somebody writes to."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from monarch_nb.allocator.logs import stored
from monarch_nb.allocator.logs import stored as kept_module
from monarch_nb.allocator.logs.output import MeshLogs, RankFiles
from monarch_nb.allocator.logs.stored import KEPT_S, KeptLogs, drop_oldest, stored_outputs, take_over
from monarch_nb.allocator.state.runs import Mesh, RankSlot, Run
from monarch_nb.config import NodePaths, run_file
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2


def test_the_newest_stay_and_those_that_runs_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_OUTPUTS", 3)
    mesh = Mesh(pb.SpawnRequest(mesh_id="m"), {0: RankSlot(untouched=4), 1: RankSlot()})
    mesh.add_run(Run(pb.Submit(mesh_id="m", run={"run_id": "long", "number": 2}, ranks=[1]), 1.0))
    for output in range(1, 9):
        (tmp_path / str(output)).mkdir()
        RankFiles(tmp_path, output, 0).path("out").write_bytes(b"a\n")

    drop_oldest(mesh, tmp_path, shutil.rmtree)

    assert stored_outputs(tmp_path) == [2, 4, 6, 7, 8]
    gone = RankFiles(tmp_path, 1, 0)
    assert (gone.read("out", 0, 2), gone.end().stdout_bytes) == (b"", 0), "who was reading it ends there"


RAISED = run_pb2.Failure(name="ValueError", message="bad batch", traceback="Traceback …")


class Node:
    """As much of a node as that needs; `removed` are the directories that it takes away."""

    def __init__(self, directory: Path) -> None:
        self.paths = NodePaths(directory)
        self.removed: list[Path] = []
        self.kept = KeptLogs(self.paths, self.removed.append)

    def end(self, mesh_id: str, reservation: str = "dev", *, printed: bytes = b"loss 1\n", owner: str = "me") -> Path:
        """A mesh of two ranks has printed and ends; return its directory."""
        mesh = Mesh(pb.SpawnRequest(mesh_id=mesh_id, name="main"), {0: RankSlot(), 1: RankSlot()})
        run = Run(pb.Submit(mesh_id=mesh_id, run={"run_id": "r", "number": 3}, ranks=[0, 1], title="train.py"), 1.0)
        mesh.add_run(run)
        mesh.finish(run, run_pb2.RankResult(run_id="r", rank=0, outcome=run_pb2.OUTCOME_OK))
        mesh.finish(run, run_pb2.RankResult(run_id="r", rank=1, outcome=run_pb2.OUTCOME_ERROR, failure=RAISED))
        runs = self.paths.runs(mesh_id)
        runs.mkdir(parents=True)
        path = run_file(runs, 3, 0, "out")  # there is one as soon as a rank has begun
        path.parent.mkdir()
        path.write_bytes(printed)
        self.kept.note(mesh, pb.ReserveRequest(reservation_id=f"id-{mesh_id}", name=reservation, owner=owner))
        self.kept.keep(self.paths.mesh(mesh_id))
        return self.paths.mesh(mesh_id)


def age(directory: Path, by_s: float) -> None:
    then_s = time.time() - by_s
    os.utime(directory / "mesh", (then_s, then_s))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_output_is_found_by_name_and_read_by_the_mesh_s_id(node: Node) -> None:
    node.end("aaaaaaaaaa")

    [past] = node.kept.of("dev")
    mesh, runs = node.kept.mesh("aaaaaaaaaa") or (None, None)

    assert (past.owner, past.mesh.mesh_id, [rank.rank for rank in past.mesh.ranks]) == ("me", "aaaaaaaaaa", [0, 1])
    assert [(run.title, run.failures[0].failure.traceback) for run in past.mesh.runs] == [("train.py", "Traceback …")]
    assert mesh is not None
    assert runs is not None
    [(number, files)] = MeshLogs(mesh, runs).written([0])
    assert (number, files.read("out", 0, 9)) == (3, b"loss 1\n")
    assert [node.kept.owner_of(mesh_id) for mesh_id in ("aaaaaaaaaa", "bbbbbbbbbb")] == ["me", ""]


def test_all_runs_are_read_where_there_is_an_output_0(node: Node) -> None:
    """Of what a mesh runs before its first cell. As a run's number 0 means all of them."""
    node.end("aaaaaaaaaa")
    mesh, runs = node.kept.mesh("aaaaaaaaaa") or (None, None)
    assert mesh is not None
    assert runs is not None
    (runs / "0").mkdir()
    assert {files.read("out", 0, 9) for _, files in MeshLogs(mesh, runs).written([0])} == {b"", b"loss 1\n"}


def test_what_a_run_printed_that_was_going_on_is_its_own(node: Node) -> None:
    """It writes to the files that the silent run before it has left untouched."""
    mesh = Mesh(pb.SpawnRequest(mesh_id="aaaaaaaaaa", name="main"), {0: RankSlot()})
    run = Run(pb.Submit(mesh_id="aaaaaaaaaa", run={"run_id": "r", "number": 4, "output": 3}, ranks=[0]), 1.0)
    mesh.add_run(run)
    run.started.add(0)
    path = run_file(node.paths.runs("aaaaaaaaaa"), 3, 0, "out")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"tick\n")
    node.kept.note(mesh, pb.ReserveRequest(reservation_id="id", name="dev"))
    assert [past.mesh.mesh_id for past in node.kept.of("dev")] == ["aaaaaaaaaa"], "also while its ranks are ended"
    assert node.kept.of("de") == []
    node.kept.keep(node.paths.mesh("aaaaaaaaaa"))

    past, runs = node.kept.mesh("aaaaaaaaaa") or (None, None)

    assert past is not None
    assert runs is not None
    assert [number for number, _ in MeshLogs(past, runs).written([0])] == [4]


def test_the_directory_is_named_after_the_reservation_and_holds_text(node: Node) -> None:
    node.end("aaaaaaaaaa")

    name, directory = node.kept.of_reservation["id-aaaaaaaaaa"]

    assert (name, directory) == ("dev", node.paths.logs / "dev-aaaaaaaa")
    assert (directory / "runs" / "3" / "0.out").read_text() == "loss 1\n"


def test_a_mesh_that_printed_nothing_leaves_nothing(node: Node) -> None:
    node.end("aaaaaaaaaa", printed=b"")

    assert node.kept.of("dev") == []
    assert not node.paths.logs.exists()


def test_names_are_told_apart_and_what_ended_last_comes_first(node: Node) -> None:
    for letter, name in zip("abcd", ("dev", "dev", "dev-2", "../x"), strict=True):
        node.end(letter * 10, name)

    assert [past.mesh.mesh_id for past in node.kept.of("dev")] == ["bbbbbbbbbb", "aaaaaaaaaa"]
    assert [past.mesh.mesh_id for past in node.kept.of("../x")] == ["dddddddddd"]
    assert {path.parent.parent for path in node.kept.outputs()} == {node.paths.logs}


def test_what_ended_seven_days_ago_goes_when_another_mesh_ends(node: Node) -> None:
    node.end("aaaaaaaaaa")
    assert node.removed == []
    age(node.paths.logs / "dev-aaaaaaaa", KEPT_S + 1)
    node.end("bbbbbbbbbb", "other")

    assert node.removed == [node.paths.logs / "dev-aaaaaaaa"]


def test_no_more_than_so_many_are_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MOST", 1)
    node.end("aaaaaaaaaa")
    age(node.paths.logs / "dev-aaaaaaaa", 1.0)
    node.end("bbbbbbbbbb")

    assert node.removed == [node.paths.logs / "dev-aaaaaaaa"]


def test_an_allocator_that_was_killed_while_it_moved_them_goes_on(node: Node) -> None:
    directory = node.end("aaaaaaaaaa")
    kept = node.paths.logs / "dev-aaaaaaaa"
    os.rename(kept / "mesh", directory / "mesh")  # it had moved the outputs, and not yet the note

    node.kept.keep(directory)

    assert [past.mesh.mesh_id for past in node.kept.of("dev")] == ["aaaaaaaaaa"]
    assert (kept / "runs" / "3" / "0.out").exists()


def test_a_node_takes_over_what_another_kept_beside_its_own_part_of_the_same_mesh(tmp_path: Path) -> None:
    node, gone = Node(tmp_path / "node0"), Node(tmp_path / "node1")
    node.end("aaaaaaaaaa", printed=b"from node0")
    gone.end("aaaaaaaaaa", printed=b"from node1")
    age(gone.paths.logs / "dev-aaaaaaaa", 60.0)
    ended_s = (gone.paths.logs / "dev-aaaaaaaa" / "mesh").stat().st_mtime

    take_over(gone.paths.logs, node.paths.logs)

    parts = node.kept.of("dev")
    assert [past.reservation_id for past in parts] == ["id-aaaaaaaaaa"] * 2
    found = [node.kept.mesh(past.mesh.mesh_id) for past in parts]
    texts = {(each[1] / "3" / "0.out").read_text(): each[1].parent for each in found if each}
    assert texts.keys() == {"from node0", "from node1"}
    assert (texts["from node1"] / "mesh").stat().st_mtime == ended_s, "it goes as soon as it would have"
    assert gone.kept.of("dev") == []
    take_over(tmp_path / "node2" / "logs", node.paths.logs)  # which has kept nothing
