"""Why a file of this computer is not on the nodes, for whoever misses it there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.files.tree import printable

if TYPE_CHECKING:
    from monarch_nb.client.files.local_tree import LocalTree

_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")


def why_missing(message: str, workspace: str, trees: Mapping[str, LocalTree]) -> str:
    """Return a line that says which file a message of a FileNotFoundError names that sync left out; "" for none.

    Args:
        workspace: how the directories of copies end, on any node.
        trees: what is synced, by its name in the workspace.
    """
    for single, double in _QUOTED.findall(message):
        for tree, path in _places(single or double, workspace, trees):
            why = tree.why_left_out(os.fsencode(path))
            if why and os.path.lexists(tree.root / path):
                return f"{printable(os.fsencode(path))} is not on the nodes: {why}"
    return ""


def _places(name: str, workspace: str, trees: Mapping[str, LocalTree]) -> Iterator[tuple[LocalTree, str]]:
    """Yield where a file would be here, by a name that it has here or there."""
    _, _, below = name.partition(f"{workspace}{os.sep}")
    mount, _, rest = below.partition(os.sep)
    if below and mount in trees:
        yield trees[mount], rest
    elif below and "" in trees:
        yield trees[""], below
    else:
        here = Path(os.path.abspath(name))  # ranks begin where the notebook is
        for tree in trees.values():
            if here.is_relative_to(tree.root):
                yield tree, str(here.relative_to(tree.root))
