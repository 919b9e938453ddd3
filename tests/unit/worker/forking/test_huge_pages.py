"""Memory in huge pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from thp import huge_bytes, why_none

_PROGRAM = """
import mmap
from monarch_nb.worker.forking import huge_pages

block = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = b"x" * len(block)
input()
for _ in huge_pages.collapse():
    pass
assert block[:] == b"x" * len(block)
print("collapsed", flush=True)
input()
"""


def test_what_is_allocated_is_put_into_them() -> None:
    if why := why_none():
        pytest.skip(why)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = huge_bytes(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "collapsed\n"
        assert huge_bytes(process.pid) - before >= 8 << 20
        process.stdin.write("\n")
