"""What tests on live pools share: gates that cells wait at, listeners to wait on, clients in other processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from leaks import wait_for_end
from monarch_nb.allocator.processes.processes import identify, is_alive
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.pools.pool import pool_named
from monarch_nb.client.reservations.jobs import extend
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.runs.run import Run

TIMEOUT_S = 60.0
"""Long enough for any loaded machine: what a test waits for comes, or never."""

PAUSES_S = (0.02, 0.5)
"""Between the first two looks at what no event tells of, and at most: whom a test waits for needs the processor."""

HAS_FAILED = pytest.StashKey[bool]()
"""Of a test: whether anything of it has failed so far."""

STACKS_ON_SIGNAL = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1, chain=True)"
"""In a program: SIGUSR1 has it write the stacks of its threads to stderr, and ends it."""

E = TypeVar("E")
T = TypeVar("T")


class Gate:
    """A place where cells of any process wait until the test lets them pass.

    Example:
        run = mesh.submit(f"{gate.wait}\\nrank")
        gate.open(8)
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / f"gate-{uuid.uuid4().hex[:8]}"
        os.mkfifo(self.path)
        self._end = os.open(self.path, os.O_RDWR)  # the read end too: what is written stays until somebody passes

    @property
    def wait(self) -> str:
        """Code that waits; Ctrl-C and interrupts stop it, as any Python code."""
        return f"with open({str(self.path)!r}, 'rb', buffering=0) as _gate: _gate.read(1)"

    def open(self, times: int = 1) -> None:
        """Let so many ranks pass, those that wait and those that will."""
        os.write(self._end, b"x" * times)

    def close(self) -> None:
        os.close(self._end)
        self.path.unlink()


class Recorder:
    """A listener that keeps what it is told and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: events.Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[Recorder], object], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until `condition(self)` holds after an event."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_s):
                raise AssertionError(f"it did not come; told so far: {self.events[-50:]}")

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, rank: int | None = None, stream: str = "stdout") -> str:
        """What a rank (or all of them) printed."""
        texts = [event for event in self.of(events.Text) if event.stream == stream and rank in (None, event.rank)]
        return "".join(event.text for event in texts)

    def wait_for_text(self, text: str, times: int = 1) -> None:
        """Wait until `text` was printed so often, over all ranks."""
        self.wait_for(lambda recorder: recorder.text().count(text) >= times)


def started(mesh: Mesh, code: str, *, ranks: int | None = None, **options: Any) -> tuple[Run, Recorder]:
    """Submit code and wait until it is under way on every rank (or on so many)."""
    recorder = Recorder()
    run = mesh.submit(f"print('\\x02under way')\n{code}", listener=recorder, **options)
    recorder.wait_for_text("\x02under way", len(mesh.ranks) if ranks is None else ranks)
    return run, recorder


def said_of_waits(recorder: Recorder) -> str:
    """Return the newest sentence that says who waits for whom; empty when none has come."""
    texts = [notice.text for notice in recorder.of(events.Notice) if notice.key == "waits" and notice.text]
    return texts[-1] if texts else ""


def pids_of(mesh: Mesh) -> dict[int, int]:
    """Return the pids of a mesh's ranks."""
    return {info.rank: info.pid for info in mesh.status()}


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Kill a process and wait until it has ended."""
    os.kill(pid, number)
    wait_for_end(pid, TIMEOUT_S)


def lives(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return is_alive(identify(pid))
    except ProcessLookupError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def command_of(pid: int) -> str:
    """Return a process's command line; "" when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").rstrip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def open_files(pid: int) -> list[str]:
    """Return what a process has open."""
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            targets.append(os.readlink(entry))
    return targets


def eventually(condition: Callable[[], T], timeout_s: float = TIMEOUT_S) -> T:
    """Ask until something that no event tells of is true, at longer and longer intervals; return it."""
    deadline, (pause_s, longest_s) = time.monotonic() + timeout_s, PAUSES_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it did not become true: {found}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
    return found


def asleep(pid: int, thread: int = 0) -> tuple[str, ...] | None:
    """Return how often a thread has been put aside, when it sleeps: who finds the same twice knows that it slept on.

    Args:
        thread: its id; 0 for the main thread.
    """
    status = Path(f"/proc/{pid}/task/{thread or pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if not fields["State"].startswith("S"):
        return None
    return fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]


def leave(dev: Reservation, left_s: float) -> None:
    """Set how much time is left, of more: what a test does before that may take as long as it likes."""
    now_left_s = dev.status().time_left_s
    assert now_left_s is not None
    extend(pool_named(dev.pool), dev.id, dev.name, left_s - now_left_s)


class Client:
    """A client in a process of its own: runs a program that has `monarch_nb` imported, and prints for the test.

    Args:
        python: that it runs, where it is another than the test's. directory: where it works.
    """

    def __init__(self, program: str, python: Path | str = sys.executable, directory: Path | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        code = f"{STACKS_ON_SIGNAL}\nimport monarch_nb, os, sys, threading\n{program}"
        self.process = subprocess.Popen(
            [str(python), "-u", "-c", code],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def line(self) -> str:
        """Wait for the next line that it prints; one that prints none is ended and tells where it was."""
        assert self.process.stdout is not None
        overdue = threading.Timer(TIMEOUT_S, self.process.send_signal, [signal.SIGUSR1])
        overdue.start()
        try:
            line = self.process.stdout.readline()
        finally:
            overdue.cancel()
        assert line, f"it ended:\n{self.errors()}"
        return line.rstrip("\n")

    def tell(self, line: str = "") -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def finish(self) -> str:
        """Wait until it has ended; return what it printed since the last line."""
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        return rest

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()


@contextmanager
def client(program: str) -> Iterator[Client]:
    """A client that is gone at the end."""
    made = Client(program)
    try:
        yield made
    finally:
        made.close()
