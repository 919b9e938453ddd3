"""Processes with another Python than the reservation's: `HostMesh.with_python_executable`."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S
from monarch_nb.actor import Actor, endpoint, this_host
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import SpawnError

pytestmark = pytest.mark.shape(nodes=2, procs=1, preload=[])

Python = tuple[str, str]


def teller() -> type[Actor]:
    """Return a class that ranks need not import: this module is not theirs."""

    class Tells(Actor):
        @endpoint
        def python(self) -> Python:
            return sys.executable, sys.prefix

        @endpoint
        def inner(self) -> list[Python]:
            """Of processes that are started from here."""
            procs = this_host().spawn_procs({"procs": 1}, name="inner")
            found: list[Python] = procs.spawn("tells", Tells).python.call().get(60).values()
            procs.stop().get(60)
            return found

    return Tells


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without packages."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, symlinks=True)
    return directory


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, that has what this one has."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    [packages] = directory.glob("lib/python*/site-packages")
    (packages / "as_here.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    return directory


def test_processes_have_that_python_and_pass_it_on(dev: Reservation, environment: Path) -> None:
    python = str(environment / "bin" / "python")
    procs = dev.hosts.with_python_executable(python).spawn_procs({"gpus": 2})
    tells = procs.spawn("tells", teller())
    assert tells.python.call().get(TIMEOUT_S).values() == [(python, str(environment))] * 4
    assert tells.slice(hosts=1, gpus=0).inner.call_one().get(TIMEOUT_S) == [(python, str(environment))]
    usual = dev.hosts.spawn_procs()
    assert usual.spawn("tells", teller()).python.call().get(TIMEOUT_S).values() == [(sys.executable, sys.prefix)] * 2
    for each in (procs, usual):
        each.stop().get(TIMEOUT_S)


def test_a_path_of_no_python_says_so(dev: Reservation) -> None:
    python, says = "/bin/cat", r"template process of /bin/cat did not start: is it a Python\?"
    procs = dev.hosts.with_python_executable(python).spawn_procs({"gpus": 2})
    with pytest.raises(SpawnError, match=says):
        procs.initialized.get(TIMEOUT_S)
    with pytest.raises(SpawnError, match=says):
        procs.spawn("tells", teller())


def test_a_python_without_what_ranks_need_says_so(dev: Reservation, bare: Path) -> None:
    procs = dev.hosts.with_python_executable(bare / "bin" / "python").spawn_procs()
    with pytest.raises(SpawnError, match=r"it has no \S+, which ranks need: \S+/bin/python -m pip install monarch"):
        procs.initialized.get(TIMEOUT_S)
