"""What tests of synced files share: the copies that the nodes of a local pool have, read without asking anybody."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.config import NodePaths
from monarch_nb.provision.local import LocalProvisioner

Names = dict[bytes, tuple[object, ...]]
_NO_CONTENT = (b"__pycache__", b".git")


def copies(reservation: Reservation) -> list[Path]:
    """Return where each node's copy lies, in the order of the nodes."""
    paths = [NodePaths(node.directory).workspaces for node in LocalProvisioner().nodes()]
    return [path / reservation.id / "tree" for path in paths]


def names_in(root: Path) -> Names:
    """Return all that lies in a tree: by path, what it is, its mode, and its content."""
    found: Names = {}
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        for name in os.listdir(os.path.join(os.fsencode(root), path)):
            if name in _NO_CONTENT:
                continue
            below = os.path.join(path, name)
            full = os.path.join(os.fsencode(root), below)
            facts = os.lstat(full)
            mode = stat.S_IMODE(facts.st_mode)
            if stat.S_ISLNK(facts.st_mode):
                found[below] = ("link", os.readlink(full))
            elif stat.S_ISDIR(facts.st_mode):
                found[below] = ("directory", mode)
                waiting.append(below)
            else:
                found[below] = ("file", mode, Path(os.fsdecode(full)).read_bytes())
    return found


def assert_same(reservation: Reservation, project: Path) -> None:
    """Every node has what the project has: all of it, and nothing else."""
    expected = names_in(project)
    for copy in copies(reservation):
        found = names_in(copy)
        assert found.keys() == expected.keys()
        assert [path for path in expected if found[path] != expected[path]] == []


def module(value: object) -> str:
    """Return the text of a module whose `value()` returns `value`."""
    return f"def value():\n    return {value!r}\n"
