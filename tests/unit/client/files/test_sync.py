"""The files of a reservation, from a real directory to nodes that are plain objects."""

import itertools
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.files.local_tree import FileChanged, LocalTree
from monarch_nb.client.files.sync import SyncedFiles
from monarch_nb.errors import FilesError, UsageError
from monarch_nb.proto import files_pb2 as pb
from unit.client.files.fake_nodes import DISK_FULL, FakeNode, connections, fake_nodes

_numbers = itertools.count()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "model.py").write_text("one")
    (root / "data.txt").write_text("data")
    return root


@pytest.fixture
def nodes() -> list[FakeNode]:
    return fake_nodes(3)


@pytest.fixture
def files(project: Path, nodes: list[FakeNode]) -> Iterator[SyncedFiles]:
    opened = made(project, nodes)
    yield opened
    opened.close()


def made(project: Path | str, nodes: list[FakeNode]) -> SyncedFiles:
    return SyncedFiles(f"r{next(_numbers)}", dict(enumerate(connections(nodes))), root=str(project), reload=True)


class TestWhatGoes:
    def test_nothing_is_asked_when_nothing_changed(self, files: SyncedFiles, nodes: list[FakeNode]) -> None:
        files.sync()
        before = len(nodes[0].asked)
        report = files.sync()
        assert not report.anything
        assert len(nodes[0].asked) == before

    def test_the_version_of_a_run_changes_with_the_files_only(self, files: SyncedFiles, project: Path) -> None:
        files.sync()
        first = files.tree().version
        files.sync()
        assert files.tree().version == first
        (project / "model.py").write_text("two")
        files.sync()
        assert files.tree().version != first

    def test_a_look_at_what_would_go_takes_nothing_from_the_sync(
        self, files: SyncedFiles, nodes: list[FakeNode], project: Path
    ) -> None:
        pending = files.pending()
        assert (sorted(pending.files), pending.unknown) == ([("data.txt", 4), ("model.py", 3)], True)
        files.sync()
        (project / "model.py").write_text("two!")
        (project / "data.txt").unlink()
        for _ in range(2):
            pending = files.pending()
            assert (pending.files, pending.removed, pending.unknown) == ([("model.py", 4)], ["data.txt"], False)
        assert files.sync().files == 1
        assert nodes[2].content() == {"model.py": b"two!"}
        assert not files.pending().files

    def test_a_node_that_another_client_put_in_the_place_of_one_gets_all_files(
        self, project: Path, nodes: list[FakeNode]
    ) -> None:
        first, second, new = connections(nodes)

        def attached(*there: Connection) -> SyncedFiles:
            told = {"root": str(project), "reload": True, "said": pb.ReservationFiles()}
            return SyncedFiles.get("replaced", dict(enumerate(there)), {}, **told)  # type: ignore[arg-type]

        files = attached(first, second)
        files.sync()
        assert attached(first, new) is files
        files.sync()
        assert nodes[2].content() == nodes[0].content()
        files.close()


class TestNodesThatFail:
    def test_one_that_lagged_gets_it_though_nothing_changed_since(
        self, files: SyncedFiles, nodes: list[FakeNode], project: Path
    ) -> None:
        nodes[1].error = DISK_FULL
        files.sync(lambda: ["node0"])
        nodes[1].error = None
        before = len(nodes[0].asked)
        files.sync()
        assert nodes[1].content() == nodes[0].content()
        assert len(nodes[0].asked) == before

    def test_several_are_named(self, files: SyncedFiles, nodes: list[FakeNode]) -> None:
        nodes[1].error, nodes[2].unreachable = DISK_FULL, True
        with pytest.raises(FilesError, match=r"(?s)node1: no space left.*node2 does not answer"):
            files.sync()
        assert nodes[0].content()["model.py"] == b"one"

    def test_a_change_that_nobody_took_stays(self, files: SyncedFiles, nodes: list[FakeNode], project: Path) -> None:
        files.sync()
        for node in nodes:
            node.error = DISK_FULL
        (project / "model.py").write_text("two")
        with pytest.raises(FilesError):
            files.sync()
        for node in nodes:
            node.error = None
        (project / "data.txt").write_text("more")
        assert files.sync().files == 2
        assert nodes[0].content() == {"model.py": b"two", "data.txt": b"more"}


