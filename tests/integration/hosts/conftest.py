"""Pools of hosts: on loopback, and on hosts with a network between them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.hosts.elastic import start_again
from lab import Lab
from monarch_nb.config import CONFIG_VARIABLE, HOME_VARIABLE, POOL_VARIABLE
from network import Network, why_no_hosts


@pytest.fixture
def lab(no_leaks: Callable[[Path], None]) -> Iterator[Lab]:
    """A pool of hosts without nodes, which is the one that is meant when none is named."""
    with pytest.MonkeyPatch.context() as patch:
        home = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: socket paths end at 107 bytes
        config = Path(tempfile.mkdtemp(prefix="mnb-config-"))
        patch.setenv(HOME_VARIABLE, str(home))
        patch.setenv(CONFIG_VARIABLE, str(config))
        patch.setenv(POOL_VARIABLE, "lab")
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


@pytest.fixture
def three(lab: Lab) -> Iterator[Lab]:
    """Nodes with a slot each; those that were killed come back at the end."""
    for _ in range(3):
        lab.start(procs=1)
    yield lab
    for one in lab.allocators:
        if one.process.poll() is not None:
            start_again(lab, one)


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
