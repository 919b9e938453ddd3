"""Clients that die half-way, allocators of another version, and clocks that jump."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, client, eventually, kill, started
from integration.patched import patch_allocators
from leaks import processes_of
from monarch_nb import config
from monarch_nb.client.reservations.known.lists import list_reservations
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.errors import VersionMismatch
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()

JUMPS = """
import os, time
jump, told = {path!r}, time.time
time.time = lambda: told() + (3600.0 if os.path.exists(jump) else 0.0)
"""
"""The clock on the wall goes an hour forward once a file is there."""


@pytest.fixture
def jump(pool_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of 2 nodes × 4 procs, whose clocks jump by an hour when this file is made, and that waits a second for
    clients that are gone."""
    path = tmp_path / "jump"
    shorter = "from monarch_nb import config\nconfig.PROVISIONAL_LEASE_S = 1.0\n"
    patch_allocators(monkeypatch, tmp_path / "patched", shorter + JUMPS.format(path=str(path)))
    local.up(nodes=2, procs=4)
    return path


STEPS = """
from monarch_nb.client.pools import pool
async def stops(*arguments):
    print("stopped")
    threading.Event().wait()
{stop}
monarch_nb.reserve({name!r}, nodes=2, procs=1, preload=[], progress=print)
"""
STOPS = {
    "leased": "pool.nodes_seeing = stops",
    "spawned": "pool.files_pb2.Peer = lambda **_: (print('stopped'), threading.Event().wait())",
    "confirmed": "pool.Pool.held = stops",
}


def test_what_a_client_left_half_made_is_taken_back(jump: Path, pool_home: Path) -> None:
    before = {process.pid for process in processes_of(pool_home)}
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client(STEPS.format(stop=stop, name=name))) for name, stop in STOPS.items()]
        for one in clients:
            while one.line() != "stopped":
                pass
        for one in clients:
            kill(one.process.pid)
    eventually(lambda: {held.name for held in list_reservations()} <= {"confirmed"})
    assert attach("confirmed").mesh.run("rank").values == [0, 1], "that was whole"
    attach("confirmed").release()
    eventually(lambda: {process.pid for process in processes_of(pool_home)} <= before)
    dev = reserve("everything", nodes=2, procs=4)
    assert dev.mesh.run("rank").values == list(range(8))


def test_leases_do_not_follow_the_clock_on_the_wall(jump: Path, gate: Gate) -> None:
    timed = reserve("timed", procs=1, time="30m", idle="20m")
    before = timed.status()
    run, _ = started(timed.mesh, gate.wait)
    jump.touch()
    after = timed.status()
    assert before.time_left_s is not None
    assert after.time_left_s is not None
    assert 0 <= before.time_left_s - after.time_left_s < TIMEOUT_S * 5, "not an hour"
    gate.open()
    assert run.result() == [None]
    jump.unlink()
    assert timed.mesh.run("rank").values == [0], "nor when it jumps back"
    assert {held.name for held in list_reservations()} == {"timed"}


@pytest.fixture
def upgraded(pool_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reservation "dev" on an allocator that was replaced by one of a newer protocol in the middle of a cell."""
    local.up(nodes=1, procs=2)
    with client(
        "mesh = monarch_nb.reserve('dev', procs=2, preload=[]).mesh\nmesh.run('kept = rank')\nprint('kept')"
    ) as first:
        assert first.line() == "kept"
        first.finish()
    [node] = local.nodes()
    assert node.pid is not None
    kill(node.pid, signal.SIGTERM)
    newer = f"from monarch_nb import config\nconfig.PROTOCOL, config.VERSION = {config.PROTOCOL + 1}, '9.9.9'\n"
    with pytest.MonkeyPatch.context() as patch:
        patch_allocators(patch, tmp_path / "patched", newer)
        local.up()
    yield
    [node] = local.nodes()
    if node.pid is not None:
        kill(node.pid, signal.SIGTERM)
    local.up()


@pytest.mark.usefixtures("upgraded")
def test_a_newer_allocator_tells_older_clients_and_keeps_what_is_held() -> None:
    for ask in ("monarch_nb.attach('dev')", "monarch_nb.reserve('dev', procs=2, preload=[])"):
        with client(f"try: {ask}\nexcept monarch_nb.MonarchNbError as error: print(repr(str(error)))\n") as older:
            said = older.line()
            assert "9.9.9" in said
            assert "install the same version on both" in said
            assert "Traceback" not in said
    newer = f"from monarch_nb import config\nconfig.PROTOCOL = {config.PROTOCOL + 1}\n"
    attached = "mesh = monarch_nb.attach('dev').mesh\nprint(mesh.run('kept').values)"
    with client(newer + attached) as upgraded:
        assert upgraded.line() == "[0, 1]", "ranks and reservations are those of before"
        upgraded.finish()
    with pytest.raises(VersionMismatch):
        attach("dev")
