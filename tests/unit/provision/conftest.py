"""Stand-ins for the commands of engines."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a stand-in for a command first in the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, shell: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{shell}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make
