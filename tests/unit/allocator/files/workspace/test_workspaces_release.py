"""What a release removes of what was synced, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from monarch_nb.allocator.files.workspace.workspaces import Workspaces
from unit.allocator.files.workspace.conftest import ID, listing
from unit.allocator.files.workspace.syncing import Client, directory, file, node_paths, open_workspaces


def test_nobody_waits_for_the_removal_of_what_is_as_it_was_synced(tmp_path: Path) -> None:
    paths, later = node_paths(tmp_path), list[Callable[[], object]]()
    paths.directory.mkdir()
    workspaces = Workspaces(paths, node="node0", later=later.append)
    tree = workspaces.directory(ID)
    Client(workspaces, ID).sync({b"a.py": file(b"first"), b"d": directory(), b"d/b": file(b"second")})
    Client(workspaces, ID, mount="data", source="other").sync({b"c": file(b"third")})
    (tree / "empty").mkdir()
    (tree / "d/__pycache__").mkdir()
    (tree / "d/__pycache__/b.cpython-311.pyc").write_bytes(b"compiled")
    assert [workspaces.release(name, "train") for name in (ID, "never-there")] == [None, None]
    assert workspaces.reservations() == []
    assert not tree.exists()
    Client(workspaces, "reservation-2").sync({b"x": file(b"first")})
    (work,) = later
    work()
    assert [path.name for path in paths.workspaces.iterdir()] == ["reservation-2"]
    (workspaces.directory("reservation-2") / "d").mkdir()
    (workspaces.directory("reservation-2") / "d/written").write_text("by a rank")
    assert workspaces.release("reservation-2", "train")
    assert [path.name for path in paths.workspaces.iterdir()] == []
    assert later == [work], "what is kept is told, so it is there"


def test_release_keeps_what_ranks_wrote(workspaces: Workspaces, client: Client, tree: Path, tmp_path: Path) -> None:
    client.sync({b"a": file(b"1"), b"d": directory(), b"d/b": file(b"2")})
    (tree / "d/checkpoint").write_text("weights")
    (tree / "a").write_text("changed")
    kept = workspaces.release(ID, "train")
    assert kept
    assert (kept.files, kept.size_bytes) == (2, 14)
    assert kept.directory.parent == node_paths(tmp_path).kept
    assert kept.directory.name.startswith("train-")
    assert listing(kept.directory) == ["a", "d", "d/checkpoint"]
    assert not tree.parent.exists()
    second = Client(workspaces, "reservation-2")
    second.sync({b"a": file(b"1")})
    (workspaces.directory("reservation-2") / "a").write_text("changed")
    again = workspaces.release("reservation-2", "train")
    assert again
    assert again.directory != kept.directory


def test_a_release_that_was_cut_short_is_finished_at_the_next_start(client: Client, tree: Path, tmp_path: Path) -> None:
    client.sync({b"a": file(b"1"), b"b": file(b"2")})
    (tree / "b").write_text("rank")
    tree.parent.rename(tree.parent.with_name(ID + ".released"))
    (tree.parent.with_name(ID + ".released") / "tree/a").unlink()
    again = open_workspaces(tmp_path)
    assert again.reservations() == []
    (kept,) = node_paths(tmp_path).kept.iterdir()
    assert listing(kept) == ["b"]
