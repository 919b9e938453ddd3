"""A node is lost: the others are of use, also to a new client, and the reservation is released without it; or all are,
and it is released when they are back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from integration.hosts.lab import Lab
from integration.hosts.network import Network
from integration.live import TIMEOUT_S, client, eventually, lives, pids_of, started
from monarch_nb import list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.client.connections import tree
from monarch_nb.client.connections.bridge import call
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.errors import NodeUnreachable, ReservationReleased
from monarch_nb.ground.rank_sets import format_ranks

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


def test_a_reservation_is_released_without_a_lost_node(lab: Lab, network: Callable[[int], Network]) -> None:
    hosts = network(3).hosts
    for host in hosts:
        lab.start(host, procs=1)
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    pids, lost = pids_of(dev.mesh), hosts[2]
    lost.swallow()
    assert dev.mesh.select([0, 1]).run("rank").values == [0, 1]
    said = "; ".join(map(str, dev.release()))
    assert said.startswith(f"{lost.name} does not answer: its ranks go on until it does; then {hosts[0].name} and ")
    assert not list_reservations()
    assert lives(pids[2])
    for allocator in lab.allocators[:2]:
        allocator.process.kill()
        allocator.process.wait()
    for host in hosts[:2]:
        lab.start(host, procs=1)  # what they are to say is not lost with them
    lost.pass_on()
    eventually(lambda: not lives(pids[2]))
    eventually(lambda: [node.procs_free for node in call(pool_named(None).described())] == [1, 1, 1])
    assert reserve("again", nodes=3, procs=1, preload=[]).mesh.run("rank").values == [0, 1, 2], "it is as if new"


@pytest.mark.parametrize("direct_nodes", [tree.DIRECT_NODES, 1], ids=["direct", "tree"])
@pytest.mark.parametrize("number", [0, 1])
def test_cells_run_on_the_others_whichever_node_is_lost(
    apart: Lab, monkeypatch: pytest.MonkeyPatch, number: int, direct_nodes: int
) -> None:
    monkeypatch.setattr(tree, "DIRECT_NODES", direct_nodes)
    mesh = reserve("dev", nodes=3, procs=1, preload=[]).mesh
    before = mesh.run("kept = rank")
    lost, others = apart.allocators[number].host, [rank for rank in range(3) if rank != number]
    assert lost is not None
    lost.swallow()
    run = mesh.select(others).run("kept")
    assert run.values == others
    assert run.number > before.number
    eventually(lambda: not mesh.core.is_node_up(number))
    leave_out = f"-t {format_ranks(others)} leaves rank {number} out"
    ways = f"{leave_out}; %mesh release works without it"  # the pool has no other node
    with pytest.raises(NodeUnreachable, match=f"{lost.name} unreachable since .*, with rank {number}: {ways}"):
        mesh.run("rank")
    with pytest.raises(NodeUnreachable, match=leave_out):
        mesh.restart()
    other_run, _ = started(mesh.select(others[1]), "import time\nwhile True: time.sleep(0.01)")
    other_run.cancel()
    assert other_run.wait(TIMEOUT_S)
    lost.pass_on()
    eventually(lambda: mesh.status()[number].state == "idle")
    last = mesh.run("kept")
    assert last.values == [0, 1, 2]
    assert last.number > other_run.number


def test_a_new_client_attaches_without_a_lost_node_and_releases(apart: Lab) -> None:
    lost = apart.allocators[0].host
    assert lost is not None
    dev = reserve("dev", nodes=3, procs=1, preload=[])
    dev.mesh.run("kept = rank; print('kept')")
    pids = pids_of(dev.mesh)
    lost.swallow()
    code = """
from monarch_nb import attach
from monarch_nb.notebook.output.logs import shown_logs
dev = attach("dev")
states = {info.rank: info for info in dev.mesh.status()}
print([states[rank].state for rank in range(3)], states[0].absence)
print(dev.mesh.select([1, 2]).run("kept").values)
print(*shown_logs(dev.mesh, 1, None), sep="; ")
print(*dev.release(), sep="; ")
"""
    with client(code) as other:
        told = [other.line() for _ in range(4)]
        other.finish()
    assert told[0].startswith(f"['unreachable', 'idle', 'idle'] {lost.name} unreachable since ")
    assert told[1] == "[1, 2]"
    assert told[2].endswith(f"; [1-2] kept; {lost.name} does not answer: what rank 0 wrote is not here")
    assert told[3].startswith(f"{lost.name} does not answer: its ranks go on until it does")
    assert not list_reservations()
    lost.pass_on()
    eventually(lambda: not lives(pids[0]))


def _held() -> list[tuple[str, int]] | None:
    """What is held, and on how many nodes; None as long as no node answers."""
    try:
        return [(info.name, info.nodes) for info in list_reservations()]
    except NodeUnreachable:
        return None


def test_one_that_is_released_while_all_its_nodes_are_away_is_ended_when_they_are_back(apart: Lab) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[])
    pids, hosts = pids_of(dev.mesh), {one.node_id: one.host for one in apart.allocators}
    lost = [host for name in dev.node_names if (host := hosts[name])]
    for host in lost:
        host.swallow()
    said = [str(one) for one in dev.release()]
    then = "then the next command or panel here that asks the pool lab ends them"
    assert said == [f"{host.name} does not answer: its ranks go on until it does; {then}" for host in lost]
    anew = reserve("dev", nodes=1, procs=1, preload=[])
    assert anew.mesh.run("rank").values == [0], "the name is free"
    for host in lost:
        assert _held() == [("dev", 1)]
        host.pass_on()
    eventually(lambda: _held() == [("dev", 1)] and not any(map(lives, pids.values())))
    assert anew.mesh.run("rank").values == [0]


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
