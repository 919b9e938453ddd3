"""Removing directories while nobody waits for it."""

import errno
import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from monarch_nb.allocator.files import directories
from monarch_nb.allocator.files.directories import Removal


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full"
    (path / "below").mkdir(parents=True)
    (path / "below" / "file").write_text("x")
    return path


def test_a_directory_is_out_of_the_way_before_its_files_are_gone(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_remove, remove_tree = threading.Event(), directories.shutil.rmtree

    def wait(path: Path, **options: bool) -> None:
        assert may_remove.wait(10)
        remove_tree(path, **options)

    monkeypatch.setattr(directories.shutil, "rmtree", wait)
    removed = Removal(tmp_path / "removed")
    removed.remove(full)
    removed.remove(tmp_path / "never-there")
    assert not full.exists()
    assert len(list(tmp_path.rglob("file"))) == 1
    may_remove.set()
    removed.finish()
    assert list((tmp_path / "removed").iterdir()) == []


def test_what_an_allocator_has_left_goes_with_the_next(full: Path, tmp_path: Path) -> None:
    (tmp_path / "removed").mkdir()
    full.rename(tmp_path / "removed" / "left")
    removed = Removal(tmp_path / "removed")
    removed.resume()
    removed.finish()
    assert list((tmp_path / "removed").iterdir()) == []


def test_a_full_disk_has_no_room_for_another_name(full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", refuse)
    removed = Removal(tmp_path / "removed")
    removed.remove(full)
    removed.finish()
    assert not full.exists()
