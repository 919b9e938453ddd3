"""Three accounts, and a warden of their own for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.night.warden.wardens import UNIFIED, RealWarden, accounts, skip_unless_possible


@pytest.fixture(scope="session")
def people() -> Iterator[list[str]]:
    """Three accounts, and one for gateways."""
    skip_unless_possible()
    with accounts("a", "b", "c", "gate") as names:
        yield names


@pytest.fixture
def cgroup() -> Path:
    if not (UNIFIED / "cgroup.procs").exists() or not os.access(UNIFIED, os.W_OK):
        pytest.skip(f"there is no cgroup v2 at {UNIFIED} for tests")
    return UNIFIED / f"mnb-test-{os.getpid()}"


@pytest.fixture
def start(people: list[str]) -> Iterator[Callable[..., RealWarden]]:
    """Starts wardens, and ends them."""
    started: list[RealWarden] = []

    def start(cgroup: Path | None = None, users: str = "") -> RealWarden:
        started.append(RealWarden(people[3], cgroup=cgroup, users=users))
        return started[-1]

    yield start
    for warden in started:
        warden.close()
