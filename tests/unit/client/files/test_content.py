"""The content of files of a tree, in chunks, on real directories."""

import os
import random
from pathlib import Path

import pytest

from monarch_nb.client.files import reading
from monarch_nb.client.files.local_tree import FileChanged, LocalTree
from monarch_nb.files.chunks import hash_of
from monarch_nb.files.tree import chunk_hashes
from unit.client.files.trees import Make, holds


@pytest.mark.parametrize("edit", ["insert", "replace", "append", "cut off", "in front", "twice"])
def test_an_edited_big_file_has_the_chunks_of_its_content(
    tree: LocalTree, root: Path, edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held before only saves work."""
    monkeypatch.setattr(reading, "_WINDOW_BYTES", 3 << 20)
    data = random.Random(4).randbytes(12_000_000)
    (root / "file").write_bytes(data)
    before = tree.refresh().entries[b"file"]
    half = len(data) // 2
    data = {
        "insert": data[:half] + b"a line\n" + data[half:],
        "replace": data[:half] + b"a line\n" + data[half + 7 :],
        "append": data + b"a line\n",
        "cut off": data[: half + 5],
        "in front": b"a line\n" + data,
        "twice": data + data,
    }[edit]
    (root / "file").write_bytes(data)
    after = tree.refresh().entries[b"file"]
    assert holds(after, data)
    new = set(chunk_hashes(after)) - set(chunk_hashes(before))
    assert len(new) <= 3


@pytest.mark.parametrize("how", ["edited", "deleted", "shorter", "a link"])
def test_content_that_is_not_there_any_more(tree: LocalTree, root: Path, how: str) -> None:
    file = root / "file"
    file.write_text("content")
    name = hash_of(b"content")
    tree.refresh()
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
        list(tree.content([name]))
    tree.refresh()
    assert list(tree.content([name])) == [(name, b"content")], "another file has it"


def test_a_change_that_nothing_told_is_found_after_content_failed(tree_of: Make, root: Path, tmp_path: Path) -> None:
    (root / "file").write_text("content")
    os.link(root / "file", tmp_path / "elsewhere")
    tree = tree_of()
    tree.refresh()
    (tmp_path / "elsewhere").write_text("CONTENT")
    with pytest.raises(FileChanged):
        list(tree.content([hash_of(b"content")]))
    assert holds(tree.refresh().entries[b"file"], b"CONTENT")
