"""Programs of others start sooner without what no test needs."""

from __future__ import annotations

import os
from pathlib import Path

LEFT_OUT = Path(__file__).parents[1] / "left_out"


def lighter_path() -> str:
    """Return the PYTHONPATH with which a program does without it."""
    return os.pathsep.join(filter(None, [str(LEFT_OUT), os.environ.get("PYTHONPATH")]))
