"""Python as on a Mac (see macos/sitecustomize.py), for programs of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATH = str(Path(__file__).with_name("macos"))
"""First in PYTHONPATH, it makes any Python one."""
TIMEOUT_S = 120.0
_IS_ONE = """import os, sys
assert sys.platform == "darwin" and not hasattr(os, "pidfd_open") and not os.path.exists("/proc")
"""


def run(code: str, directory: Path | None = None) -> list[str]:
    """Run Python on a Mac; return the lines that it printed."""
    command = [sys.executable, "-c", _IS_ONE + code]
    return said(command, directory)


def environment() -> dict[str, str]:
    """Return the environment of a program whose Python is on a Mac."""
    return {**os.environ, "PYTHONPATH": PATH}


def said(command: list[str], directory: Path | None = None) -> list[str]:
    """Run a program whose Python is on a Mac; return the lines that it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment(), cwd=directory
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "sitecustomize" not in done.stderr, done.stderr
    return done.stdout.splitlines()
