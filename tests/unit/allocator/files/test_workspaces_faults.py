"""A node's trees when the disk is full, an allocator is killed, or its records are damaged."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.errors import FilesError, MonarchNbError
from unit.allocator.files.syncing import Client, Made, directory, file, link, open_workspaces

ID = "reservation-1"
CHANGING_CALLS = ("rename", "link", "rmdir", "mkdir", "unlink", "chmod", "utime")
BEFORE = {
    b"a.py": file(b"a = 1"),
    b"gone": file(b"gone"),
    b"mode": file(b"mode", mode=0o644),
    b"link": link(b"a.py"),
    b"file": file(b"becomes a directory"),
    b"directory": directory(),
    b"directory/becomes": file(b"a file"),
    b"old": directory(),
    b"old/er": directory(),
    b"old/er/x": file(b"x"),
    b"d": directory(mode=0o755),
    b"d/b.py": file(b"b = 1"),
    b"d/ranks": file(b"1"),
}
AFTER = {
    b"a.py": file(b"a = 2"),
    b"mode": file(b"mode", mode=0o755, modified_ns=17),
    b"link": link(b"d/b.py"),
    b"file": directory(),
    b"file/inner": file(b"inner"),
    b"directory": file(b"a file"),
    b"d": directory(mode=0o750),
    b"d/b.py": file(b"b = 22"),
    b"d/c.py": file(b"c"),
    b"d/ranks": file(b"2"),
    b"new": directory(),
    b"new/est": directory(),
    b"new/est/y": file(b"y" * 100_000),
}
LATER = {
    b"a.py": file(b"a = 1"),
    b"gone": file(b"gone"),
    b"mode": file(b"mode", mode=0o600, modified_ns=18),
    b"link": link(b"d/c.py"),
    b"file": file(b"a file again"),
    b"d": directory(mode=0o700),
    b"d/b.py": file(b"b = 333"),
    b"d/ranks": file(b"3"),
    b"new": directory(),
    b"new/est": file(b"no directory"),
}


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the program runs after it, but for what closes descriptors."""


def facts_of(root: Path) -> dict[str, Any]:
    """Return all that a rank can see of a tree."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        mode = stat.S_IMODE(facts.st_mode)
        if path.is_symlink():
            found[str(path.relative_to(root))] = os.readlink(path)
        elif path.is_dir():
            found[str(path.relative_to(root))] = mode
        else:
            found[str(path.relative_to(root))] = (mode, facts.st_mtime_ns, path.read_bytes())
    return found


def without_compiled(root: Path) -> dict[str, Any]:
    return {path: facts for path, facts in facts_of(root).items() if "__pycache__" not in path}


def start(home: Path) -> tuple[Client, Path]:
    """Return a client whose tree is BEFORE, with traces of ranks in it, and where that is."""
    workspaces = open_workspaces(home)
    client, tree = Client(workspaces, ID), workspaces.directory(ID)
    client.sync(BEFORE)
    (tree / "d/ranks").write_text("a rank's")
    (tree / "d/__pycache__").mkdir()
    (tree / "d/__pycache__/b.cpython-311.pyc").write_bytes(b"compiled")
    return client, tree


def seen(tree: Path) -> dict[str, Any]:
    """Return what a rank sees, but for the time of its own file, which is another one each time."""
    found = without_compiled(tree)
    return {**found, "d/ranks": found["d/ranks"][2]}


def expected(home: Path, goal: dict[bytes, Made]) -> dict[str, Any]:
    """Return what a rank sees after a change from BEFORE to `goal` that nothing disturbs."""
    home.mkdir()
    client, tree = start(home)
    client.sync(goal)
    return seen(tree)


@contextmanager
def failing(patch: pytest.MonkeyPatch, number: int, error: Callable[[], BaseException]) -> Iterator[list[str]]:
    """Within: the call that is the `number`th to change names fails, and all after it if it was a kill."""
    calls: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                raise error()
            return real(*args, **kwargs)

        return call

    with patch.context() as inner:
        for name in CHANGING_CALLS:
            inner.setattr(os, name, wrap(name))
        yield calls


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tree = start(tmp_path)
    before, real, left = facts_of(tree), os.pwrite, [3]

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise full()
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(MonarchNbError, match="node0: the disk is full"):
            client.prepare(AFTER)
    assert facts_of(tree) == before
    assert not list((tree.parent / "incoming").iterdir()), "that makes room"
    client.workspaces.check_whole(ID)
    assert list(client.sync(AFTER).kept) == [b"d/ranks"]


@pytest.mark.parametrize(
    ("error", "goal"),
    [(full, AFTER), (Killed, LATER), (Killed, BEFORE)],
    ids=["a full disk", "killed, edited since", "killed, taken back"],
)
def test_the_next_sync_goes_on_wherever_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException], goal: dict[bytes, Made]
) -> None:
    before, after, wanted = (expected(tmp_path / str(-at), tree) for at, tree in enumerate((BEFORE, AFTER, goal), 1))
    number, failed = 0, True
    while failed:
        number += 1
        (home := tmp_path / str(number)).mkdir()
        client, tree = start(home)
        pending = client.prepare(AFTER)
        with failing(monkeypatch, number, error):
            try:
                pending.commit()
                failed = False
            except (MonarchNbError, Killed):
                pass
        workspaces = open_workspaces(home) if error is Killed else client.workspaces
        if seen(tree) not in (before, after):
            with pytest.raises(FilesError, match="node0: some files are of the version before"):
                workspaces.check_whole(ID)
        again = Client(workspaces, ID)
        again.sync(goal, whole=True)
        assert seen(tree) == wanted, number
        workspaces.check_whole(ID)
        assert list(again.status().changed) == [b"d/ranks"]
        assert not list((tree.parent / "incoming").glob("@*/*"))
        assert list(again.sync({}).kept) == [b"d/ranks"]
    assert number > 15


def test_two_that_ended_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first has put there is known after the second, too."""
    client, tree = start(tmp_path)
    client.sync(BEFORE)
    for text in (b"a = 22", b"a = 333"):
        client = Client(open_workspaces(tmp_path), ID)
        pending = client.prepare({**BEFORE, b"a.py": file(text), b"z": directory()}, whole=True)
        with failing(monkeypatch, 2 if text == b"a = 22" else 1, Killed), pytest.raises(Killed):
            pending.commit()
    assert (tree / "a.py").read_bytes() == b"a = 22"
    again = Client(open_workspaces(tmp_path), ID)
    assert list(again.sync({**BEFORE, b"a.py": file(b"a = 4444")}, whole=True).kept) == []
    assert (tree / "a.py").read_bytes() == b"a = 4444"


def test_a_damaged_manifest_costs_no_files(tmp_path: Path) -> None:
    _, tree = start(tmp_path)
    for path in tree.parent.glob("manifest*"):
        path.write_bytes(b"damaged" * 1000)
    before = without_compiled(tree)
    again = Client(open_workspaces(tmp_path), ID)
    assert without_compiled(tree) == before
    assert list(again.sync(BEFORE, whole=True).kept) == [b"d/ranks"]
    assert list(again.sync(AFTER, overwrite=True).kept) == []
    assert (tree / "a.py").read_text() == "a = 2"
