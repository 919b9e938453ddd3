"""What starts allocators on machines that an engine has: a scheduler, a cluster, a cloud. One launcher for each, in a
file of its own, found by the entry points of `monarch_nb.provisioners`; docs/provisioners.md shows how to add one.

A launcher asks its engine for a job, looks at it, and ends it. What all have in common is in
monarch_nb.provision.jobs: the job's pool and its certificates, waiting, finding it again, cleaning up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Literal, Protocol, runtime_checkable

from monarch_nb.config import TrustPaths
from monarch_nb.errors import UsageError
from monarch_nb.provision import ENTRY_POINTS

UNHELD_S = 300.0
"""An allocator of a job that has held no reservation for so long ends: its client is gone, or did not come back."""


@dataclass(frozen=True)
class Ask:
    """What is asked of an engine.

    Attributes:
        reservation: what the user calls it.
        pool: that the nodes will be, made for this job alone.
        nodes: how many; each runs one allocator.
        procs: CPU ranks on each, 0 with GPUs. gpus: on each, 0 with CPU ranks.
        time_s: how long; 0 when the user has not said.
        arguments: for the engine alone: what stands after ` -- `.
        paths: of the pool. Nobody else can enter its directory, and it is removed with the job.
    """

    reservation: str
    pool: str
    nodes: int
    procs: int
    gpus: int
    time_s: float
    arguments: tuple[str, ...]
    paths: TrustPaths

    def allocator(self, node_id: str = "", toward: Sequence[str] = (), *, publish: bool = True) -> list[str]:
        """Return the command that runs an allocator in the foreground. A node that has no such home directory needs a
        copy of `paths.node` in its place.

        Args:
            node_id: what the node is called; its host's name when not said. One that only the node knows can be
                appended: `--node-id NAME`.
            toward: hosts to which it is to be reachable, the likeliest first; as `--toward HOST ...` this can be
                appended as well.
            publish: whether nodes say where they are in a directory of the pool, which all of them share.
        """
        command = [sys.executable, "-m", "monarch_nb.allocator", "--temporary", f"{UNHELD_S:g}s"]
        command += ["--pool", self.pool, "--certificate", str(self.paths.node)]
        command += ["--gpus", "visible"] if self.gpus else ["--gpus", "none", "--procs", str(self.procs)]
        command += ["--publish", str(self.paths.published)] if publish else []
        command += ["--node-id", node_id] if node_id else []
        return [*command, *(["--toward", *toward] if toward else [])]


@dataclass(frozen=True)
class Job:
    """What an engine was asked for, as it is remembered on disk.

    Attributes:
        launcher: which has asked. id: as the engine calls it; empty while it is being asked.
        nodes, procs, gpus: as in `Ask`.
        served: whether all its nodes have served already.
    """

    launcher: str
    id: str
    reservation: str
    pool: str
    nodes: int
    procs: int
    gpus: int
    paths: TrustPaths
    served: bool = False


@dataclass(frozen=True)
class Look:
    """What an engine says of a job.

    Attributes:
        state: "waiting" for machines; "running", also when some have failed; "ended", whyever.
        text: for people, in one line: "Slurm job 12 waits: Resources, starts at about 14:02".
        trouble: of a job that waits, why it will wait for ever; of one that runs, what has failed; of one that has
            ended, why.
        addresses: of the nodes, `host:port`, as far as they are known; empty where nodes publish themselves.
        ends_at: when the engine ends it, seconds since the epoch; 0 when it does not.
    """

    state: Literal["waiting", "running", "ended"]
    text: str
    trouble: str = ""
    addresses: tuple[str, ...] = ()
    ends_at: float = 0.0


@runtime_checkable
class Launcher(Protocol):
    """Asks an engine for nodes. No call waits for them."""

    title: str
    """What its jobs are called: "Slurm job"."""

    def ask(self, ask: Ask) -> str:
        """Ask for nodes that run `ask.allocator()` each; return at once how the engine calls the job. What allocators
        print goes to `ask.paths.log`, if that can be.

        Raises:
            UsageError: it makes no sense to the engine. CapacityError: it never has so much.
            PoolError: the engine is not installed, does not answer, or nobody is logged in.
        """

    def look(self, job: Job) -> Look:
        """Return what has become of a job; one that the engine has forgotten has ended.

        Raises:
            PoolError: the engine does not answer.
        """

    def extend(self, job: Job, by_s: float) -> None:
        """Let a job run for longer.

        Raises:
            UsageError: the engine does not let this user; the message says what to do instead.
        """

    def end(self, job: Job) -> None:
        """End a job, whatever it does; again is as once.

        Raises:
            PoolError: the engine does not answer.
        """


@cache
def launcher(name: str) -> Launcher:
    """Return the launcher of that name.

    Raises:
        UsageError: there is none; the message lists those that are installed.
    """
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name and isinstance(made := point.load()(), Launcher):
            return made
    raise UsageError(f"--on {name}: there is no such launcher; installed: {', '.join(launcher_names()) or 'none'}")


def launcher_names() -> list[str]:
    """Return what can stand after `--on`."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - {"hosts", "local"})
