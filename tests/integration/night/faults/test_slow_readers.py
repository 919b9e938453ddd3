"""A client that does not read, as a kernel that is stopped: no rank waits for it, and no allocator collects for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.live import TIMEOUT_S, Recorder, client, eventually
from integration.patched import patch_allocators
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.provision.local import LocalProvisioner

pytestmark = pytest.mark.usefixtures("without_torch")

FLOOD = """
import time
print('begun')
for part in range(9000):
    print('x' * 999, part, flush=True)
    time.sleep(0.0006)
print('end')
rank
"""
"""As much as is sent and not elided, for long enough that it adds up."""
FOLLOWS = """
def tell(event):
    if 'begun' in getattr(event, 'text', ''): begun.set()
begun = threading.Event()
mesh = monarch_nb.attach('dev').mesh
run = mesh.submit({code!r}, listener=tell)
begun.wait()
print(run.id)
run.wait()
"""

MOST_BYTES = 4 << 20
"""By so much an allocator may grow. It is less than the half of what it would keep if nothing held it back."""


def memory_of(pid: int) -> int:
    """Return how much of a process is in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_ranks_go_on_and_allocators_do_not_grow(
    pool_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = "from monarch_nb.allocator.sessions import sessions\nsessions.MAX_UNSENT_BYTES = 1 << 18"
    patch_allocators(monkeypatch, tmp_path / "patched", less)  # what 8 MB would do to a flood of minutes
    [node] = LocalProvisioner().up(nodes=1, procs=4)
    dev, allocator = reserve("dev", procs=4), node.pid
    assert allocator is not None
    assert dev.mesh.run("print('warm')\nrank").values == [0, 1, 2, 3]
    with client(FOLLOWS.format(code=FLOOD)) as slow:
        run_id = slow.line()
        slow.process.send_signal(signal.SIGSTOP)
        before = memory_of(allocator)
        told = Recorder()
        run = dev.mesh.attach_run(run_id, listener=told)
        assert run.result(TIMEOUT_S * 3) == [0, 1, 2, 3], "nobody waits for who does not read"
        assert memory_of(allocator) - before < MOST_BYTES
        assert told.text().count("end\n") == 4
        slow.process.send_signal(signal.SIGCONT)
        assert slow.finish() == ""
        assert slow.process.returncode == 0, "it comes to the end as well"
    eventually(lambda: not [info for info in dev.mesh.runs() if not info.done])
    dev.release()
