"""Files from a node: what is found there, where it goes on this computer, and what it never replaces."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.client.files.fetch import FetchReport, expand, fetch, fetch_matching, is_below
from monarch_nb.config import NodePaths
from monarch_nb.errors import FilesError, MonarchNbError, NodeUnreachable
from monarch_nb.proto import files_pb2 as pb
from monarch_nb.rpc.channel import open_channel


class FakeConnection:
    """A node's files, without a wire in between."""

    def __init__(self, home: Path, directory: Path) -> None:
        home.mkdir()
        self.name = "node0"
        self.files, self.directory = NodeFiles("node0", NodePaths(home), lambda _: "", open_channel), directory

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


async def test_what_can_not_be_replaced_is_named(tmp_path: Path, there: Path, node: Any) -> None:
    make = {
        "directory": lambda path: path.mkdir(parents=True),
        "file": lambda path: path.write_text("1"),
        "link": lambda path: path.symlink_to("elsewhere"),
    }
    for there_is, here_is in (("directory", "file"), ("link", "directory"), ("file", "directory")):
        (there / there_is).mkdir()
        (here := tmp_path / f"for {there_is}").mkdir()
        make[there_is](there / there_is / "x")
        make[here_is](here / "x")
        with pytest.raises(FilesError, match=r"/x can not be written: "):
            await bring(node, there_is, here)
        assert [path.name for path in here.iterdir()] == ["x"]


async def test_only_files_are_read(there: Path, node: Any) -> None:
    os.mkfifo(there / "pipe")
    with pytest.raises(FilesError, match=r"node0: .*pipe is not a file"):
        await anext(node.stream("ReadFile", pb.ReadFileRequest(path=os.fsencode(there / "pipe"))))


