"""torchmonarch for tests, in a virtual environment of its own (see scripts/monarch_venv.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 60.0


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


class Program:
    """A program of Monarch's, in the Python that has it."""

    def __init__(self, code: str, directory: Path, linger: str = '"10m"') -> None:
        self._said: list[str] = []
        self.process = subprocess.Popen(
            [str(monarch_python()), "-c", code.replace("LINGER", linger)],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self) -> dict[str, Any]:
        """What it prints as JSON next, past what actors print."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.append(line)
            if line.startswith("{"):
                told: dict[str, Any] = json.JSONDecoder().raw_decode(line)[0]  # behind it an actor may print at once
                return told
        assert self.process.stderr is not None
        raise AssertionError(f"the program said nothing more: {self.process.stderr.read()}")

    def go_on(self) -> None:
        """Answer its `input()`."""
        self.tell("")

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Let it read to the end; return all that it has printed."""
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        return "".join([*self._said, rest])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
