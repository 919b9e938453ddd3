"""What one person leaves unread costs the gateway little memory, and nobody else any time."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from integration.hosts.lab import Lab
from integration.hosts.people import Person
from integration.live import TIMEOUT_S, eventually
from monarch_nb import reserve

RUNS, RANKS = 300, 2
MOST_BYTES = 64 << 20
"""The gateway may grow by so much. What it would keep, if nothing held it back, is twice that."""
NEVER_READ = f"""
import os, threading
import monarch_nb

last = threading.Event()
held = monarch_nb.reserve("his", procs={RANKS}, preload=[])
os.mkfifo("gate")
runs = [held.mesh.submit(f"open({{os.path.abspath('gate')!r}}).read()")]
for number in range({RUNS}):
    runs.append(held.mesh.submit("print('x' * 40_000); b'x' * 120_000"))
held.mesh.submit(f"open({{os.path.abspath('done')!r}}, 'a').close()", listener=lambda _: last.set())
last.wait()
print("submitted", flush=True)
values = [run.result() for run in runs]
print(sum(len(value) for of_run in values[1:] for value in of_run))
held.release()
"""


def memory_of(pid: int) -> int:
    """Return how much of a process is in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
def test_a_client_that_does_not_read_while_its_ranks_say_much(lab: Lab, tmp_path: Path) -> None:
    node = lab.start(procs=RANKS + 1, flags=["--plain-rooms"])
    dev = reserve("dev", procs=1, preload=[])
    with Person(lab, "bob", tmp_path).begin(NEVER_READ) as bob:
        assert bob.stdout is not None
        assert bob.stdout.readline() == "submitted\n", bob.communicate()[1]
        bob.send_signal(SIGSTOP)
        before = memory_of(node.process.pid)
        (tmp_path / "gate").write_text("go on")  # both ranks have it open
        grown: list[int] = []

        def is_done() -> bool:
            assert dev.mesh.run("rank").values == [0], "nobody else waits for it"
            grown.append(memory_of(node.process.pid) - before)
            last = grown[-100:]
            return (tmp_path / "done").exists() and len(last) == 100 and max(last) - min(last) < 1 << 20

        eventually(is_done, TIMEOUT_S * 3)
        assert max(grown) < MOST_BYTES
        bob.send_signal(SIGCONT)
        said, errors = bob.communicate(timeout=TIMEOUT_S * 3)
    assert said == f"{RUNS * RANKS * 120_000}\n", errors
    dev.release()
