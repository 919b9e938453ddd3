"""Trees on a node's disk: what is applied, what ranks keep, what is refused. Real directories, no processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch_nb.allocator.files.workspaces import Workspaces
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.files.content import Piece, pack
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry
from unit.allocator.files.conftest import ID, listing
from unit.allocator.files.syncing import Client, directory, file, link, node_paths, open_workspaces


def test_a_tree_arrives_as_it_is(client: Client, tree: Path) -> None:
    applied = client.sync(
        {
            b"package": directory(),
            b"package/a.py": file(b"a = 1\n", mode=0o640, modified_ns=1_500_000_000_123_456_789),
            b"package/empty": directory(mode=0o755),
            b"package/same.py": file(b"a = 1\n"),
            b"run.sh": file(b"#!/bin/sh\n", mode=0o755),
            b"nothing": file(b""),
            b"latest": link(b"package/a.py"),
            b"broken": link(b"package/absent"),
            b"new\nline": file(b"1"),
            b"caf\xe9": file(b"2"),
        }
    )
    assert (applied.written, applied.removed, list(applied.kept)) == (8, 0, [])
    facts = (tree / "package/a.py").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime_ns) == (0o640, 1_500_000_000_123_456_789)
    assert stat.S_IMODE((tree / "run.sh").stat().st_mode) == 0o755
    assert (tree / "latest").read_text() == "a = 1\n"
    assert os.readlink(tree / "broken") == "package/absent"
    assert os.listdir(tree / "package/empty") == []
    assert (tree / "nothing").read_bytes() == b""
    assert sorted(os.listdir(os.fsencode(tree)))[-2:] == [b"package", b"run.sh"]
    assert (Path(os.fsdecode(os.fsencode(tree) + b"/caf\xe9"))).read_bytes() == b"2"
    assert (tree / "new\nline").read_bytes() == b"1"


def test_compiled_modules_go_with_their_source(client: Client, tree: Path) -> None:
    client.sync(
        {b"p": directory(), b"p/m.py": file(b"1"), b"p/n.py": file(b"2"), b"q": directory(), b"q/o.py": file(b"3")}
    )
    for name in (
        "p/__pycache__/m.cpython-311.pyc",
        "p/__pycache__/n.cpython-311.pyc",
        "q/__pycache__/o.cpython-311.pyc",
    ):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"compiled")
    client.sync({b"p": directory(), b"p/m.py": file(b"changed"), b"p/n.py": file(b"2")})
    assert listing(tree) == ["p", "p/__pycache__", "p/__pycache__/n.cpython-311.pyc", "p/m.py", "p/n.py"]


# What ranks wrote


def test_what_ranks_wrote_is_kept_and_said_once(client: Client, tree: Path) -> None:
    client.sync({b"a": file(b"1"), b"b": file(b"2"), b"d": directory(), b"d/c": file(b"3"), b"other": file(b"4")})
    (tree / "a").write_text("rank")
    (tree / "b").write_text("rank")
    (tree / "d/own").write_text("rank")
    (tree / "new").write_text("rank")
    applied = client.sync({b"a": file(b"one"), b"new": file(b"5"), b"other": file(b"4")})
    assert list(applied.kept) == [b"a", b"b", b"d", b"new"]
    assert [(tree / name).read_text() for name in ("a", "b", "new", "d/own")] == ["rank"] * 4
    assert not (tree / "d/c").exists()
    assert client.asked_for[-1] == 0, "content that is not going to be written is not asked for"
    applied = client.sync({b"a": file(b"one"), b"new": file(b"5"), b"other": file(b"changed")})
    assert list(applied.kept) == []
    assert list(client.status().changed) == [b"a", b"new"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_of_the_ranks_that_came_back_from_the_client_stays_theirs(
    client: Client, tree: Path, tmp_path: Path, restart: bool
) -> None:
    client.sync({b"a": file(b"1")})
    for name in ("last.pt", "edited.pt"):
        (tree / name).write_text("weights")
    fetched = {b"a": file(b"1"), b"last.pt": file(b"weights"), b"edited.pt": file(b"weights")}
    assert list(client.sync(fetched).kept) == []
    client.sync({**fetched, b"a": file(b"2")})  # another sync in between changes nothing
    if restart:
        client = Client(open_workspaces(tmp_path), ID, like=client)
    applied = client.sync({b"edited.pt": file(b"edited")})
    assert (list(applied.kept), applied.removed) == ([b"edited.pt", b"last.pt"], 1)
    assert [(tree / name).read_text() for name in ("last.pt", "edited.pt")] == ["weights", "weights"]
    assert list(client.sync({b"edited.pt": file(b"edited again")}).kept) == [], "said once"


def test_a_look_finds_what_ranks_did(client: Client, tree: Path) -> None:
    entries = {name: file(b"12") for name in (b"same", b"touched", b"changed", b"gone", b"same size")}
    client.sync({**entries, b"d": directory(), b"d/inside": file(b"1"), b"link": link(b"same")})
    os.utime(tree / "touched", ns=(5, 5))
    (tree / "changed").write_text("more")
    (tree / "same size").write_text("21")
    (tree / "gone").unlink()
    (tree / "d/inside").unlink()
    (tree / "d").rmdir()
    (tree / "link").unlink()
    (tree / "link").symlink_to("elsewhere")
    for name in ("own", "equal"):
        (tree / name).write_text("rank")
    status = client.status()
    assert list(status.changed) == [b"changed", b"link", b"same size"]
    assert list(status.missing) == [b"d/inside", b"gone"]
    coming = {b"own": file(b"mine"), b"equal": file(b"rank"), b"new": file(b"1"), b"changed": file(b"more")}
    assert list(client.status(coming).changed) == [b"link", b"own", b"same size"]
    (found,) = client.workspaces.status(ID).mounts
    assert (list(found.changed), list(found.missing)) == ([], []), "nobody asked for a look"


def test_overwrite_makes_the_tree_what_it_is_to_be(client: Client, tree: Path) -> None:
    entries = {b"a": file(b"1"), b"b": file(b"2"), b"c": file(b"3"), b"d": directory(), b"d/e": file(b"4")}
    client.sync(entries)
    (tree / "a").write_text("rank")
    client.sync({**entries, b"a": file(b"5")})
    (tree / "b").write_text("not met by a sync yet")
    (tree / "c").unlink()
    (tree / "c").mkdir()
    (tree / "c/deep").write_text("rank")
    (tree / "own").write_text("rank")
    (tree / "d/e").unlink()
    applied = client.sync({**entries, b"a": file(b"5")}, overwrite=True)
    assert (list(applied.kept), list(client.status().changed)) == ([], [])
    assert list(applied.overwritten) == [b"a", b"b", b"c"], "d/e was only missing"
    assert [(tree / name).read_text() for name in ("a", "b", "c", "d/e", "own")] == ["5", "2", "3", "4", "rank"]


def test_a_touched_file_is_not_a_changed_one(client: Client, tree: Path) -> None:
    client.sync({b"a": file(b"1"), b"b": file(b"2")})
    for name in ("a", "b"):
        os.utime(tree / name, ns=(5, 5))
    applied = client.sync({b"a": file(b"changed")})
    assert list(applied.kept) == []
    assert listing(tree) == ["a"]


def test_a_file_that_changes_between_prepare_and_commit_is_kept(client: Client, tree: Path) -> None:
    client.sync({b"a": file(b"1"), b"b": file(b"2")})
    pending = client.prepare({b"a": file(b"changed"), b"b": file(b"2", mode=0o600), b"c": file(b"3")})
    for name in "abc":
        (tree / name).write_text("rank")
    assert list(pending.commit().kept) == [b"a", b"b", b"c"]
    assert {(tree / name).read_text() for name in "abc"} == {"rank"}


def test_links_that_ranks_made_are_not_followed(client: Client, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("safe")
    client.sync({b"sub": directory(), b"sub/a": file(b"1"), b"file": file(b"2")})
    (tree / "sub/a").unlink()
    (tree / "sub").rmdir()
    (tree / "sub").symlink_to(outside)
    (tree / "file").unlink()
    (tree / "file").symlink_to(outside / "a")
    (tree / "fresh").symlink_to(outside)
    applied = client.sync(
        {
            b"sub": directory(),
            b"sub/a": file(b"new"),
            b"sub/b": file(b"new"),
            b"file": file(b"new"),
            b"fresh": directory(),
            b"fresh/c": file(b"new"),
        }
    )
    assert list(applied.kept) == [b"file", b"fresh", b"sub/a", b"sub/b"]
    assert (listing(outside), (outside / "a").read_text()) == (["a"], "safe")
    client.sync({b"file": file(b"3")})  # removals do not follow either
    assert (listing(outside), (outside / "a").read_text()) == (["a"], "safe")


def test_a_mount_whose_directory_became_a_link_is_refused(workspaces: Workspaces, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tree / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(MonarchNbError, match="node0"):
        Client(workspaces, ID, mount="data").sync({b"a": file(b"1")})
    assert listing(tmp_path / "outside") == []


# Mounts, bases, versions


def test_mounts_do_not_touch_each_other(workspaces: Workspaces, client: Client, tree: Path) -> None:
    data = Client(workspaces, ID, mount="data", source="host:/data")
    client.sync({b"a": file(b"1")})
    data.sync({b"a": file(b"2"), b"x": directory(), b"x/y": file(b"3")})
    client.sync({b"b": file(b"4")}, whole=True)
    assert listing(tree) == ["b", "data", "data/a", "data/x", "data/x/y"]
    data.sync({}, whole=True)
    assert listing(tree) == ["b", "data"]
    assert [(mount.mount, mount.files) for mount in workspaces.status(ID).mounts] == [("", 1), ("data", 0)]
    with pytest.raises(UsageError, match="'data'"):
        client.sync({b"data": file(b"5")})
    with pytest.raises(UsageError, match="'b'"):
        Client(workspaces, ID, mount="b").sync({b"a": file(b"1")})


def test_another_notebooks_files_are_not_replaced_silently(workspaces: Workspaces, client: Client, tree: Path) -> None:
    client.sync({b"a": file(b"1")})
    other = Client(workspaces, ID, source="laptop:/elsewhere")
    with pytest.raises(UsageError, match=r"host:/project.*laptop:/elsewhere.*--overwrite"):
        other.sync({b"b": file(b"2")}, whole=True)
    assert listing(tree) == ["a"]
    other.sync({b"b": file(b"2")}, whole=True, overwrite=True)
    assert listing(tree) == ["b"]


# Hostile clients


def entry(path: bytes, **fields: object) -> TreeEntry:
    return TreeEntry(**{"path": path, "kind": TreeEntry.KIND_FILE, "mode": 0o644, **fields})  # type: ignore[arg-type]


HOSTILE = [
    *(TreeChange(changed=[entry(path)]) for path in (b"../x", b"nul\0", b"x" * 300)),
    TreeChange(changed=[entry(b"l", kind=TreeEntry.KIND_SYMLINK, mode=0o777, target=b"../m")]),
    TreeChange(changed=[entry(b"of no kind", kind=77)]),
    TreeChange(changed=[entry(b"without a hash", size_bytes=1 << 62)]),
    *(TreeChange(removed=[path]) for path in (b"../model.py", b"/etc/hostname")),
    *(TreeChange(mount=mount, changed=[entry(b"x")]) for mount in ("..", "a/b", "/tmp")),
]


def test_a_hostile_change_is_refused(workspaces: Workspaces, client: Client, tree: Path) -> None:
    client.sync({b"good": file(b"1")})
    for change in HOSTILE:
        change.base, change.version, change.source = client.version, "x", client.source
        with pytest.raises(UsageError):
            workspaces.begin(ID, change)
    assert listing(tree) == ["good"]
    assert sorted(os.listdir(tree.parent.parent)) == [ID]


def test_a_tree_that_contradicts_itself_harms_nothing(client: Client, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "safe").write_text("safe")
    client.sync({b"l": link(b"m"), b"l/x": file(b"1"), b"f": file(b"2"), b"f/x": file(b"3"), b"absent/x": file(b"4")})
    assert listing(tree) == ["absent", "absent/x", "f", "l"]
    client.sync({b"absent": file(b"5")})
    assert listing(tree) == ["absent"]


def test_content_that_is_not_what_its_tree_says_is_not_put_in_place(client: Client, workspaces: Workspaces) -> None:
    for texts in ({0: b"FOUR"}, {0: b"fo", 3: b"r"}, {0: b"longer"}):
        pending = workspaces.begin(ID, client.change({b"a": file(b"four").entry}, []))
        assert pending
        for offset, text in texts.items():
            pending.add(pack([Piece(b"a", offset, text)]))
        assert pending.missing() == [b"a"]
    pending.add(pack([Piece(b"a", 0, b"fo"), Piece(b"a", 2, b"ur"), Piece(b"not asked for", 0, b"1")]))
    assert pending.missing() == []


def test_what_has_come_is_not_asked_for_again(client: Client, workspaces: Workspaces, tree: Path) -> None:
    first, second = (file(name) for name in (b"first", b"second"))
    pending = workspaces.begin(ID, client.change({b"a": first.entry, b"b": second.entry}, []))
    assert pending
    pending.add(pack([Piece(b"a", 0, b"first")]))
    client.sync({b"a": first, b"b": second, b"c": file(b"third")})
    assert client.asked_for == [2], "of the change that was given up it has one"
    assert listing(tree) == ["a", "b", "c"]
    with pytest.raises(MonarchNbError, match="another one took its place"):
        pending.commit()


@pytest.mark.parametrize("bad", ["", "..", "a/b", ".released", "x" * 200])
def test_a_reservation_id_is_a_plain_name(workspaces: Workspaces, bad: str) -> None:
    with pytest.raises(UsageError, match="reservation"):
        workspaces.directory(bad)


def test_paths_may_be_deep(client: Client, tree: Path) -> None:
    names = [b"/".join([b"d"] * depth) for depth in range(1, 1500)]
    client.sync({name: directory() for name in names} | {names[-1] + b"/f": file(b"1")})
    applied = client.sync({})
    assert (applied.removed, listing(tree)) == (1, [])


def test_a_look_names_what_ranks_wrote_and_what_waits(workspaces: Workspaces, client: Client, tree: Path) -> None:
    client.sync({b"model.py": file(b"1"), b"same.py": file(b"1"), b"d": directory(), b"d/b": file(b"345")})
    (tree / "model.py").write_text("rank's")
    (tree / "same.py").write_text("rank's too")
    (tree / "d/out.txt").write_text("new")
    (tree / "ck").mkdir()
    (tree / "ck/last.pt").write_text("new")
    (tree / "d/__pycache__").mkdir()
    (tree / "d/__pycache__/b.cpython-311.pyc").write_text("compiled")
    client.sync({b"model.py": file(b"2"), b"same.py": file(b"1"), b"d": directory(), b"d/b": file(b"345")})
    (mount,) = workspaces.status(ID, look=True).mounts
    assert (list(mount.changed), list(mount.waiting)) == ([b"model.py", b"same.py"], [b"model.py"])
    assert (list(mount.added), mount.added_files) == ([b"ck/last.pt", b"d/out.txt"], 2)
    assert not workspaces.status(ID).mounts[0].added, "nobody looked at the disk"
    client.sync({b"model.py": file(b"2")}, overwrite=True)
    (mount,) = workspaces.status(ID, look=True).mounts
    assert not mount.waiting


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
    directory_ = Path(kept.directory)
    assert directory_.parent == node_paths(tmp_path).kept
    assert directory_.name.startswith("train-")
    assert listing(directory_) == ["a", "d", "d/checkpoint"]
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
