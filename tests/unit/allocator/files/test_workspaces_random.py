"""Random trees one after the other, with ranks writing and allocators restarting in between, against what must hold."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from unit.allocator.files.syncing import Client, Made, directory, file, link, open_workspaces

ID = "r"
NAMES = (b"a", b"a.py", b"A", b"b")
CONTENTS = (b"", b"1", b"2", b"three")


@st.composite
def trees(draw: st.DrawFn, prefix: bytes = b"", depth: int = 3) -> dict[bytes, Made]:
    tree: dict[bytes, Made] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        path = prefix + name
        kind = draw(st.sampled_from(("file", "file", "link", "directory")))
        if kind == "directory" and depth:
            tree[path] = directory(draw(st.sampled_from((0o755, 0o700))))
            tree |= draw(trees(path + b"/", depth - 1))
        elif kind == "link":
            tree[path] = link(draw(st.sampled_from(NAMES)))
        else:
            times = st.sampled_from((1_000_000_000, 2_000_000_000_000))
            tree[path] = file(draw(st.sampled_from(CONTENTS)), draw(st.sampled_from((0o644, 0o755))), draw(times))
    return tree


def disk(root: Path) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for path in root.rglob("*"):
        facts, name = path.lstat(), os.fsencode(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path).encode()
        elif path.is_dir():
            found[name] = facts.st_mode & 0o777
        else:
            found[name] = (path.read_bytes(), facts.st_mode & 0o777, facts.st_mtime_ns)
    return found


def wanted(tree: dict[bytes, Made]) -> dict[bytes, object]:
    contents = {file(data).entry.hash: data for data in CONTENTS}
    found: dict[bytes, object] = {}
    for path, made in tree.items():
        entry = made.entry
        if entry.kind == entry.KIND_FILE:
            found[path] = (contents[entry.hash], entry.mode, entry.modified_ns)
        else:
            found[path] = entry.target if entry.kind == entry.KIND_SYMLINK else entry.mode
    return found


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(trees(), st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_the_disk_becomes_each_tree(steps: list[tuple[dict[bytes, Made], bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        client = Client(open_workspaces(Path(name)), ID)
        for tree, whole, restart in steps:
            assert list(client.sync(tree, whole=whole).kept) == []
            assert disk(client.workspaces.directory(ID)) == wanted(tree)
            if restart:
                client = Client(open_workspaces(Path(name)), ID, like=client)
        assert client.workspaces.release(ID) is None


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(trees(), trees(), st.booleans()), min_size=1, max_size=4))
def test_nothing_of_the_ranks_is_lost(steps: list[tuple[dict[bytes, Made], dict[bytes, Made], bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        client = Client(open_workspaces(Path(name)), ID)
        root = client.workspaces.directory(ID)
        written: dict[Path, str] = {}
        for number, (tree, ranks, restart) in enumerate(steps):
            client.sync(tree)
            for path in ranks:
                target = root / os.fsdecode(path)
                if target.parent.is_dir() and not target.is_symlink() and not target.is_dir():
                    inside = target.parent.resolve().is_relative_to(root.resolve())
                    if inside and target.parent.resolve() == target.parent:
                        target.write_text(f"rank {number}")
                        written[target] = f"rank {number}"
            if restart:
                client = Client(open_workspaces(Path(name)), ID, like=client)
        client.sync({})
        assert {path: path.read_text() for path in written} == written
        client.sync(steps[0][0], overwrite=True)
        assert wanted(steps[0][0]).items() <= disk(root).items()
