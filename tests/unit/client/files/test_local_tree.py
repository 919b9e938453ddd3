"""What a tree holds and what changed, on real directories."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.client.files import local_tree, scan, watcher
from monarch_nb.client.files.local_tree import LocalTree
from monarch_nb.errors import UsageError
from monarch_nb.proto.files_pb2 import TreeEntry
from unit.client.files.trees import Make, changed, holds, write

# ---- changes ----


def test_everything_first_then_nothing(tree: LocalTree, root: Path) -> None:
    write(root, {"a/m.py": "x = 1", "zero": ""})
    (root / "a" / "empty").mkdir()
    (root / "a" / "m.py").chmod(0o754)
    (root / "link").symlink_to("a/m.py")
    first = tree.refresh()
    assert changed(first) == [b"a", b"a/empty", b"a/m.py", b"link", b"zero"]
    assert first.entries[b"a/m.py"].mode == 0o754
    assert first.entries[b"a/m.py"].modified_ns == (root / "a" / "m.py").stat().st_mtime_ns
    assert holds(first.entries[b"a/m.py"], b"x = 1")
    assert holds(first.entries[b"zero"], b"")
    assert first.entries[b"link"].target == b"a/m.py"
    assert first.entries[b"a/empty"].kind == TreeEntry.KIND_DIRECTORY
    again = tree.refresh()
    assert (again.changed, again.removed, again.entries) == ([], [], first.entries)


def test_edits_deletions_modes_and_renames(tree: LocalTree, root: Path) -> None:
    write(root, {name: name for name in ("a/x", "a/y", "b/z", "gone/deep/w")})
    before = tree.refresh().entries
    (root / "a" / "x").write_text("edited")
    assert changed(tree.refresh()) == [b"a/x"]
    (root / "a" / "y").chmod(0o600)
    assert changed(tree.refresh()) == [b"a/y"]
    os.utime(root / "a" / "y", ns=(5, 5))
    assert changed(tree.refresh()) == [b"a/y"]
    shutil.rmtree(root / "gone")
    assert tree.refresh().removed == [b"gone", b"gone/deep", b"gone/deep/w"]
    (root / "b").rename(root / "c")
    renamed = tree.refresh()
    assert (changed(renamed), renamed.removed) == ([b"c", b"c/z"], [b"b", b"b/z"])
    (root / "c" / "z").write_text("in a directory that was renamed")
    assert changed(tree.refresh()) == [b"c/z"]
    assert b"gone/deep/w" in before, "what a caller has does not change"


def test_a_name_changes_its_kind(tree: LocalTree, root: Path) -> None:
    (root / "to").mkdir()
    (root / "name").write_text("a file")
    tree.refresh()
    (root / "name").unlink()
    (root / "name").mkdir()
    (root / "name" / "inside").write_text("x")
    assert changed(tree.refresh()) == [b"name", b"name/inside"]
    (root / "name" / "inside").write_text("xy")
    assert changed(tree.refresh()) == [b"name/inside"]
    shutil.rmtree(root / "name")
    (root / "name").symlink_to("to")
    refreshed = tree.refresh()
    assert (changed(refreshed), refreshed.removed) == ([b"name"], [b"name/inside"])
    assert refreshed.entries[b"name"].kind == TreeEntry.KIND_SYMLINK


def test_a_directory_is_replaced_by_another(tree: LocalTree, root: Path) -> None:
    (root / "d" / "sub").mkdir(parents=True)
    (root / "d" / "sub" / "old").touch()
    tree.refresh()
    for round_ in range(3):
        shutil.rmtree(root / "d")
        (root / "d" / "sub").mkdir(parents=True)
        (root / "d" / "sub" / f"{round_}").touch()
        assert changed(tree.refresh()) == [f"d/sub/{round_}".encode()]
        (root / "d" / "sub" / f"{round_}").write_text("later")
        assert changed(tree.refresh()) == [f"d/sub/{round_}".encode()]


@pytest.mark.parametrize("moved", ["root", "its parent"])
def test_the_root_is_replaced_and_goes(tree: LocalTree, root: Path, moved: str) -> None:
    (root / "old").touch()
    tree.refresh()
    place = root if moved == "root" else root.parent
    place.rename(place.with_name("aside"))
    if moved == "root":
        with pytest.raises(UsageError, match="is gone"):
            tree.refresh()
    root.mkdir(parents=True)
    (root / "new").touch()
    refreshed = tree.refresh()
    assert (changed(refreshed), refreshed.removed) == ([b"new"], [b"old"])
    (root / "new").write_text("x")
    assert changed(tree.refresh()) == [b"new"]


def test_same_size_and_time_but_other_content(tree: LocalTree, root: Path) -> None:
    file = root / "m.py"
    file.write_text("x = 1")
    os.utime(file, ns=(10**18, 10**18))
    tree.refresh()
    file.write_text("x = 2")
    os.utime(file, ns=(10**18, 10**18))
    assert holds(tree.refresh().entries[b"m.py"], b"x = 2")


def test_a_file_written_twice_in_one_tick_of_the_clock(
    tree: LocalTree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where clocks are coarse, a fresh file is read again; and always one that changed as events tell."""
    look_the_same = scan.Facts(1, 1, 5, 1, 1, 0o644)

    def coarse(_: type, status: os.stat_result) -> scan.Facts:
        return look_the_same._replace(changed_ns=status.st_ctime_ns // 10**13 * 10**13)

    monkeypatch.setattr(scan.Facts, "of", classmethod(coarse))
    monkeypatch.setattr(scan, "_RACY_NS", 10**14 if tree.refresh() and tree._watcher is None else -(10**14))
    (root / "m.py").write_text("x = 1")
    tree.refresh()
    (root / "m.py").write_text("x = 2")
    assert holds(tree.refresh().entries[b"m.py"], b"x = 2")


def test_ignore_files_count_from_the_next_refresh(tree: LocalTree, root: Path) -> None:
    write(root, {"a/x.bin": "", "a/y.bin": ""})
    tree.refresh()
    (root / "a" / ".gitignore").write_text("*.bin")
    refreshed = tree.refresh()
    assert (changed(refreshed), refreshed.removed) == ([b"a/.gitignore"], [b"a/x.bin", b"a/y.bin"])
    (root / ".meshignore").write_text("!x.bin")
    assert changed(tree.refresh()) == [b".meshignore", b"a/x.bin"]
    (root / "a" / ".gitignore").unlink()
    assert changed(tree.refresh()) == [b"a/y.bin"]
    write(root, {".git/info/exclude": "x.bin", ".meshignore": ""})  # a repository begins around the root
    assert tree.refresh().removed == [b"a/x.bin"]
    (root / ".git" / "info" / "exclude").write_text("")
    assert changed(tree.refresh()) == [b"a/x.bin"]


def test_a_directory_becomes_a_virtual_environment(tree: LocalTree, root: Path) -> None:
    (root / "env" / "bin").mkdir(parents=True)
    tree.refresh()
    (root / "env" / "pyvenv.cfg").touch()
    assert tree.refresh().removed == [b"env", b"env/bin"]
    assert tree.report.ignored() == {"virtual environments": (1, 0)}


# ---- nothing is missed ----


def test_what_was_saved_just_before_is_never_missed(tree: LocalTree, root: Path) -> None:
    dice = random.Random(1)
    tree.refresh()
    places = [root]
    for number in range(150):
        data = f"{number}".encode().ljust(8)
        how = dice.randrange(5)
        file = dice.choice(places) / f"m{dice.randrange(5)}.py"
        if how == 0:  # in directories that have just been made
            file = dice.choice(places) / f"d{number}" / "deep" / "m.py"
            file.parent.mkdir(parents=True)
            places.append(file.parent)
        if how == 1:  # as editors save
            file.with_suffix(".tmp").write_bytes(data)
            file.with_suffix(".tmp").replace(file)
        elif how == 2:  # a copy is kept
            if file.exists():
                file.rename(file.with_suffix(".bak"))
            file.write_bytes(data)
        else:
            file.write_bytes(data)
        entry = tree.refresh().entries.get(os.fsencode(file.relative_to(root)))
        assert entry is not None, (number, how)
        assert holds(entry, data), (number, how)


def test_a_file_comes_between_finding_its_directory_and_watching_it(
    tree_of: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tree_of()
    tree.refresh()
    (root / "new").mkdir()

    def late(*arguments: object) -> watcher.Watcher:
        (root / "new" / "late.py").write_text("x")
        (root / "late.py").write_text("x")
        return watcher.Watcher(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local_tree, "Watcher", late)
    assert changed(tree.refresh()) == [b"late.py", b"new", b"new/late.py"]


def test_a_lost_watcher_is_no_lost_change(tree_of: Make, root: Path) -> None:
    """The directory of its cookies was tidied up."""
    tree = tree_of()
    tree.refresh()
    assert tree._watcher is not None
    shutil.rmtree(tree._watcher._cookies)
    (root / "m.py").write_text("2")
    assert changed(tree.refresh()) == [b"m.py"]
    assert tree._watcher is not None


def test_of_who_was_killed_nothing_stays_when_the_next_one_watches(
    tree_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever lives keeps the directory of its cookies."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "monarch-nb-watch-linked").symlink_to(tmp_path / "parent")
    watches = (
        "import os, signal, sys, tempfile\n"
        "from monarch_nb.client.files.watcher import Watcher\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "watcher = Watcher(os.fsencode(sys.argv[2]), [b''])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", watches, str(tmp_path), str(tmp_path / "parent")])
    assert killed.returncode == -signal.SIGKILL
    left = set(tmp_path.glob("monarch-nb-watch-*"))
    assert len(left) == 2, "else this test says nothing"
    trees = [tree_of(), tree_of()]
    for tree in trees:
        tree.refresh()
    watched = {Path(tree._watcher._cookies) for tree in trees if tree._watcher is not None}
    assert len(watched) == 2
    assert set(tmp_path.glob("monarch-nb-watch-*")) == watched | {tmp_path / "monarch-nb-watch-linked"}


def test_names_that_watchfiles_can_not_tell(tree_of: Make, root: Path) -> None:
    tree = tree_of()
    tree.refresh()
    odd = os.path.join(os.fsencode(root), b"caf\xe9")
    for number in range(5):
        (root / "m.py").write_text(f"{number}")
        with open(odd, "wb") as file:
            file.write(b"%d" % number)
        assert changed(tree.refresh()) == [b"caf\xe9", b"m.py"]


def test_an_interrupted_refresh_loses_nothing(tree: LocalTree, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.refresh()
    (root / "m.py").write_text("1")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scan, "read_files", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tree.refresh()
    assert changed(tree.refresh()) == [b"m.py"]
    (root / "m.py").write_text("2")
    assert changed(tree.refresh()) == [b"m.py"]


def test_thousands_of_changes_at_once(tree_of: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an overflow of the kernel's queue: everything is looked at."""
    monkeypatch.setattr(watcher, "_MAX_CHANGES", 20)
    tree = tree_of()
    (root / "m.py").write_text("1")
    tree.refresh()
    for number in range(30):
        (root / f"{number}").touch()
    assert len(tree.refresh().changed) == 30


# ---- where changes are not told ----


def test_a_file_system_that_tells_nothing(tree_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_mount_points", lambda: {"/": "ext4", "/home/net": "nfs4", "/home/a b": "fuse.sshfs"})
    assert watcher.why_not_watchable("/home/me") == ""
    assert "nfs4 of /home/net" in watcher.why_not_watchable("/home/net/project")
    assert "sshfs of /home/a b" in watcher.why_not_watchable("/home/a b")
    assert "nfs4" in watcher.why_not_watchable("/home"), "mounted inside"
    assert watcher.why_not_watchable("/home/network") == ""
    monkeypatch.setattr(watcher, "_mount_points", dict)
    assert "unknown" in watcher.why_not_watchable("/home")


def test_the_limit_of_watches(tree_of: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from watchfiles import _rust_notify

    def refuse(*_: object) -> None:
        raise OSError('OS file watch limit reached. about ["/x"] (Error { kind: MaxFilesWatch })')

    monkeypatch.setattr(_rust_notify, "RustNotify", refuse)
    tree = tree_of()
    tree.refresh()
    assert "fs.inotify.max_user_watches" in tree.report.notice
    (root / "m.py").write_text("x")
    assert changed(tree.refresh()) == [b"m.py"]


def test_a_directory_whose_name_is_no_text(tree_of: Make, root: Path) -> None:
    directory = os.path.join(os.fsencode(root), b"caf\xe9")
    os.mkdir(directory)
    tree = tree_of()
    tree.refresh()
    with open(directory + b"/new\nline", "wb") as file:
        file.write(b"1")
    assert changed(tree.refresh()) == [b"caf\xe9/new\nline"]
    assert "UTF-8" in tree.report.notice


def test_events_that_never_arrive(tree_of: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher.Watcher, "changes", lambda _: None)
    tree = tree_of()
    for number in range(6):
        (root / "m.py").write_text(f"{number}")
        assert changed(tree.refresh()) == [b"m.py"]
    assert tree._watcher is None
    assert tree.report.notice


# ---- faults ----


def test_links_that_leave_loop_or_dangle(tree: LocalTree, root: Path) -> None:
    (root / "a").mkdir()
    for name, target in {"a/up": "../..", "abs": "/etc/passwd", "self": "self", "a/loop": "../a", "none": "b"}.items():
        (root / name).symlink_to(target)
    assert changed(tree.refresh()) == [b"a", b"a/loop", b"none", b"self"]
    assert [path for path, why in tree.report.refused if "leaves" in why] == [b"a/up", b"abs"]
    (root / "abs").unlink()
    tree.refresh()
    assert [path for path, _ in tree.report.refused] == [b"a/up"]


def test_pipes_and_sockets_are_refused_and_block_nobody(tree: LocalTree, root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root)  # a socket's path is short
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        assert changed(tree.refresh()) == []
    assert tree.report.refused == [(b"pipe", "it is a pipe"), (b"socket", "it is a socket")]


def test_a_file_becomes_a_pipe_before_it_is_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert scan.read_file(os.fsencode(root), b"pipe") is None


def test_unreadable_whoever_asks(tree: LocalTree, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_text("x")
    (root / "other").write_text("x")
    real = scan.open_file

    def refuse(directory: bytes, path: bytes) -> int:
        if path == b"file":
            raise PermissionError(13, "Permission denied")
        return real(directory, path)

    with monkeypatch.context() as patch:
        patch.setattr(scan, "open_file", refuse)
        assert changed(tree.refresh()) == [b"other"]
    assert tree.report.refused == [(b"file", "permission denied")]
    (root / "file").chmod(0o600)
    assert changed(tree.refresh()) == [b"file"]


def test_a_file_vanishes_before_it_is_read(tree: LocalTree, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_text("x")
    real = scan.read_files

    def vanish(*arguments: object) -> object:
        (root / "file").unlink(missing_ok=True)
        return real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(scan, "read_files", vanish)
        assert changed(tree.refresh()) == []
    assert (changed(tree.refresh()), tree.report.refused) == ([], [])


def test_a_file_that_changes_while_it_is_read_is_read_again(
    tree: LocalTree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = iter(["second", "third"])
    real = scan.pieces_of

    def disturbed(descriptor: int, size_bytes: int) -> Iterator[bytes]:
        if (text := next(writes, None)) is not None:
            (root / "file").write_text(text)
        return real(descriptor, size_bytes)

    (root / "file").write_text("first")
    monkeypatch.setattr(scan, "pieces_of", disturbed)
    assert holds(tree.refresh().entries[b"file"], b"third")


def test_a_file_that_never_rests_is_refused_and_tried_again(
    tree: LocalTree, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scan.pieces_of

    def disturbed(descriptor: int, size_bytes: int) -> Iterator[bytes]:
        with open(tmp_path / "elsewhere", "ab") as file:  # the same file; nothing tells of it
            file.write(b"x")
        return real(descriptor, size_bytes)

    (root / "file").write_text("first")
    os.link(root / "file", tmp_path / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(scan, "pieces_of", disturbed)
        assert changed(tree.refresh()) == []
    assert [path for path, why in tree.report.refused if "changed each of the 3 times" in why] == [b"file"]
    assert changed(tree.refresh()) == [b"file"]


def test_too_large(tree_of: Make, root: Path) -> None:
    (root / "ckpt").write_bytes(bytes(1001))
    (root / "fits").write_bytes(bytes(1000))
    tree = tree_of(max_file_bytes=1000)
    assert changed(tree.refresh()) == [b"fits"]
    assert tree.report.too_large == [(b"ckpt", 1001)]
    (root / "ckpt").write_bytes(bytes(10))
    assert changed(tree.refresh()) == [b"ckpt"]
    assert tree.report.too_large == []
    (root / "ckpt").write_bytes(bytes(1001))
    assert tree.refresh().removed == [b"ckpt"]


def test_paths_longer_than_any_node_takes(tree: LocalTree, root: Path) -> None:
    name = "d" * 250
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(17):
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    changed(tree.refresh())
    assert len(tree.report.refused) == 1


def test_what_is_ignored_is_counted_when_asked(tree: LocalTree, root: Path) -> None:
    write(
        root, {"node_modules/x/a.js": "0123456789", "node_modules/b.js": "01234", ".gitignore": "*.log", "a.log": "0"}
    )
    tree.refresh()
    assert tree.report.ignored() == {"defaults": (2, 15), ".gitignore": (1, 1)}
