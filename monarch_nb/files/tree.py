"""Trees of files as both sides know them: entries by path, checked before use, and the difference between two."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from monarch_nb.errors import UsageError
from monarch_nb.files.content import HASH_BYTES
from monarch_nb.proto.files_pb2 import TreeChange, TreeEntry

Tree = Mapping[bytes, TreeEntry]
"""Entries by path. A directory has an entry of its own; so has each of its parents."""

MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 255


def printable(path: bytes) -> str:
    """Return a path as it is shown: what is no text, and what would break a line, escaped.

    Example:
        >>> printable(b"a/new\\nline"), printable(b"caf\\xe9.txt")
        ('a/new\\\\nline', 'caf\\\\xe9.txt')
    """
    text = path.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def check_path(path: bytes) -> None:
    """Refuse what is not a plain path below a root: absolute, `..`, `.`, empty names, NUL, too long.

    Raises:
        UsageError: it is not.
    """
    names = path.split(b"/")
    if not path or b"\0" in path or len(path) > MAX_PATH_BYTES:
        raise UsageError(f"bad path {printable(path[:200])!r} in a tree")
    if any(name in (b"", b".", b"..") or len(name) > _MAX_NAME_BYTES for name in names):
        raise UsageError(f"bad path {printable(path)!r} in a tree: it must stay below the tree's root")


def link_leaves(path: bytes, target: bytes) -> bool:
    """Return whether a link at `path` points outside of the tree.

    Example:
        >>> link_leaves(b"a/b", b"../c"), link_leaves(b"a/b", b"../../c"), link_leaves(b"a", b"/etc")
        (False, True, True)
    """
    if target.startswith(b"/") or not target:
        return True
    depth = path.count(b"/")
    for name in target.split(b"/"):
        depth += -1 if name == b".." else 0 if name in (b"", b".") else 1
        if depth < 0:
            return True
    return False


def check_mount(name: str) -> None:
    """Refuse a name that a tree beside the notebook's can not have in a workspace.

    Raises:
        UsageError: it can not.
    """
    if "/" in name or name.startswith("."):
        raise UsageError(f"{name!r} is no name in a workspace: one plain name, without a dot before it")
    check_path(os.fsencode(name))


def check_change(change: TreeChange) -> None:
    """Refuse a change that could touch anything outside its tree, or that contradicts itself.

    Raises:
        UsageError: it names what is wrong.
    """
    if change.mount:
        check_mount(change.mount)
    for path in change.removed:
        check_path(path)
    for entry in change.changed:
        check_path(entry.path)
        _check_entry(entry)


def _check_entry(entry: TreeEntry) -> None:
    shown = printable(entry.path)
    if entry.mode & ~0o777:
        raise UsageError(f"bad mode {entry.mode:o} of {shown!r}: permission bits only")
    if entry.kind == TreeEntry.KIND_SYMLINK:
        if b"\0" in entry.target or link_leaves(entry.path, entry.target):
            raise UsageError(f"the link {shown!r} leaves its tree")
    elif entry.kind == TreeEntry.KIND_FILE:
        if len(entry.hash) != HASH_BYTES:
            raise UsageError(f"{shown!r} is a file without a hash")
    elif entry.kind != TreeEntry.KIND_DIRECTORY:
        raise UsageError(f"{shown!r} is neither a file nor a directory nor a link")


def difference(old: Tree, new: Tree) -> tuple[list[TreeEntry], list[bytes]]:
    """Return the entries of `new` that are not the same in `old`, and the paths of `old` that `new` has not.

    A directory's time is no difference.
    """
    changed = [entry for path, entry in new.items() if (before := old.get(path)) is None or not same(before, entry)]
    return changed, [path for path in old if path not in new]


def same(one: TreeEntry, other: TreeEntry) -> bool:
    """Return whether two entries of one path make the same name in a file system."""
    return _facts(one) == _facts(other)


def _facts(entry: TreeEntry) -> tuple[Any, ...]:
    if entry.kind == TreeEntry.KIND_FILE:
        return entry.kind, entry.mode, entry.size_bytes, entry.modified_ns, entry.hash
    return entry.kind, entry.mode, entry.target


def apply_change(tree: dict[bytes, TreeEntry], change: TreeChange) -> None:
    """Make `tree` what it is after `change`."""
    if change.whole:
        tree.clear()
    for path in change.removed:
        tree.pop(path, None)
    for entry in change.changed:
        tree[entry.path] = entry
