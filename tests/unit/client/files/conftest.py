"""A tree of files on this computer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.client.files import local_tree
from monarch_nb.client.files.local_tree import LocalTree
from monarch_nb.client.files.project import Settings
from unit.client.files.trees import Make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "parent" / "root"
    root.mkdir(parents=True)
    return root


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A directory beside the project."""
    (library := tmp_path / "library").mkdir()
    (library / "code.py").write_text("code")
    return library


@pytest.fixture
def tree_of(root: Path) -> Iterator[Make]:
    made: list[LocalTree] = []

    def make(**settings: object) -> LocalTree:
        made.append(LocalTree(root, Settings(root, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for tree in made:
        tree.close()


@pytest.fixture(params=["watched", "scanned"])
def tree(request: pytest.FixtureRequest, tree_of: Make, monkeypatch: pytest.MonkeyPatch) -> LocalTree:
    """One whose file system tells of changes, and one whose does not."""
    if request.param == "scanned":
        monkeypatch.setattr(local_tree, "why_not_watchable", lambda _: "it is nfs4")
    return tree_of()
