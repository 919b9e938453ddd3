"""A node is lost: the others are of use, also to a new client, and the reservation is released without it; or all are,
and it is released when they are back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from integration.hosts.lab import Lab
from integration.live import TIMEOUT_S, client, eventually, lives, pids_of, started
from monarch_nb import list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import NodeUnreachable, ReservationReleased

PANEL = """
import queue
from monarch_nb.panel.requests import Panel
panel, ended = Panel("lab"), queue.Queue()
async def deliver(events):
    for event in events:
        if event["type"] == "job" and event["job"]["state"] != "running":
            ended.put(event["job"])
panel.subscribe(deliver).result()
[held] = panel.handle("view", {}).result()["result"]["reservations"]
print(held)
sys.stdin.readline()
panel.handle("release", {"reservation": held}).result()
job = ended.get()
print(repr(job["result"] or job["error"]))
"""
"""A panel that has seen one reservation, and releases it when it is told to."""


def _held() -> list[tuple[str, int]] | None:
    """What is held, and on how many nodes; None as long as no node answers."""
    try:
        return [(info.name, info.nodes) for info in list_reservations()]
    except NodeUnreachable:
        return None


def test_one_is_released_by_its_name_while_no_node_answers(apart: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    pids = pids_of(reserve("dev", nodes=3, procs=1, preload=[]).mesh)
    hosts = [one.host for one in apart.allocators if one.host]
    for host in hosts:
        host.swallow()
    assert main(["list"]) == 1
    held = "they held dev of yours when they last answered; the ranks of dev go on, and monarch-nb release dev"
    assert held in capsys.readouterr().err
    assert main(["release", "devv"]) == 1
    names = ", ".join(host.name for host in hosts)
    said = f"{names} do not answer, and held dev of yours when they last did; did you mean dev?"
    assert capsys.readouterr().err == f"monarch-nb: no reservation 'devv': {said}\n"
    assert main(["release", "dev"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dev: no node of the pool lab answers; ")
    assert said.endswith("then the next command or panel here that asks the pool lab releases it\n")
    assert main(["list"]) == 1
    assert "; dev is released as soon as they do" in capsys.readouterr().err
    hosts[1].pass_on()
    eventually(lambda: _held() == [])
    assert not lives(pids[1])
    for host in hosts:
        host.pass_on()
    eventually(lambda: not any(map(lives, pids.values())))


def test_a_run_learns_that_its_reservation_was_released_elsewhere_while_no_node_answers(apart: Lab) -> None:
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    pids, hosts = pids_of(dev.mesh), [one.host for one in apart.allocators if one.host]
    run, _ = started(dev.mesh, "import time\nwhile True: time.sleep(0.01)")
    with client(PANEL) as other:
        assert other.line() == dev.id
        for host in hosts:
            host.swallow()
        other.tell()
        assert "the next command or panel here that asks the pool lab ends them" in other.line()
        other.finish()
    assert run.wait(TIMEOUT_S)
    said = r"^dev was released at .* in the panel: %mesh reserve dev makes a new one$"
    for ask in (run.raise_failures, dev.status, lambda: dev.mesh.run("rank"), dev.mesh.status, dev.mesh.restart):
        with pytest.raises(ReservationReleased, match=said):
            ask()
    for host in hosts:
        host.pass_on()
    eventually(lambda: _held() == [] and not any(map(lives, pids.values())))
    with pytest.raises(ReservationReleased, match=said):
        dev.status()


def test_a_new_process_calls_nodes_that_are_away_by_their_names(apart: Lab) -> None:
    reserve("dev", nodes=3, procs=1, preload=[]).detach()
    hosts = [one.host for one in apart.allocators if one.host]
    for host in hosts:
        host.swallow()
    for words in (["status"], ["logs", "dev"]):
        command = [sys.executable, "-m", "monarch_nb.cli.main", *words]
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        said = told.stdout + told.stderr
        assert told.returncode == 1, said
        for host in hosts:
            assert host.name in said
            assert host.address not in said
