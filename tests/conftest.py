"""Pools for tests, each in a state directory of its own, and the check that they leave nothing behind."""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

# Set before anything of monarch_nb is imported. Processes that tests start inherit it.
os.environ.setdefault("MONARCH_NB_PATIENCE", "10")

from gpus import FAKE_NVML, FakeGpus
from leaks import leaks_of
from monarch_nb.config import GPU_LOCKS_VARIABLE, HOME_VARIABLE
from monarch_nb.provision import Node
from monarch_nb.provision.local import LocalProvisioner

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--night",
        action="append",
        default=[],
        metavar="PATH",
        help="a folder or file of the night that is collected, too; `tests` for all of them",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What lies in a folder `night` is collected when it is named, or with --night."""
    if not _is_of_the_night(collection_path, config):
        return None
    named = [path for arg in config.args if _is_of_the_night(path := _path_of(arg, config), config)]
    chosen = [*named, *_nights(config)]
    if any(each in (collection_path, *collection_path.parents) or collection_path in each.parents for each in chosen):
        return None
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _refused_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _refused_if_skipped((yield))


def pytest_configure(config: pytest.Config) -> None:
    """A suite that a script starts with `&` ignores Ctrl-C; the tests' clients would inherit that.

    Thousands of processes import the package. It is compiled once, also where PYTHONDONTWRITEBYTECODE keeps them from
    doing it, each for itself again."""
    if missing := [str(path) for path in _nights(config) if not path.exists()]:
        raise pytest.UsageError(f"--night takes a folder or file that is there, not {', '.join(missing)}")
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "monarch_nb", quiet=2)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("untimed", deadline=None)  # the machine may be busy with other things
    hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def gpu_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where pools of this process say which GPUs they lease: all stand-ins have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("locks") / "gpus"
        patch.setenv(GPU_LOCKS_VARIABLE, str(directory))
        yield directory
        assert not directory.exists() or not list(directory.iterdir()), "GPUs are still leased"


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[Callable[[Path], None]]:
    """Fail a test whose pool left something; called with the home of each pool of the test."""
    homes: list[Path] = []
    yield homes.append
    _assert_nothing_left(homes)


@pytest.fixture
def pool_home(no_leaks: Callable[[Path], None]) -> Iterator[Path]:
    """A state directory for this test alone; what runs in it at the end is taken down."""
    with pytest.MonkeyPatch.context() as patch:
        home = _make_home(patch)
        no_leaks(home)
        yield home
        LocalProvisioner().down(force=True)


@pytest.fixture
def fake_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """8 GPUs, whose readings move, on the first node of a pool that the test starts."""
    found_first = os.pathsep.join(filter(None, [str(FAKE_NVML), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", found_first)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "gpus.json"))
    return FakeGpus(tmp_path / "gpus.json")


@pytest.fixture(scope="session")
def shared_home() -> Iterator[Path]:
    """The state directory of `shared_pool`."""
    with pytest.MonkeyPatch.context() as patch:
        home = _make_home(patch)
        yield home
        LocalProvisioner().down(force=True)
    _assert_nothing_left([home])


@pytest.fixture(scope="session")
def shared_pool(shared_home: Path) -> list[Node]:
    """A pool of 2 nodes × 4 procs for the whole session, which every test leaves as it found it: nothing reserved."""
    return LocalProvisioner().up(nodes=2, procs=4)


def _path_of(arg: str, config: pytest.Config) -> Path:
    """The file or folder that an argument of the command line names."""
    return (config.invocation_params.dir / arg.partition("::")[0]).resolve()


def _nights(config: pytest.Config) -> list[Path]:
    return [_path_of(each, config) for each in config.getoption("night")]


def _is_of_the_night(path: Path, config: pytest.Config) -> bool:
    return path.is_relative_to(config.rootpath) and "night" in path.relative_to(config.rootpath).parts


def _make_home(patch: pytest.MonkeyPatch) -> Path:
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    patch.setenv(HOME_VARIABLE, str(home))
    return home


def _assert_nothing_left(homes: list[Path]) -> None:
    leaks = [leak for home in homes for leak in leaks_of(home)]
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)
    assert not leaks, "left behind:\n" + "\n".join(leaks)


def _refused_if_skipped(report: _Report) -> _Report:
    """Have what was skipped, or is expected to fail, fail where nothing may be skipped: nobody looks at green skips."""
    if report.skipped and os.environ.get("MONARCH_NB_NO_SKIPS", "0") != "0":
        place, line, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.nodeid, 0, "xfail")
        allowed = tomllib.loads((Path(__file__).parent / "skips.toml").read_text())
        if not any(each in reason for each in allowed):
            report.outcome = "failed"
            report.longrepr = f"{place}:{line}: {reason}\nNothing is skipped here but what tests/skips.toml allows."
    return report
