"""Memory in huge pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import mmap
from pathlib import Path
from monarch_nb.worker.forking import huge_pages

def huge_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))

before = huge_bytes()
block = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = b"x" * len(block)
huge_pages.collapse()
assert block[:] == b"x" * len(block)
print(huge_bytes() - before)
"""


def test_what_is_allocated_is_put_into_them() -> None:
    release = tuple(map(int, platform.release().split(".")[:2]))
    if release < (6, 1) or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel does not do it")
    told = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) >= 8 << 20
