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

from monarch_nb.errors import MonarchNbError
from unit.allocator.files.workspace.syncing import Client, directory, file, link, open_workspaces

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


def expected(home: Path) -> dict[str, Any]:
    """Return what a rank sees after a change from BEFORE to AFTER that nothing disturbs."""
    home.mkdir()
    client, tree = start(home)
    assert list(client.sync(AFTER).kept) == [b"d/ranks"]
    seen = facts_of(tree)
    seen["d/ranks"] = seen["d/ranks"][2]  # its time is another one each time
    return seen


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
    assert os.listdir(tree.parent / "staging") == []
    assert list(client.sync(AFTER).kept) == [b"d/ranks"]


def test_a_burst_that_fails_anywhere_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, reached = 0, True
    while reached:
        number += 1
        home = tmp_path / str(number)
        home.mkdir()
        client, tree = start(home)
        before, known = without_compiled(tree), (client.tree, client.version)
        pending = client.prepare(AFTER)
        with failing(monkeypatch, number, full) as calls:
            try:
                pending.commit()
            except MonarchNbError as error:
                message = str(error)
            else:
                message = ""
        reached = len(calls) >= number
        if not message:  # past the end; the root was there already; or no link could be made: the file was renamed
            assert not reached or number == 1 or calls[number - 1] == "link"
            continue
        assert message.startswith("node0: the disk is full")
        assert without_compiled(tree) == before, (number, calls)
        client.tree, client.version = known
        again = Client(open_workspaces(home), ID, like=client)
        assert list(again.sync(AFTER).kept) == [b"d/ranks"], "the allocator knows what there is, also after a restart"
    assert number > 15


def test_an_allocator_killed_anywhere_in_a_burst_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goal = expected(tmp_path / "goal")
    number, killed = 0, True
    while killed:
        number += 1
        home = tmp_path / str(number)
        home.mkdir()
        client, tree = start(home)
        pending = client.prepare(AFTER)
        with failing(monkeypatch, number, Killed) as calls:
            try:
                pending.commit()
                pending.settle()
                killed = False
            except Killed:
                pass
        workspaces = open_workspaces(home)
        seen = facts_of(tree)
        seen["d/ranks"] = seen["d/ranks"][2]
        assert seen == goal, (number, calls)
        (mount,) = workspaces.status(ID, look=True).mounts
        assert (mount.version, list(mount.changed)) == (client.version, [b"d/ranks"]), (number, calls)
        assert not (tree.parent / "staging").exists()
        again = Client(workspaces, ID, like=client)
        assert list(again.sync(BEFORE).kept) == []
        assert (tree / "directory/becomes").read_text() == "a file"
    assert number > 15


def test_a_damaged_journal_costs_no_files(tmp_path: Path) -> None:
    _, tree = start(tmp_path)
    journal = tree.parent / "journal"
    data = bytearray(journal.read_bytes())
    data[60] ^= 0xFF
    data[300:310] = b"\xff" * 10
    journal.write_bytes(data)
    before = without_compiled(tree)
    again = Client(open_workspaces(tmp_path), ID)
    assert without_compiled(tree) == before
    assert list(again.sync(BEFORE, whole=True).kept) == [b"d/ranks"]
    assert list(again.sync(AFTER).kept) == []
    assert (tree / "a.py").read_text() == "a = 2"
