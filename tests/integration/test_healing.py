"""Allocators of a local pool that were killed: who needs them next starts them again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_nb
from integration.live import Recorder, eventually, started
from monarch_nb.cli.main import main
from monarch_nb.client.connections import events
from monarch_nb.client.connections.bridge import background_loop
from monarch_nb.client.connections.connection import ALLOCATOR_DOWN
from monarch_nb.client.pools.pool import pool_object
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.panel.live import Live
from monarch_nb.provision.local import MOST_HEALINGS, LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")
SAID = "the allocator of node0 died; a new one adopts its ranks"


@pytest.fixture
def dev(pool_home: Path) -> Iterator[Reservation]:
    LocalProvisioner().up(nodes=2, procs=1)
    held = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[])
    held.mesh.run("x = rank")
    yield held
    LocalProvisioner().down(force=True)


def kill() -> None:
    """Kill the allocator of node0, and see it dead."""
    first = LocalProvisioner().nodes()[0]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not LocalProvisioner().nodes()[0].alive)


def test_whoever_needs_a_node_starts_it_again_three_times(
    dev: Reservation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill()
    told = Recorder()
    assert dev.mesh.submit("x + 10", listener=told).result(60) == [10, 11], "a cell, with the ranks' variables"
    assert SAID in [notice.text for notice in told.of(events.Notice)]
    kill()
    assert main(["status", "--json"]) == 0
    printed = capsys.readouterr()
    [status] = json.loads(printed.out)
    assert [node["state"] for node in status["nodes"]] == ["serves", "serves"]
    assert printed.err == f"{SAID}\n"
    kill()
    lines: list[str] = []
    for _ in range(2):
        pool_object(None).heal(lines.append)
    assert lines == [SAID], "once"
    kill()
    assert MOST_HEALINGS == 3
    assert main(["status"]) == 0
    printed = capsys.readouterr()
    assert "died (monarch-nb up starts it again)" in printed.out, "whatever kills it goes on doing so"
    assert "not started by themselves now" in printed.err
    assert main(["status"]) == 0
    assert capsys.readouterr().err == "", "once"
    (tmp_path / "one.py").write_text("")
    assert main(["run", "dev", str(tmp_path / "one.py")]) == 1
    assert "node0 does not answer; its ranks are as they were: monarch-nb up starts" in capsys.readouterr().err
    assert main(["logs", "dev"]) == 0
    assert f"what rank 0 wrote is not here: node0 {ALLOCATOR_DOWN}" in capsys.readouterr().out
    assert main(["up"]) == 0, "somebody asks for it"
    assert dev.mesh.run("x").values == [0, 1]
    kill()
    assert dev.mesh.run("x").values == [0, 1], "counted anew"


def test_a_cell_that_runs_needs_it(dev: Reservation, tmp_path: Path) -> None:
    run, _ = started(dev.mesh, f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\nx")
    kill()
    eventually(lambda: LocalProvisioner().nodes()[0].alive)
    (tmp_path / "go").touch()
    assert run.result(60) == [0, 1]


def test_who_looks_at_the_panel_needs_it(dev: Reservation) -> None:
    told: list[str] = []

    async def deliver(some: list[dict[str, object]]) -> None:
        told.extend(str(each["text"]) for each in some if each["type"] == "notice")

    async def subscribe() -> object:
        return Live(pool_object(None), refresh_s=0.1).subscribe(deliver, looking=True)

    subscription = asyncio.run_coroutine_threadsafe(subscribe(), background_loop()).result(60)
    kill()
    eventually(lambda: LocalProvisioner().nodes()[0].alive)
    eventually(lambda: SAID in told)
    subscription.close_soon()  # type: ignore[attr-defined]