async def test_what_vanishes_while_it_is_listed_is_left_out(
    tmp_path: Path, there: Path, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monarch_nb.allocator.files import node_files

    for name in ("kept", "temporary"):
        (there / name).write_text("1")
    entry = node_files._entry

    def vanishes(path: bytes, at: bytes, facts: Any) -> pb.TreeEntry:
        if path == b"temporary":
            raise FileNotFoundError
        return entry(path, at, facts)

    monkeypatch.setattr(node_files, "_entry", vanishes)
    report = await bring(node, ".", tmp_path / "here")
    assert report.files == 1


async def test_a_pattern_finds_names_as_a_shell_does(there: Path, node: Any) -> None:
    for name in ("ckpt/1.pt", "ckpt/2.pt", "ckpt/.hidden.pt", "ckpt/log", "run1/last.pt", "run2/other", "odd[1]"):
        (there / name).parent.mkdir(exist_ok=True)
        (there / name).touch()
    for pattern, found in (
        ("ckpt/*.pt", ["ckpt/1.pt", "ckpt/2.pt"]),
        ("run*/last.pt", ["run1/last.pt"]),
        ("run?", ["run1", "run2"]),
        ("odd[1]", ["odd[1]"]),
        (f"{there}/ckpt/[!2].pt", [f"{there}/ckpt/1.pt"]),
        ("no pattern", ["no pattern"]),
    ):
        assert await expand(node, "r", 0, pattern) == found
    with pytest.raises(FilesError, match=r"node0: nothing matches ckpt/\*\.bin"):
        await expand(node, "r", 0, "ckpt/*.bin")


async def test_all_that_match_a_pattern_come_together(
    tmp_path: Path, there: Path, node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    (there / "out").mkdir()
    for name in ("a.pt", "b.pt", "log"):
        (there / "out" / name).write_text(name)
    for pattern, to, place, names in (
        ("out/*.pt", None, here / "out", {"a.pt", "b.pt"}),
        ("out/[al]*", "elsewhere", here / "elsewhere", {"a.pt", "log"}),
    ):
        report = await fetch_matching(node, "r", 0, pattern, to=to, overwrite=False, progress=lambda _: None)
        assert (report.path, report.files, {path.name for path in place.iterdir()}) == (place, 2, names)


async def test_a_path_in_a_workspace_is_named_as_ranks_know_it(tmp_path: Path, node: Any) -> None:
    node.directory = node.files.workspaces.directory("r") / "notebooks"
    node.directory.mkdir()
    with pytest.raises(FilesError, match=r"^node0: there is no notebooks/out$"):
        await bring(node, "out", tmp_path / "here")
    with pytest.raises(FilesError, match=r"^node0: there is no /nowhere$"):
        await bring(node, "/nowhere", tmp_path / "here")


# Against a node that says what a test wants


class ScriptedNode:
    """What lies on a node, as one path of it; a content of None breaks off."""

    def __init__(self, content: dict[str, bytes | None], *entries: pb.TreeEntry, is_file: bool = False) -> None:
        self._content = content
        files = [
            pb.TreeEntry(path=name.encode(), kind=pb.TreeEntry.KIND_FILE, mode=0o640, size_bytes=len(data or b""))
            for name, data in content.items()
        ]
        self._reply = pb.ListFilesReply(directory=b"/there", entries=[*entries, *files], is_file=is_file)

    async def unary(self, method: str, request: pb.ListFilesRequest, timeout_s: float) -> pb.ListFilesReply:
        assert (method, request.reservation_id, request.rank, request.recursive) == ("ListFiles", "r1", 4, True)
        return self._reply

    async def stream(self, method: str, request: pb.ReadFileRequest) -> AsyncIterator[pb.FilePiece]:
        data = self._content[request.path.decode().removeprefix("/there/")]
        if data is None:
            yield pb.FilePiece(data=b"hal")
            raise NodeUnreachable("node1 does not answer", "node1")
        for at in range(0, len(data), 2):
            yield pb.FilePiece(data=data[at : at + 2])


def bring_scripted(node: Any, path: str, target: Path, **options: Any) -> FetchReport:
    settings: dict[str, Any] = {"overwrite": False, "progress": lambda _: None, **options}
    return asyncio.run(fetch(node, "r1", 4, path, target, **settings))


def one_file(data: bytes | None = b"abc") -> ScriptedNode:
    return ScriptedNode({"last.pt": data}, is_file=True)


def test_a_file_goes_into_a_directory_that_exists_or_is_asked_for(tmp_path: Path) -> None:
    assert bring_scripted(one_file(), "checkpoints/last.pt", tmp_path).path == tmp_path / "last.pt"
    assert bring_scripted(one_file(), "/a/last.pt", tmp_path / "new", into=True).path == tmp_path / "new" / "last.pt"
    assert (tmp_path / "new" / "last.pt").read_bytes() == b"abc"


def test_what_differs_is_replaced_only_when_asked(tmp_path: Path) -> None:
    node = ScriptedNode({"a.pt": b"a", "b.pt": b"b"})
    (tmp_path / "b.pt").write_bytes(b"mine")
    with pytest.raises(FilesError, match=r"b\.pt exists and differs: --overwrite replaces it"):
        bring_scripted(node, ".", tmp_path)
    assert not (tmp_path / "a.pt").exists(), "nothing is brought when something is in the way"
    (tmp_path / "b.pt").write_bytes(b"m")
    with pytest.raises(FilesError, match="exists and differs"):
        bring_scripted(node, ".", tmp_path)  # as long, but written at another time
    bring_scripted(node, ".", tmp_path, overwrite=True)
    assert (tmp_path / "b.pt").read_bytes() == b"b"


def test_a_node_that_is_lost_leaves_what_was_here(tmp_path: Path) -> None:
    target = tmp_path / "last.pt"
    target.write_bytes(b"mine")
    with pytest.raises(NodeUnreachable):
        bring_scripted(one_file(None), "last.pt", target, overwrite=True)
    assert target.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_node_can_not_write_outside_of_the_target(tmp_path: Path) -> None:
    for path in (b"../evil", b"/etc/evil", b"a/../../evil"):
        node = ScriptedNode({}, pb.TreeEntry(path=path, kind=pb.TreeEntry.KIND_SYMLINK, target=b"/etc/passwd"))
        with pytest.raises((MonarchNbError, ValueError)):
            bring_scripted(node, ".", tmp_path / "mine")
        assert not (tmp_path / "evil").exists()


def test_what_is_below_the_directory_of_ranks_keeps_its_place() -> None:
    for path, below in {
        "a/b": True,
        "./a": True,
        "a/../b": True,
        "/a": False,
        "../a": False,
        "a/../../b": False,
    }.items():
        assert is_below(path) is below
        assert not is_below(f"~/{path}")
