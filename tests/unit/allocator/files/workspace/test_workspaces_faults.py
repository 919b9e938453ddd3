"""A node's trees when the disk is full, an allocator is killed, or its records are damaged."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monarch_nb.allocator.files.workspace import journal as journal_module
from monarch_nb.errors import MonarchNbError
from monarch_nb.files.chunks import pack
from unit.allocator.files.workspace.syncing import Client, Made, directory, file, link, node_paths, open_workspaces

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


def test_a_write_that_the_kernel_refuses_leaves_the_old_tree(tmp_path: Path) -> None:
    client, tree = start(tmp_path)
    before, limits = facts_of(tree), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(MonarchNbError, match="node0: File too large"):
            client.prepare(AFTER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert facts_of(tree) == before
    assert os.listdir(tree.parent / "staging") == []
    client.sync(AFTER)


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


def test_a_full_disk_at_the_last_record_undoes_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tree = start(tmp_path)
    before = without_compiled(tree)
    pending = client.prepare(AFTER)
    real, written = os.pwrite, []

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        written.append(1)
        if len(written) == 2:  # committing, done
            real(descriptor, data[:5], offset)
            raise full()
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(MonarchNbError, match="the disk is full"):
            pending.commit()
    assert without_compiled(tree) == before
    again = Client(open_workspaces(tmp_path), ID, like=client)
    assert without_compiled(tree) == before, "nothing is gone on with"
    again.sync(AFTER, whole=True)
    assert (tree / "a.py").read_text() == "a = 2"


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


def test_an_allocator_killed_before_the_burst_has_the_old_tree(tmp_path: Path) -> None:
    client, tree = start(tmp_path)
    before, version = facts_of(tree), client.version
    client.prepare(AFTER)
    workspaces = open_workspaces(tmp_path)
    assert facts_of(tree) == before
    assert workspaces.status(ID).mounts[0].version == version
    assert workspaces.resume(ID, "", client.version) is None
    assert not (tree.parent / "staging").exists()


@pytest.mark.parametrize("torn", [1, 4, 13, 100])
def test_a_torn_record_is_cut_off(tmp_path: Path, torn: int) -> None:
    client, tree = start(tmp_path)
    journal = tree.parent / "journal"
    size = journal.stat().st_size
    version = client.version
    client.prepare(AFTER)
    os.truncate(journal, size + torn)
    again = Client(open_workspaces(tmp_path), ID, like=client)
    assert journal.stat().st_size == size
    assert again.status().version == version
    again.sync(AFTER, whole=True)
    assert open_workspaces(tmp_path).status(ID).mounts[0].version == again.version


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


def test_the_journal_is_written_anew_before_it_grows_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SLACK_BYTES", 1000)
    client, tree = start(tmp_path)
    data = Client(client.workspaces, ID, mount="data", source="other")
    data.sync({b"x": file(b"1")})
    (tree / "d/ranks").write_text("a rank's")
    waiting = data.prepare({b"x": file(b"2")})
    for number in range(100):
        client.sync({**BEFORE, b"a.py": file(b"%d" % number), b"d/ranks": file(b"2")})
    assert (tree.parent / "journal").stat().st_size < 10_000
    waiting.commit()
    again = Client(open_workspaces(tmp_path), ID, like=client)
    assert (again.status().version, list(again.status().changed)) == (client.version, [b"d/ranks"])
    assert Client(again.workspaces, ID, mount="data").status().version == data.version
    again.sync({})
    data = Client(again.workspaces, ID, mount="data", source="other", like=data)
    assert data.sync({}).removed == 1
    assert sorted(path.name for path in tree.rglob("*") if path.is_file()) == ["ranks"]


def test_a_cache_that_was_damaged_is_no_harm(tmp_path: Path) -> None:
    client, _ = start(tmp_path)
    client.sync(AFTER)
    content = node_paths(tmp_path).content
    (content / "index").write_bytes(b"\0\0\0\xffnonsense")
    (content / "stray").write_text("stray")
    workspaces = open_workspaces(tmp_path)
    assert (workspaces.status(ID).cache_bytes, [path.name for path in content.iterdir()]) == (0, ["index"])
    again = Client(workspaces, ID, like=client)
    again.sync(BEFORE)
    assert workspaces.status(ID).cache_bytes > 0


def test_a_cache_that_can_not_be_written_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, tree = start(tmp_path)
    pending = client.prepare(AFTER)
    pending.commit()
    with failing(monkeypatch, 1, full):
        pending.settle()
    assert os.listdir(tree.parent / "staging") == []


def test_a_damaged_batch_ends_the_change(tmp_path: Path) -> None:
    client, tree = start(tmp_path)
    made: Made = file(b"new content")
    pending = client.workspaces.begin(ID, client.change({b"x": made.entry}, []))
    assert pending
    batch = pack(made.chunks)
    batch.data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
    with pytest.raises(MonarchNbError, match=r"damaged|not what its name says"):
        pending.add(batch)
    assert not (tree / "x").exists()
