"""The content of files of a tree, on real directories."""

import os
import random
from pathlib import Path

import pytest

from monarch_nb.client.files.local_tree import FileChanged, LocalTree
from monarch_nb.files.content import PIECE_BYTES
from unit.client.files.trees import Make, holds


def test_a_big_file_comes_in_pieces(tree: LocalTree, root: Path) -> None:
    data = random.Random(4).randbytes(2 * PIECE_BYTES + 5)
    (root / "file").write_bytes(data)
    (root / "empty").touch()
    entries = tree.refresh().entries
    assert holds(entries[b"file"], data)
    pieces = list(tree.content(entries.values()))
    assert [(piece.path, piece.offset) for piece in pieces] == [(b"file", n * PIECE_BYTES) for n in range(3)]
    assert b"".join(piece.data for piece in pieces) == data


@pytest.mark.parametrize("how", ["edited", "deleted", "shorter", "a link"])
def test_content_that_is_not_there_any_more(tree: LocalTree, root: Path, how: str) -> None:
    file = root / "file"
    file.write_text("content")
    (entry,) = tree.refresh().changed
    (root / "other").write_text("content")
    if how == "edited":
        file.write_text("CONTENT")
    elif how == "shorter":
        file.write_text("con")
    else:
        file.unlink()
    if how == "a link":
        file.symlink_to("other")
    with pytest.raises(FileChanged):
        list(tree.content([entry]))


def test_a_change_that_nothing_told_is_found_after_content_failed(tree_of: Make, root: Path, tmp_path: Path) -> None:
    (root / "file").write_text("content")
    os.link(root / "file", tmp_path / "elsewhere")
    tree = tree_of()
    (entry,) = tree.refresh().changed
    (tmp_path / "elsewhere").write_text("CONTENT")
    with pytest.raises(FileChanged):
        list(tree.content([entry]))
    assert holds(tree.refresh().entries[b"file"], b"CONTENT")
