"""Hosts that let nothing but ssh through: their allocators are reached inside it, and again after it broke."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import psutil
import pytest

import mac
from integration.live import eventually
from integration.night.ssh.sshd import SshLab
from integration.ways import ALL_REDUCE
from monarch_nb.cli.main import main
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import SSH_VARIABLE
from monarch_nb.trust.pools import paths_of, read_all_hosts


def tunnels() -> list[int]:
    """Return the processes of this one that carry connections."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # another ssh that has just ended
            if "-W" in child.cmdline():
                found.append(child.pid)
    return found


@pytest.mark.slow
def test_cells_run_through_ssh_and_the_way_comes_back(
    make_lab: Callable[..., SshLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(2)
    lab.fence("lab-1")
    dev = reserve("dev", nodes=2, procs=1, on="ssh:lab")
    ways = {host.name: host.tunnel for host in read_all_hosts(paths_of("ssh-lab-dev")).ssh}
    assert ways == {"lab-1": True, "lab-2": False}, "who is reached without ssh is"
    assert dev.mesh.run(ALL_REDUCE).values == [1.0, 1.0]
    broken = tunnels()
    assert broken
    soon = "-o ServerAliveInterval=1 -o ConnectTimeout=3"  # those that follow give up after 3 s, not 15
    monkeypatch.setenv(SSH_VARIABLE, f"{lab.client} {soon}")
    for pid in broken:
        os.kill(pid, signal.SIGKILL)
    assert dev.mesh.run("rank").values == [0, 1]
    lab.host("lab-1").pull_the_cable()
    eventually(lambda: any(info.absence for info in dev.mesh.status()))
    lab.host("lab-1").plug_it_in()
    eventually(lambda: not any(info.absence for info in dev.mesh.status()))
    assert dev.mesh.run("rank").values == [0, 1]
    assert attach("dev").mesh.run("rank").values == [0, 1]
    dev.release()
    eventually(lambda: tunnels() == [])


FROM_A_MAC = """
import monarch_nb
dev = monarch_nb.reserve("dev", procs=1, preload=[], on="ssh:lab-1")
print(dev.mesh.run("import sys; sys.platform").values)
dev.release()
"""


@pytest.mark.slow
def test_a_mac_has_ssh_start_nodes_and_goes_through_it(make_lab: Callable[..., SshLab]) -> None:
    make_lab(1).fence("lab-1")
    assert mac.run(FROM_A_MAC) == ["['linux']"]


@pytest.mark.slow
def test_nodes_that_stay_are_reached_through_ssh(
    make_lab: Callable[..., SshLab], capsys: pytest.CaptureFixture[str]
) -> None:
    make_lab(1).fence("lab-1")
    assert main(["pool", "init", "lab", "--ssh", "lab-1"]) == 0
    assert "lab-1: has an allocator at 10." in (said := capsys.readouterr().out)
    assert ":7878, reached through ssh" in said
    assert main(["pool", "list", "lab"]) == 0
    assert ":7878 (through ssh)  answers" in capsys.readouterr().out
    dev = reserve("dev", procs=1, preload=[], pool="lab")
    assert dev.mesh.run("40 + 2").values == [42]
    dev.release()
    assert main(["pool", "remove", "lab", "--force"]) == 0


@pytest.mark.slow
def test_a_host_behind_another(make_lab: Callable[..., SshLab]) -> None:
    lab = make_lab(2)
    lab.fence("lab-2", dropped="tcp dport 0-65535")
    lab.config.write_text(f"Host lab-2\n    ProxyJump lab-1\n{lab.config.read_text()}")
    dev = reserve("dev", procs=1, preload=[], on="ssh:lab-2")
    assert dev.mesh.run("import socket\nsocket.gethostname()").values == [lab.host("lab-2").name]
    dev.release()
