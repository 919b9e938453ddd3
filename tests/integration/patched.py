"""Allocators that differ from what is installed: what `sitecustomize` says is done at the start of each Python."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def patch_allocators(patch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Have allocators that are started from now on execute code first. This process does not."""
    directory.mkdir(exist_ok=True)
    guarded = "\n".join(f"    {line}" for line in code.splitlines())
    (directory / "sitecustomize.py").write_text(f"import sys\nif 'monarch_nb.allocator' in sys.orig_argv:\n{guarded}\n")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")])))
