"""Bringing files from a node to where something else may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.files import NodeFiles
from monarch_nb.client.fetch import FetchReport, fetch
from monarch_nb.config import NodePaths
from monarch_nb.errors import FilesError
from monarch_nb.proto import files_pb2 as pb


class FakeConnection:
    """A node's files, without a wire in between."""

    def __init__(self, home: Path, directory: Path) -> None:
        home.mkdir()
        self.files, self.directory = NodeFiles("node0", NodePaths(home)), directory

    async def unary(self, _: str, request: pb.ListFilesRequest, timeout_s: float) -> pb.ListFilesReply:
        return self.files.list(str(self.directory), request)

    def stream(self, _: str, request: pb.ReadFileRequest) -> AsyncIterator[pb.FilePiece]:
        return self.files.read(request.path)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (there := tmp_path / "there").mkdir()
    return there


@pytest.fixture
def node(tmp_path: Path, there: Path) -> Any:
    return FakeConnection(tmp_path / "home", there)


async def bring(node: Any, path: str, target: Path, *, overwrite: bool = True) -> FetchReport:
    return await fetch(node, "r", 0, path, target, overwrite=overwrite, progress=lambda _: None)


async def test_a_directory_with_links_and_long_names(tmp_path: Path, there: Path, node: Any) -> None:
    name = "名" * 83  # 249 bytes
    (there / "out" / "empty").mkdir(parents=True)
    (there / "out" / name).write_text("1")
    (there / "out" / "latest").symlink_to(name)
    report = await bring(node, "out", tmp_path / "here")
    assert (report.files, report.size_bytes) == (1, 1)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted(["empty", "latest", name])
    assert (tmp_path / "here" / "latest").read_text() == "1"


@pytest.mark.parametrize(("there_is", "here_is"), [("directory", "file"), ("link", "directory"), ("file", "directory")])
async def test_what_can_not_be_replaced_is_named(
    tmp_path: Path, there: Path, node: Any, there_is: str, here_is: str
) -> None:
    make = {
        "directory": lambda path: path.mkdir(parents=True),
        "file": lambda path: path.write_text("1"),
        "link": lambda path: path.symlink_to("elsewhere"),
    }
    (there / "out").mkdir()
    (tmp_path / "here").mkdir()
    make[there_is](there / "out" / "x")
    make[here_is](tmp_path / "here" / "x")
    with pytest.raises(FilesError, match=r"here/x can not be written: "):
        await bring(node, "out", tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["x"]


async def test_what_vanishes_while_it_is_listed_is_left_out(
    tmp_path: Path, there: Path, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monarch_nb.allocator import files

    for name in ("kept", "temporary"):
        (there / name).write_text("1")
    entry = files._entry

    def vanishes(path: bytes, at: bytes, facts: Any) -> pb.TreeEntry:
        if path == b"temporary":
            raise FileNotFoundError
        return entry(path, at, facts)

    monkeypatch.setattr(files, "_entry", vanishes)
    report = await bring(node, ".", tmp_path / "here")
    assert report.files == 1
