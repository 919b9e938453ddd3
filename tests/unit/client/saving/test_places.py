"""Which directory of the ranks a save goes to: one that outlives the reservation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.saving.asking import directory_of_saves
from monarch_nb.errors import UsageError


def reservation(*, copies: bool, shared: str = "") -> Any:
    return SimpleNamespace(shared=shared, files=SimpleNamespace(copies=copies))


def test_the_directory_outlives_the_reservation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of_saves(reservation(copies=False), "a/../b") == str(tmp_path / "b")
    assert directory_of_saves(reservation(copies=True, shared="/data/me"), "a") == "/data/me/a"
    assert directory_of_saves(reservation(copies=True), "/data/x") == "/data/x"
    with pytest.raises(UsageError, match=r"^a: nodes have copies .* as in /data/me/a, or name that storage"):
        directory_of_saves(reservation(copies=True), "a")