def test_files_that_change_meanwhile_are_looked_at_again(
    files: SyncedFiles, nodes: list[FakeNode], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, content = ["two", "three"], LocalTree.content

    def changing(tree: LocalTree, entries: Iterable[pb.TreeEntry]) -> Any:
        if texts:
            (project / "model.py").write_text(texts.pop(0))
            raise FileChanged(b"model.py")
        return content(tree, entries)

    monkeypatch.setattr(LocalTree, "content", changing)
    assert files.sync().files == 2
    assert all(node.content()["model.py"] == b"three" for node in nodes)


class TestMore:
    def test_what_can_not_be_added(
        self, files: SyncedFiles, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(UsageError, match="does not exist"):
            files.add(tmp_path / "nowhere")
        with pytest.raises(UsageError, match=f"is no directory: add the one that it lies in, {project}"):
            files.add(project / "model.py")
        with pytest.raises(UsageError, match="/ holds all files of this computer"):
            files.add("/", "all")
        with pytest.raises(UsageError, match="holds the project itself"):
            files.add(project / "..")
        with pytest.raises(UsageError, match="is the project"):
            files.add(project)
        (project / "data").mkdir()
        with pytest.raises(UsageError, match=r"lies in the project, .* `!data/` in .meshignore"):
            files.add(project / "data")
        monkeypatch.setenv("HOME", str(tmp_path / "me"))
        with pytest.raises(UsageError, match="holds your home directory"):
            files.add(tmp_path)

    def test_what_another_kernel_adds_and_removes_counts_here_too(
        self, files: SyncedFiles, nodes: list[FakeNode], project: Path, library: Path
    ) -> None:
        files.sync()
        other = made(project, nodes)
        other.add(library)
        other.sync()
        files.record.hear(nodes[0].lease.files)
        (library / "code.py").write_text("edited")
        files.sync()
        assert nodes[2].content("library") == {"code.py": b"edited"}
        assert str(library) in files.tree().import_paths
        assert files.record.take_news() == [f"another kernel added {library}: ranks have it too, as library"]
        assert not other.record.take_news(), "it knows"

        files.remove(library)
        other.record.hear(nodes[0].lease.files)
        before = len(nodes[0].asked)
        (library / "code.py").write_text("edited again")
        assert not other.sync().anything
        assert len(nodes[0].asked) == before, "it sends no more of it"
        assert str(library) not in other.tree().import_paths
        (news,) = other.record.take_news()
        assert news.startswith(f"another kernel removed {library}: ranks no longer have it; %mesh sync --add {library}")
        assert other.add(library) == "library"
        other.sync()
        assert nodes[1].content("library") == {"code.py": b"edited again"}
        other.close()

    def test_what_is_told_late_or_twice_changes_nothing(self, files: SyncedFiles, nodes: list[FakeNode]) -> None:
        files.record.set_reload(False)
        old = nodes[0].lease.files
        files.record.set_reload(True)
        files.record.hear(old)
        assert files.record.reload
        other = made(files.root, nodes)
        for _ in range(2):
            other.record.hear(old)
        assert not other.tree().reload
        assert other.record.take_news() == ["another kernel said --reload off"]

    def test_files_of_another_computer_are_left_alone(
        self, files: SyncedFiles, project: Path, nodes: list[FakeNode]
    ) -> None:
        files.sync()
        assert nodes[0].sources[""] == f"{socket.gethostname()}:{project}"
        for node in nodes:
            node.versions[""], node.sources[""] = "v9", "elsewhere:/home/other/project"
            node.asked.clear()
        others = made(project, nodes)
        assert not others.sync().anything
        assert others.instead_of(str(project)) == "elsewhere:/home/other/project"
        assert not nodes[0].asked


class TestWhereRanksImportFrom:
    def test_what_was_added_can_be_imported(
        self, files: SyncedFiles, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        library = tmp_path / "library"
        (library / "src").mkdir(parents=True)
        monkeypatch.setattr(sys, "path", ["/usr/lib", str(library / "src")])
        before = files.tree()
        assert not before.import_paths
        files.add(library)
        tree = files.tree()
        assert list(tree.import_paths) == [str(library / "src"), str(library), str(project)]
        assert {(copy.directory, copy.mount) for copy in tree.copies} == {(str(project), ""), (str(library), "library")}
        assert tree.version != before.version

    def test_where_every_node_sees_it_too(
        self, nodes: list[FakeNode], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", ["/usr/lib"])
        for name in ("plain", "package", "sources/src"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "package/__init__.py").touch()
        files = SyncedFiles("seen", {}, dict(enumerate(connections(nodes))), root=str(project), reload=True)
        for name in ("plain", "package", "sources"):
            assert files.add(tmp_path / name) == name
        tree = files.tree()
        paths = ["plain", "sources/src", "sources", "project"]
        assert list(tree.import_paths) == [str(tmp_path / name) for name in paths]
        assert set(tree.last_import_paths) == {str(tmp_path)}, "for `import package`, behind all else"
        assert not nodes[0].asked
        files.remove(tmp_path / "plain")
        assert str(tmp_path / "plain") not in files.tree().import_paths
        for path, message in ((tmp_path / "none", "does not exist"), (tmp_path, "holds the project itself")):
            with pytest.raises(UsageError, match=message):
                files.add(path)
        with pytest.raises(UsageError, match="under its own name"):
            files.add(tmp_path / "plain", "other")
        nodes[1].blind = True
        with pytest.raises(FilesError, match=r"node1 does not see .*/plain: put it where the project is"):
            files.add(tmp_path / "plain")
        assert "plain" not in files.added

    def test_without_files_nothing_is_added(self, nodes: list[FakeNode], tmp_path: Path) -> None:
        (tmp_path / "library").mkdir()
        with pytest.raises(UsageError, match="reserved without files"):
            SyncedFiles("none", {}, dict(enumerate(connections(nodes))), root="", reload=True).add(tmp_path / "library")
