"""Which tests run in one process, and in which order such groups begin: those that take longest begin first.

A `conftest.py` has the hooks that it imports.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).parent / "durations.toml"
"""How long each scope took, in seconds of one process; a run of everything writes it. Scopes of less than 5 s are left
out."""
_KINDS = ("integration", "e2e", "unit")
_TOGETHER = ("notebook", "tree")
"""In the names of files of few tests, which share a pool."""
_took_s: Counter[str] = Counter()


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
    return next((f"{folder}/{each}" for each in _TOGETHER if each in file.stem), str(file))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByPlace:
    config.option.loadscopereorder = False  # by number of tests
    return ByPlace(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by how long their scopes took."""
    took_s = tomllib.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -took_s.get(scope_of(item.nodeid), 0))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _took_s[scope_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down how long scopes took, where everything ran."""
    if _took_s and session.config.getoption("night") == ["tests"] and not hasattr(session.config, "workerinput"):
        kind = str(session.config.args[0])
        others = {scope: s for scope, s in tomllib.loads(DURATIONS.read_text()).items() if not scope.startswith(kind)}
        rows = others | {scope: round(s) for scope, s in _took_s.items() if s >= 5}
        DURATIONS.write_text(
            "".join(f'"{scope}" = {s}\n' for scope, s in sorted(rows.items(), key=lambda row: -row[1]))
        )
