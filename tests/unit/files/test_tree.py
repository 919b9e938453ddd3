"""A tree can not reach outside its root, and knows how it differs from another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.errors import UsageError
from monarch_nb.files.content import new_hash
from monarch_nb.files.tree import apply_change, check_change, difference, link_leaves, printable
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry


def file(path: bytes, content: bytes = b"x", mode: int = 0o644, modified_ns: int = 1) -> TreeEntry:
    return TreeEntry(
        path=path,
        kind=TreeEntry.KIND_FILE,
        mode=mode,
        size_bytes=len(content),
        modified_ns=modified_ns,
        hash=new_hash(content).digest(),
    )


def link(path: bytes, target: bytes) -> TreeEntry:
    return TreeEntry(path=path, kind=TreeEntry.KIND_SYMLINK, mode=0o777, target=target)


class TestCheck:
    @pytest.mark.parametrize("path", [b"a", b"a/b", b"a\nb", b"caf\xe9", b"..a", b"a..", b"...", b" "])
    def test_paths_below_the_root(self, path: bytes) -> None:
        check_change(TreeChange(changed=[file(path)], removed=[path]))

    @pytest.mark.parametrize(
        "path", [b"", b"/a", b"..", b"a/..", b"../a", b"a/../b", b"a//b", b"a/", b".", b"./a", b"a\0b", b"n" * 300]
    )
    def test_paths_that_are_refused(self, path: bytes) -> None:
        with pytest.raises(UsageError, match="bad path"):
            check_change(TreeChange(changed=[file(path)]))
        with pytest.raises(UsageError, match="bad path"):
            check_change(TreeChange(removed=[path]))

    def test_links_that_leave(self) -> None:
        for target in (b"/etc/passwd", b"..", b"../x", b"a/../../x", b"", b"x\0y"):
            with pytest.raises(UsageError, match="leaves its tree"):
                check_change(TreeChange(changed=[link(b"a", target)]))
        check_change(TreeChange(changed=[link(b"a/b", b"../c"), link(b"d", b"a/b"), link(b"loop", b"loop")]))

    def test_other_facts_that_are_refused(self) -> None:
        entry = file(b"a")
        entry.hash = b"short"
        for change, said in (
            (TreeChange(changed=[entry]), "'a' is a file without a hash"),
            (TreeChange(changed=[file(b"a", mode=0o4755)]), "bad mode 4755"),
            *[(TreeChange(mount=mount), "no name in a workspace") for mount in ("../x", "a/b", ".x")],
        ):
            with pytest.raises(UsageError, match=said):
                check_change(change)


@given(st.lists(st.sampled_from([b"..", b".", b"a", b"b", b""]), min_size=1, max_size=6))
def test_link_leaves_agrees_with_walking_it(names: list[bytes]) -> None:
    import posixpath

    target = b"/".join(names)
    if not target or target.startswith(b"/"):
        assert link_leaves(b"d/l", target)
        return
    depth, left = 1, False
    for name in names:
        depth += {b"..": -1, b".": 0, b"": 0}.get(name, 1)
        left = left or depth < 0
    assert link_leaves(b"d/l", target) == left
    if not left:
        assert not posixpath.normpath(b"d/" + target).startswith(b"..")


class TestDifference:
    def test_change_makes_one_the_other(self) -> None:
        old = {e.path: e for e in (file(b"same"), file(b"edited", b"1"), file(b"gone"), file(b"x", mode=0o644))}
        new = {e.path: e for e in (file(b"same"), file(b"edited", b"2"), file(b"new"), file(b"x", mode=0o755))}
        changed, removed = difference(old, new)
        assert [entry.path for entry in changed] == [b"edited", b"new", b"x"]
        assert removed == [b"gone"]
        apply_change(old, TreeChange(changed=changed, removed=removed))
        assert difference(old, new) == ([], [])

    def test_whole_and_times_of_directories(self) -> None:
        old = {b"gone": file(b"gone")}
        apply_change(old, TreeChange(whole=True, changed=[file(b"new")]))
        assert list(old) == [b"new"]
        one, other = (TreeEntry(path=b"d", kind=TreeEntry.KIND_DIRECTORY, mode=0o755, modified_ns=ns) for ns in (1, 2))
        assert difference({b"d": one}, {b"d": other}) == ([], [])


@pytest.mark.parametrize(
    ("path", "shown"),
    [(b"plain/\xc3\xa9", "plain/é"), (b"a\nb", "a\\nb"), (b"\xff", "\\xff"), (b"a\x1b[31m", "a\\x1b[31m")],
)
def test_printable(path: bytes, shown: str) -> None:
    assert printable(path) == shown
