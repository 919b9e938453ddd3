"""torchmonarch for tests, in a virtual environment of its own (see scripts/monarch_venv.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from integration.live import Client


@cache
def _found() -> Path | None:
    python = Path(sys.prefix) / "monarch" / "bin" / "python"
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('monarch._rust_bindings') is None)"
    if python.exists() and subprocess.run([str(python), "-c", look], check=False).returncode == 0:
        return python
    return None


def monarch_python() -> Path:
    """Return the Python that has torchmonarch and everything of ours; without one, the test is skipped."""
    if (python := _found()) is None:
        pytest.skip("there is no torchmonarch (make install has it in .venv/monarch, where it has a wheel)")
    return python


class Program(Client):
    """A program of Monarch's, in the Python that has it."""

    def __init__(self, code: str, directory: Path, linger: str = '"10m"') -> None:
        super().__init__(code.replace("LINGER", linger), monarch_python(), directory)
        self._said: list[str] = []

    def told(self) -> dict[str, Any]:
        """What it prints as JSON next, past what actors print."""
        while not (line := self.line()).startswith("{"):
            self._said.append(line)
        self._said.append(line)
        told: dict[str, Any] = json.JSONDecoder().raw_decode(line)[0]  # behind it an actor may print at once
        return told

    def go_on(self) -> None:
        """Answer its `input()`."""
        self.tell()

    def end(self) -> str:
        """Let it read to the end; return all that it has printed."""
        return "\n".join([*self._said, self.finish()])

    def kill(self) -> None:
        self.close()
