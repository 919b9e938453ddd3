"""Which tests run in one process, and in which order such groups begin: those that take longest begin first.

A `conftest.py` that imports the two hooks has them.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).parent / "durations.toml"
"""How long each scope took, in seconds of one process: `make test-all` writes it."""
_KINDS = ("integration", "e2e", "unit")
_TOGETHER = ("notebook", "tree")
"""In the names of files of few tests, which share a pool."""


class ByPlace(LoadScopeScheduling):
    """The tests of a file run in one process, and so do those of a folder: they share what takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return what a test's process is shared by: a folder below `integration`, else a file. What lies in the `night` of
    a folder belongs to that folder."""
    file = Path(nodeid.partition("::")[0])
    folder = file.parent.parent if file.parent.name == "night" else file.parent
    if folder.name not in _KINDS:
        return str(folder)
    return next((each for each in _TOGETHER if each in file.stem and folder.name == "integration"), str(file))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByPlace:
    config.option.loadscopereorder = False  # by number of tests
    return ByPlace(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by how long their scopes took; one that is not known may take long."""
    items.sort(key=lambda item: -_durations().get(scope_of(item.nodeid), 60.0))


@cache
def _durations() -> dict[str, float]:
    return tomllib.loads(DURATIONS.read_text())
