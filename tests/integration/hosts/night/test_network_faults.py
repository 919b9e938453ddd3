"""The network between hosts fails: cells go on, the client says who is unreachable, and nothing is lost or doubled."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.hosts.lab import Lab
from integration.hosts.network import Host, Network
from integration.live import TIMEOUT_S, Recorder, eventually, started
from monarch_nb import reserve
from monarch_nb.actor import Actor, current_rank, endpoint
from monarch_nb.client.connections import events
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.errors import MonarchNbError, NodeUnreachable

CUTS = {"cable": (Host.pull_the_cable, Host.plug_it_in), "blackhole": (Host.swallow, Host.pass_on)}

PRINTS = """import os, time
with open({ran!r}, "a") as file:
    file.write(f"{{rank}}\\n")
lines = 0
while not os.path.exists({over!r}):
    print("line", lines)
    lines += 1
    time.sleep(0.02)
lines"""
"""Prints numbered lines until a file exists; its value is how many. It writes down that it ran."""


@dataclass
class TwoHosts:
    dev: Reservation
    hosts: list[Host]


@pytest.fixture
def two_hosts(lab: Lab, network: Callable[[int], Network], tmp_path: Path) -> TwoHosts:
    """A rank on each of two hosts."""
    hosts = network(2).hosts
    for host in hosts:
        lab.start(host, procs=1, flags=["--isolate"])  # else mail would take sockets in the file system
    dev = reserve("dev", nodes=2, procs=1, preload=[], directory=tmp_path)
    return TwoHosts(dev, hosts)


def notice_of(recorder: Recorder, host: Host) -> str:
    """Return what a run says last of a host."""
    said = [event.text for event in recorder.of(events.Notice) if event.key == f"link {host.name}"]
    return said[-1] if said else ""


def wait_for_lines(recorder: Recorder, rank: int, more: int) -> None:
    """Wait until a rank's further lines have come."""
    seen = recorder.text(rank).count("line")
    recorder.wait_for(lambda recorder: recorder.text(rank).count("line") >= seen + more)


@pytest.mark.parametrize("cut", CUTS)
def test_a_cell_goes_on_and_nothing_is_lost(two_hosts: TwoHosts, tmp_path: Path, cut: str) -> None:
    mesh, lost = two_hosts.dev.mesh, two_hosts.hosts[1]
    away, back = CUTS[cut]
    run, recorder = started(mesh, PRINTS.format(ran=str(tmp_path / "ran"), over=str(tmp_path / "over")))
    for rank in mesh.ranks:
        wait_for_lines(recorder, rank, 10)
    away(lost)
    recorder.wait_for(lambda recorder: f"{lost.name} unreachable since" in notice_of(recorder, lost))
    wait_for_lines(recorder, 0, 50)
    back(lost)
    recorder.wait_for(lambda recorder: not notice_of(recorder, lost))
    wait_for_lines(recorder, 1, 100)
    (tmp_path / "over").touch()
    assert run.wait(TIMEOUT_S)
    for rank, lines in zip(mesh.ranks, run.result(), strict=True):
        assert recorder.text(rank).splitlines()[1:] == [f"line {number}" for number in range(lines)]
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"], "each rank ran it once"


def waiter() -> type[Actor]:
    """Return an actor that travels with its code: ranks can not import this module."""

    class Waiter(Actor):
        @endpoint
        def wait_for(self, path: str) -> int:
            while not os.path.exists(path):
                time.sleep(0.02)
            return current_rank().rank

    return Waiter


@pytest.mark.parametrize("cut", CUTS)
def test_calls_of_actors_under_way_fail_and_later_ones_work(two_hosts: TwoHosts, tmp_path: Path, cut: str) -> None:
    mesh, lost = two_hosts.dev.mesh, two_hosts.hosts[1]
    away, back = CUTS[cut]
    mesh.run("rank")
    waiters = mesh.spawn("waiters", waiter())
    waiters.wait_for.call("/").get(TIMEOUT_S)
    call = waiters.wait_for.call(str(tmp_path / "over"))
    away(lost)
    with pytest.raises(MonarchNbError, match=lost.name):
        call.get(TIMEOUT_S)
    back(lost)
    (tmp_path / "over").touch()
    eventually(lambda: mesh.status()[1].state == "idle")
    assert sorted(waiters.wait_for.call("/").get(TIMEOUT_S).values()) == [0, 1]


def test_files_are_synced_when_the_cable_is_back(
    lab: Lab, network: Callable[[int], Network], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    [near, far] = network(2).hosts
    for host in (near, far):
        lab.start(host, procs=1, hidden=[tmp_path])
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    code = "open('model.py').read()"
    Path("model.py").write_text("one")
    assert dev.mesh.run(code).values == ["one"] * 2
    far.swallow()
    Path("model.py").write_text("two")
    with pytest.raises(NodeUnreachable, match=far.name):
        dev.sync()
    assert dev.mesh.select([0]).run(code).values == ["two"]
    far.pass_on()
    eventually(lambda: dev.mesh.status()[1].state == "idle")
    assert dev.mesh.run(code).values == ["two"] * 2


def test_only_the_allocator_and_the_interface_listen(two_hosts: TwoHosts) -> None:
    mesh = two_hosts.dev.mesh
    mesh.run("import torch, torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()")
    for host in two_hosts.hosts:
        listeners = {address.replace("[::ffff:", "").replace("]", "") for address in host.listeners()}
        assert f"{host.address}:7878" in listeners
        assert {address.rpartition(":")[0] for address in listeners} == {host.address}, "on no other interface"
    mesh.run("dist.destroy_process_group()")
