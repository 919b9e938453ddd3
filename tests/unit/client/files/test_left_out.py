"""Which file a rank misses because sync left it out."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.client.files.local_tree import LocalTree, why_missing
from monarch_nb.client.files.project import Settings
from unit.client.files.trees import write

WORKSPACE = "/workspaces/1f/tree"


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[dict[str, LocalTree]]:
    """The project and a library beside it, as they were synced."""
    project, library = tmp_path / "project", tmp_path / "library"
    write(project, {".meshignore": "data/\n", "data/a.csv": "", "model.py": "", "large.bin": "12345", "x.ipynb": ""})
    write(library, {".meshignore": "*.bin\n", "t.bin": ""})
    made = {
        "": LocalTree(project, Settings(project, max_file_bytes=4)),
        "library": LocalTree(library, Settings(library)),
    }
    for tree in made.values():
        tree.refresh()
    yield made
    for tree in made.values():
        tree.close()


def missed(name: str, trees: dict[str, LocalTree]) -> str:
    return why_missing(str(FileNotFoundError(2, os.strerror(2), name)), WORKSPACE, trees)


def test_is_named_as_it_is_called_here_or_there(
    trees: dict[str, LocalTree], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trees[""].root)
    said = "data/a.csv is not on the nodes: sync leaves data/ out, which .meshignore names; the line !/data/ in "
    for name in ("data/a.csv", f"{trees[''].root}/data/a.csv", f"/tmp/n{WORKSPACE}/data/a.csv"):
        assert missed(name, trees) == f"{said}.meshignore sends it"
    assert missed(f"/tmp/n{WORKSPACE}/library/t.bin", trees).startswith("t.bin is not on the nodes: sync leaves t.bin")
    assert missed("../library/t.bin", trees).startswith("t.bin is not on the nodes")


def test_other_reasons(trees: dict[str, LocalTree], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trees[""].root)
    assert "large.bin is not on the nodes: it has 5 B; max-file-size in pyproject.toml's" in missed("large.bin", trees)
    assert "sync leaves x.ipynb out, as notebooks and caches" in missed("x.ipynb", trees)


@pytest.mark.parametrize("name", ["model.py", "data/none.csv", "none", "/", ".", "", "/etc/passwd", "..", WORKSPACE])
def test_of_other_files_nothing_is_said(
    name: str, trees: dict[str, LocalTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trees[""].root)
    assert missed(name, trees) == ""
