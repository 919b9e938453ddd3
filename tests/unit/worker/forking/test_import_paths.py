"""What a process that was forked has on `sys.path`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch_nb.worker import imports


@pytest.fixture(autouse=True)
def unlearned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_own", [])


@pytest.mark.parametrize("program", [None, "exit 1", "kill -9 $$", "exec sleep 1000"])
def test_an_interpreter_that_does_not_start_leaves_the_paths_of_the_template(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(imports, "_ASK_TIMEOUT_S", 0.5)
    imports.learn_paths()
    here = sys.path if sys.flags.safe_path else sys.path[1:]
    assert imports.paths_of({}) == here
