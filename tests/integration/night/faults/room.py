"""What a node can run out of, and what tests take away from it and give back."""

from __future__ import annotations

import os
import resource
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from leaks import wait_for_end

_CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def small_disk(directory: Path, options: str) -> Iterator[None]:
    """Have a file system of its own in a directory.

    Args:
        options: of tmpfs, as "size=32m" or "nr_inodes=500".
    """
    mounting = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(directory)]
    mounted = subprocess.run(mounting, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """No byte more fits into the file system of a directory."""
    path = directory / "fill"
    try:
        with path.open("wb", buffering=0) as file:
            until_full(lambda: file.write(bytes(4096)))
        yield
    finally:
        path.unlink()


@contextmanager
def no_inodes(directory: Path) -> Iterator[None]:
    """No file more fits into the file system of a directory."""
    folder = directory / "fill"
    folder.mkdir()
    try:
        until_full(lambda: (folder / uuid.uuid4().hex).touch())
        yield
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def until_full(take: Callable[[], object]) -> None:
    """Take until there is no more."""
    while True:
        try:
            take()
        except OSError:
            return


@contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """A process can open next to nothing more."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(entry) for entry in os.listdir(f"/proc/{pid}/fd")}
    # Not above the largest one: what was closed below it would be room, as much as there happened to be.
    lowest_free = next(number for number in count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free + 1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def little_memory(pid: int, size_bytes: int) -> Iterator[None]:
    """A process is killed when it takes more memory than this: a cgroup's limit, as of a container or a batch job. It
    must have ended when the block does."""
    group, limit = _memory_cgroup()
    with ExitStack() as stack:
        try:
            group.mkdir()
            stack.callback(group.rmdir)
            (group / limit).write_text(str(size_bytes))
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            pytest.skip(f"no memory limit can be set here: {error}")
        yield
        wait_for_end(pid, 60)


def _memory_cgroup() -> tuple[Path, str]:
    name = f"monarch-nb-test-{uuid.uuid4().hex[:8]}"
    if (_CGROUPS / "memory").is_dir():
        return _CGROUPS / "memory" / name, "memory.limit_in_bytes"
    return _CGROUPS / name, "memory.max"
