"""torchmonarch for tests, in a virtual environment of its own (see scripts/monarch_venv.py)."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


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
