"""Pools of hosts: on loopback, and on hosts with a network between them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.hosts.elastic import free, start_again
from integration.hosts.lab import Lab
from integration.hosts.network import Network, why_no_hosts
from integration.live import eventually
from integration.pools import release_all
from leaks import leaks_of
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, POOL_VARIABLE


@contextmanager
def _is_ours(home: Path, config: Path) -> Iterator[None]:
    """Have the pool of hosts there be the one that is meant when none is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(home))
        patch.setenv(CONFIG_VARIABLE, str(config))
        patch.setenv(POOL_VARIABLE, "lab")
        yield


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a module, which the nodes of `apart` do not see."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "model.py").write_text("width = 8\n")
    return directory


def _directories() -> tuple[Path, Path]:
    home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
    return home, Path(tempfile.mkdtemp(prefix="mnb-config-"))


@pytest.fixture
def lab(no_leaks: Callable[[Path], None]) -> Iterator[Lab]:
    """A pool of hosts without nodes, which is the one that is meant when none is named."""
    home, config = _directories()
    with _is_ours(home, config):
        no_leaks(home)
        made = Lab.make(config, home)
        yield made
        made.end()
        shutil.rmtree(config)


@pytest.fixture
def two_nodes(lab: Lab) -> Lab:
    """The same with two nodes of two slots on loopback."""
    lab.start()
    lab.start()
    return lab


@pytest.fixture(scope="session")
def _three() -> Iterator[Lab]:
    home, config = _directories()
    with _is_ours(home, config):
        made = Lab.make(config, home)
        for _ in range(3):
            made.start(procs=1)
    yield made
    with _is_ours(home, config):
        made.end()
    leaks = leaks_of(home)
    shutil.rmtree(config)
    shutil.rmtree(home, ignore_errors=True)  # the last node has removed it
    assert not leaks, "left behind:\n" + "\n".join(leaks)


@pytest.fixture
def three(_three: Lab) -> Iterator[Lab]:
    """Nodes with a slot each, and torch as soon as one test has needed it: at the end those that were killed come back,
    and what is reserved is released, for the next test."""
    with _is_ours(_three.home, _three.config):
        yield _three
        for one in _three.allocators:
            if one.process.poll() is not None:
                start_again(_three, one)
        _three.allocators.sort(key=lambda one: one.node_id)
        release_all()
        eventually(lambda: free() == [1, 1, 1])


@pytest.fixture(scope="session")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if why := why_no_hosts():
        pytest.skip(why)
    home, config = _directories()
    with Network(3) as network:
        with _is_ours(home, config):
            made = Lab.make(config, home)
            for host in network.hosts:
                made.start(host, procs=2, hidden=[tmp_path_factory.getbasetemp()])
        yield made
        with _is_ours(home, config):
            made.end()
    leaks = leaks_of(home)
    shutil.rmtree(config)
    shutil.rmtree(home, ignore_errors=True)
    assert not leaks, "left behind:\n" + "\n".join(leaks)


@pytest.fixture
def apart(_apart: Lab) -> Iterator[Lab]:
    """Three hosts with a network between them, which see no directory of a test; of two slots each, and torch as soon
    as one test has needed it. At the end all reach each other, and nothing is reserved, for the next test."""
    with _is_ours(_apart.home, _apart.config):
        yield _apart
        for one in _apart.allocators:
            assert one.host is not None
            one.host.plug_it_in()
            one.host.pass_on()
        release_all()
        eventually(lambda: free() == [2, 2, 2])


@pytest.fixture
def network(lab: Lab) -> Iterator[Callable[[int], Network]]:
    """Makes a network of so many hosts, for the nodes of `lab`."""
    if why := why_no_hosts():
        pytest.skip(why)
    made: list[Network] = []

    def make(count: int) -> Network:
        made.append(Network(count).__enter__())
        return made[-1]

    yield make
    for one in made:
        for host in one.hosts:
            host.plug_it_in()
            host.pass_on()
    lab.end()
    for one in made:
        one.__exit__()
