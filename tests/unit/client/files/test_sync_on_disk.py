"""The files of a reservation on nodes with real workspaces."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.files import sync
from monarch_nb.client.files.local_tree import LocalTree, Refreshed
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable, UsageError
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.status import error_to_json
from unit.client.files.fake_nodes import DISK_RESERVATION, DiskNode


def files_of(project: Path, *nodes: Any) -> SyncedFiles:
    return SyncedFiles(DISK_RESERVATION, dict(enumerate(nodes)), root=str(project), reload=True)


def _interrupted_at_the_end(work: Any) -> Any:
    from monarch_nb.client.connections.bridge import call

    call(work)
    raise KeyboardInterrupt


class TestOnDisk:
    """Nodes with real workspaces: what ranks wrote, an interrupt, a bad name or a lost node."""

    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        (project := tmp_path / "project").mkdir()
        (project / "model.py").write_text("x = 1\n")
        return project

    @pytest.fixture
    def node(self, tmp_path: Path) -> DiskNode:
        (home := tmp_path / "nodes").mkdir()
        return DiskNode(home, "node0")

    @pytest.fixture
    def files(self, project: Path, node: DiskNode) -> Iterator[SyncedFiles]:
        made = files_of(project, node)
        yield made
        made.close()

    def test_a_big_file_with_holes_arrives_as_it_is(self, project: Path, node: DiskNode, files: SyncedFiles) -> None:
        with open(project / "big", "wb") as file:
            file.write(random.Random(2).randbytes(3_000_000))
            file.truncate(32 << 20)
            file.seek(20_000_003)
            file.write(b"middle")
        files.sync()
        assert (node.tree / "big").read_bytes() == (project / "big").read_bytes()
        assert (node.tree / "big").stat().st_blocks * 512 < 8 << 20

    def test_an_interrupt_while_changes_are_collected_loses_none(
        self, project: Path, node: DiskNode, files: SyncedFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.sync()
        (project / "model.py").write_text("x = 2\n")
        refresh = LocalTree.refresh

        def interrupted(tree: LocalTree, progress: Any) -> Refreshed:
            refresh(tree, progress)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(LocalTree, "refresh", interrupted)
            with pytest.raises(KeyboardInterrupt):
                files.sync()
        files.sync()
        assert (node.tree / "model.py").read_text() == "x = 2\n"

    def test_ranks_look_at_their_files_after_a_sync_whose_end_was_not_seen(
        self, project: Path, node: DiskNode, files: SyncedFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files.sync()
        before = files.tree().version
        monkeypatch.setattr(sync, "call", _interrupted_at_the_end)
        for text in ("x = 2\n", "x = 1\n"):
            (project / "model.py").write_text(text)
            with pytest.raises(KeyboardInterrupt):
                files.sync()
        assert (node.tree / "model.py").read_text() == "x = 1\n"
        assert files.tree().version != before

    @pytest.mark.parametrize("name", [".config", "a/b", "a\0b", "a" * 300])
    def test_a_name_that_no_node_would_take_is_refused(self, tmp_path: Path, files: SyncedFiles, name: str) -> None:
        (tmp_path / "data").mkdir()
        with pytest.raises(UsageError):
            files.add(tmp_path / "data", name)
        assert files.sync().nodes == 1

    def test_a_fetched_file_of_the_ranks_is_not_lost_when_it_is_deleted_here(
        self, project: Path, node: DiskNode, files: SyncedFiles
    ) -> None:
        files.sync()
        for place in (node.tree, project):  # the second is what a fetch does
            (place / "last.pt").write_text("weights")
        assert not files.sync().kept
        assert not files.differences().changed
        (project / "last.pt").unlink()
        pending = files.pending()
        assert (pending.removed, pending.there.changed) == (["last.pt"], {"last.pt": ("node0",)})
        report = files.sync()
        assert (report.kept, report.left) == ({}, {"last.pt": ("node0",)})
        assert (node.tree / "last.pt").read_text() == "weights"
        assert not files.sync().anything, "said once"

    def test_what_ranks_did_is_seen_before_an_edit(self, project: Path, node: DiskNode, files: SyncedFiles) -> None:
        (project / "data").write_text("1")
        files.sync()
        (node.tree / "model.py").write_text("of a rank")
        (node.tree / "own.txt").write_text("of a rank")
        (node.tree / "data").unlink()
        found = files.differences()
        assert (found.changed, found.missing) == ({"model.py": ("node0",)}, {"data": ("node0",)})
        (project / "own.txt").write_text("mine")
        there = files.pending().there
        assert there.changed == {"model.py": ("node0",), "own.txt": ("node0",)}
        report = files.sync(overwrite=True)
        assert report.overwritten == there.changed
        assert report.restored == {"data": ("node0",)}
        assert (node.tree / "data").read_text() == "1"
        found = files.differences()
        assert not found.changed | found.missing

    def test_a_node_that_does_not_answer_is_named(self, node: DiskNode, files: SyncedFiles) -> None:
        files.sync()
        node.is_up = False
        assert list(files.differences().unanswered) == ["node0"]

    def test_a_directory_that_was_added_goes_again_and_what_ranks_wrote_in_it_stays(
        self, tmp_path: Path, library: Path, project: Path, node: DiskNode, files: SyncedFiles
    ) -> None:
        (library / "data").write_text("1")
        files.add(library)
        files.sync()
        report = files.remove("library")
        assert (report.removed, report.left) == (2, {})
        assert not (node.tree / "library").exists()
        assert not files.tree().last_import_paths
        assert len(files.status()["node0"].mounts) == 1  # type: ignore[union-attr]
        with pytest.raises(UsageError, match="library was not added; added: nothing"):
            files.remove(library)
        files.add(library)
        files.sync()
        (node.tree / "library/data").write_text("of a rank")
        assert files.remove(library).left == {"library/data": ("node0",)}
        (other := tmp_path / "other").mkdir()
        files.add(other, "library")
        files.sync()
        assert (node.tree / "library/data").read_text() == "of a rank"
        (project / "model.py").write_text("x = 2\n")
        assert files.sync().files == 1

    def test_the_removal_of_a_directory_that_a_node_missed_is_made_good(
        self, library: Path, node: DiskNode, files: SyncedFiles
    ) -> None:
        files.add(library)
        files.sync()
        node.is_up = False
        with pytest.raises(NodeUnreachable):
            files.remove(library)
        node.is_up = True
        files.sync()
        assert (node.tree / "library/code.py").exists(), "it was not removed"
        files.remove(library)
        assert not (node.tree / "library").exists()

    def test_an_added_directory_that_is_gone_is_said_once(
        self, tmp_path: Path, project: Path, node: DiskNode, files: SyncedFiles
    ) -> None:
        (data := tmp_path / "data").mkdir()
        (data / "numbers").write_text("1")
        files.add(data)
        files.sync()
        (data / "numbers").unlink()
        data.rmdir()
        with pytest.raises(FilesError, match="is gone: it is synced no longer"):
            files.sync()
        (project / "model.py").write_text("x = 2\n")
        files.sync()
        assert (node.tree / "model.py").read_text() == "x = 2\n"
        assert (node.tree / "data/numbers").read_text() == "1"

    def test_a_lost_node_does_not_make_the_others_compare_every_file(
        self, tmp_path: Path, project: Path, node: DiskNode
    ) -> None:
        lost = DiskNode(tmp_path / "nodes", "node1")

        async def pass_on(_: str, request: pb.SyncTreeRequest, reply: pb.SyncTreeReply) -> None:
            try:
                reply.nodes.extend((await lost.unary("SyncTree", request)).nodes)
            except MonarchNbError as error:
                reply.nodes.add(node_id="node1", error_json=error_to_json(error))

        node.pass_on = pass_on  # type: ignore[method-assign]
        files = files_of(project, node, lost)
        files.sync()
        (lost.tree / "model.py").unlink()
        report = files.sync(overwrite=True)
        assert (report.files, report.nodes, report.restored) == (1, 1, {"model.py": ("node1",)})
        lost.is_up = False
        for number in (2, 3):
            (project / "model.py").write_text(f"x = {number}\n")
            files.sync(lambda: ["node0"])
        assert [request.change.whole for request in node.asked[-2:]] == [False, False]
        lost.is_up = True
        (project / "model.py").write_text("x = 4\n")
        files.sync()
        assert [(each.tree / "model.py").read_text() for each in (node, lost)] == ["x = 4\n"] * 2
        files.close()
