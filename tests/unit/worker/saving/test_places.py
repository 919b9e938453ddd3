"""The directories of saves: one appears when it is whole, and the newest stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb.errors import SaveError
from monarch_nb.worker.saving import manifest


def make(directory: Path, name: str = "a", mesh: str = "mesh") -> Path:
    hidden = manifest.begin(directory, name, mesh)
    (hidden / manifest.MANIFEST).write_text("{}")
    return hidden


def test_a_save_appears_when_it_is_whole(tmp_path: Path) -> None:
    directory = tmp_path / "x" / "a"
    hidden = make(directory)
    assert (manifest.saves(directory), manifest.unfinished(directory)) == ([], [hidden])
    assert manifest.commit(hidden) == directory / "0001"
    assert [each.name for each in manifest.saves(directory)] == ["0001"]
    assert [each.stat().st_mode & 0o777 for each in (directory, directory / "0001")] == [0o700] * 2


def test_numbers_go_on_and_the_newest_stay(tmp_path: Path) -> None:
    (tmp_path / "9999").mkdir()
    (tmp_path / "notes").mkdir()
    made = [manifest.commit(make(tmp_path, str(number))) for number in range(4)]
    assert [each.name for each in made] == ["10000", "10001", "10002", "10003"]
    assert manifest.prune_among(tmp_path, 2) == made[:2]
    assert sorted(os.listdir(tmp_path)) == ["10002", "10003", "9999", "notes"], "what is no save stays"
    assert manifest.find(tmp_path) == made[3]
    assert manifest.find(made[2]) == made[2]


def test_what_was_cut_short_goes_with_the_next(tmp_path: Path) -> None:
    make(tmp_path, "cut")
    other = make(tmp_path, "b", "other mesh")
    old = make(tmp_path, "c", "gone mesh")
    for each in (old, *old.iterdir()):
        os.utime(each, (1, 1))
    (tmp_path / ".removing-0001").mkdir()
    hidden = make(tmp_path, "d")
    assert set(manifest.unfinished(tmp_path)) == {other, hidden}, "another mesh may still be writing"
    assert not (tmp_path / ".removing-0001").exists()


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="there is no /"):
        manifest.find(tmp_path / "nothing")
    manifest.commit(make(tmp_path / "a"))
    with pytest.raises(SaveError, match=r"no save to load in /.*; there are saves in /.*/a"):
        manifest.find(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"can not save in /.*/file: "):
        manifest.begin(tmp_path / "file", "a", "mesh")
