"""A run that was accepted is known, also when its client and all allocators are killed before it is in a database: its
results are delivered, and it is executed once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Gate, Recorder, client
from integration.patched import patch_allocators
from leaks import wait_for_end
from monarch_nb.client.connections import events
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

local = LocalProvisioner()

LATE = "from monarch_nb.allocator.recovery import records\nrecords.FLUSH_DELAY_S = 3600.0"

SUBMITS = """
import time
begun = threading.Semaphore(0)
def tell(event):
    if 'under way' in getattr(event, 'text', ''): begun.release()
mesh = monarch_nb.attach('dev').mesh
runs = [mesh.submit(code, listener=tell) for code in {codes!r}]
for _ in mesh.ranks: begun.acquire()
while any(node.is_submitting for node in mesh.core.connections.values()): time.sleep(0.01)
print(*[run.id for run in runs])
threading.Event().wait()
"""


def test_client_and_allocators_are_killed_at_once(
    pool_home: Path, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_allocators(monkeypatch, tmp_path / "patched", LATE)
    nodes = local.up(nodes=2, procs=2)
    dev = reserve("dev", nodes=2, procs=2)
    dev.mesh.run("executed = []")
    codes = [
        f"executed.append(1)\nprint('under way')\n{gate.wait}\nprint('end')\nrank",
        "executed.append(2)\nprint('under way')\nexecuted",
    ]
    with client(SUBMITS.format(codes=codes)) as kernel:  # all ranks are at the first, the second one is queued
        run_ids = kernel.line().split()
        doomed = [*(node.pid for node in nodes if node.pid is not None), kernel.process.pid]
        assert len(doomed) == 3
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            wait_for_end(pid, TIMEOUT_S)
    local.up(2, 2)
    told = Recorder()
    first = dev.mesh.attach_run(run_ids[0], from_start=True, listener=told)
    second = dev.mesh.attach_run(run_ids[1])
    gate.open(4)
    assert first.result(TIMEOUT_S) == [0, 1, 2, 3]
    assert second.result(TIMEOUT_S) == [[1, 2]] * 4, "each once, in their order"
    told.wait_for(lambda told: told.of(events.Finished))
    for rank in range(4):
        assert told.text(rank) == "under way\nend\n"
    dev.release()
