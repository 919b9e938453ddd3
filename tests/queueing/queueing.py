"""An engine for tests: its machines are processes of this one, and wait until the file `~/free` is there."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from pathlib import Path

from monarch_nb.errors import UsageError
from monarch_nb.provision import Option
from monarch_nb.provision.launchers import Ask, Job, Look, Offer

PRICE_PER_HOUR = 3.5


def free() -> Path:
    """Return the file whose presence makes machines free."""
    return Path.home() / "free"


class QueueLauncher:
    """Processes of this machine that have to wait for their turn."""

    title = "queued job"

    def options(self) -> list[Option]:
        """Return one choice."""
        choices = (("", "the default"), ("fast", "fast"))
        return [Option("partition", "Partition", "choice", "", choices=choices, flag="--partition")]

    def offer(self, ask: Ask) -> Offer:
        """Return that one waits, and what it costs."""
        if wrong := [word for word in ask.arguments if not word.startswith("--partition=")]:
            raise UsageError(f"there is no flag {wrong[0]}")
        return Offer("one is before you", ask.nodes * PRICE_PER_HOUR)

    def ask(self, ask: Ask) -> str:
        """Start a group of processes that waits."""
        nodes = [shlex.join(ask.allocator(f"queued{number}", ["localhost"])) for number in range(ask.nodes)]
        turn = f"while [ ! -e {shlex.quote(str(free()))} ]; do sleep 0.1; done; "
        with ask.paths.log.open("ab") as log:
            words = ["bash", "-c", turn + " & ".join(nodes) + " & wait"]
            group = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return str(group.pid)

    def look(self, job: Job) -> Look:
        """Return whether it is its turn."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(int(job.id), os.WNOHANG)
        try:
            os.killpg(int(job.id), 0)
        except ProcessLookupError:
            return Look("ended", f"queued job {job.id} has ended", "it has ended")
        if not free().exists():
            return Look("waiting", f"queued job {job.id} waits: one is before it")
        return Look("running", f"queued job {job.id} runs", price_per_hour=job.nodes * PRICE_PER_HOUR)

    def extend(self, job: Job, by_s: float) -> None:
        """Refuse."""
        raise UsageError("there is no time limit")

    def end(self, job: Job) -> None:
        """End the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(job.id), signal.SIGTERM)
