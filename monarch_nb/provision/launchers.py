"""What starts allocators on machines that an engine has: a scheduler, a cluster, a cloud. One launcher for each, in a
file of its own, found by the entry points of `monarch_nb.provisioners`; docs/provisioners.md shows how to add one.

A launcher asks its engine for a job, looks at it, and ends it. What all have in common is in
monarch_nb.provision.jobs: the job's pool and its certificates, waiting, finding it again, cleaning up.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, NoReturn, Protocol, runtime_checkable

from monarch_nb.config import DEFAULT_PRELOAD, TrustPaths, gap
from monarch_nb.errors import PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import ENTRY_POINTS, Option

UNHELD_S = gap(300.0)
"""An allocator of a job that has held no reservation for so long ends: its client is gone, or did not come back."""


@dataclass(frozen=True)
class Ask:
    """What is asked of an engine.

    Attributes:
        reservation: what the user calls it.
        pool: that the nodes will be: made for this reservation, which may have further jobs in it.
        nodes: how many; each runs one allocator.
        procs: CPU ranks on each, 0 with GPUs. gpus: on each, 0 with CPU ranks.
        time_s: how long; 0 when the user has not said.
        arguments: for the engine alone: what stands after ` -- `.
        paths: of the job, in its pool. Nobody else can enter its directory, and it is removed with the job.
        target: what of the engine is meant: "lab" of `--on ssh:lab`; empty when it is not said.
        preload: what the ranks will have imported already.
        beside: names of the nodes that the pool has already: new ones are to be other machines.
        further_to: what the engine calls the jobs that brought these.
    """

    reservation: str
    pool: str
    nodes: int
    procs: int
    gpus: int
    time_s: float
    arguments: tuple[str, ...]
    paths: TrustPaths
    target: str = ""
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    beside: tuple[str, ...] = ()
    further_to: tuple[str, ...] = ()

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
        if self.preload != DEFAULT_PRELOAD:
            command += [f"--preload={module}" for module in self.preload or ("",)]
        command += ["--publish", str(self.paths.published)] if publish else []
        command += ["--node-id", node_id] if node_id else []
        return [*command, *(["--toward", *toward] if toward else [])]

    def removal(self) -> str:
        """Return a line of the shell for when all allocators of the job have ended as they should: it removes what is
        remembered of the job, and its pool with the last job of it."""
        own, jobs = self.paths.directory, self.paths.directory.parent
        remove = ["rm", "-rf"]
        is_last = f"{shlex.join(['rmdir', str(jobs)])} 2> /dev/null"
        return f"{shlex.join([*remove, str(own)])}; if {is_last}; then {shlex.join([*remove, str(jobs.parent)])}; fi"


@dataclass(frozen=True)
class Job:
    """What an engine was asked for, as it is remembered on disk.

    Attributes:
        on: what was asked, as in `--on`: "slurm", "ssh:lab". id: as the engine calls it; empty while it is being asked.
        nodes, procs, gpus, paths, arguments, preload: as in `Ask`.
        served: whether all its nodes have served already. addresses: where these were then.
        price_per_hour: of all its nodes, in US dollars; 0 when the engine does not know.
        unwanted: whether it was to be ended, and the engine did not do it.
    """

    on: str
    id: str
    reservation: str
    pool: str
    nodes: int
    procs: int
    gpus: int
    paths: TrustPaths
    arguments: tuple[str, ...] = ()
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    served: bool = False
    addresses: tuple[str, ...] = ()
    price_per_hour: float = 0.0
    unwanted: bool = False


def size_of(asked: Ask | Job) -> str:
    """Return how much is asked for, as people say it: "2 nodes × 8 gpus"."""
    kind = counted(asked.gpus or asked.procs, "gpu" if asked.gpus else "proc")
    return f"{counted(asked.nodes, 'node')} × {kind}"


@dataclass(frozen=True)
class Look:
    """What an engine says of a job.

    Attributes:
        state: "waiting" for machines; "running", also when some have failed; "ended", whyever.
        text: for people, in one line: "Slurm job 12 waits: Resources, starts at about 14:02".
        trouble: of a job that waits, why it will wait for ever; of one that runs, what has failed, a lost node by its
            name first; of one that has ended, why.
        addresses: of the nodes, `host:port`, as far as they are known; empty where nodes publish themselves.
        ends_at: when the engine ends it, seconds since the epoch; 0 when it does not.
        price_per_hour: of all its nodes, in US dollars; 0 when the engine does not know.
        logged: whether the job's log says more of why it ended.
        no_room: whether it ended as the engine has not what was asked for.
        begins_anew: of a job that waits, whether it had its nodes already: what was on them is gone.
    """

    state: Literal["waiting", "running", "ended"]
    text: str
    trouble: str = ""
    addresses: tuple[str, ...] = ()
    ends_at: float = 0.0
    price_per_hour: float = 0.0
    logged: bool = True
    no_room: bool = False
    begins_anew: bool = False


@dataclass(frozen=True)
class Offer:
    """What an engine says of something that it is not asked for yet.

    Attributes:
        text: for people, in one line: "would start at about 14:02, in the partition main"; empty for nothing to say.
        price_per_hour: of all nodes, in US dollars; 0 when the engine does not know.
    """

    text: str = ""
    price_per_hour: float = 0.0


@runtime_checkable
class Launcher(Protocol):
    """Asks an engine for nodes. No call waits for them.

    One that knows several engines, clusters or groups of machines has an attribute `targets` as well, which says what
    can stand after `--on NAME:`, as in "POOL"; `Ask.target` is what stands there. For the panel's form it can be
    `HasOptions` and `HasOffers`, too.
    """

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

    def end(self, job: Job) -> Sequence[str] | None:
        """End a job, whatever it does; again is as once. Return the nodes that can not be told now, if there are any:
        the next job that reaches them ends what runs there.

        Raises:
            PoolError: the engine does not answer.
        """


@runtime_checkable
class HasOptions(Protocol):
    """A launcher that says what people choose in a form, beside nodes, their slots and time."""

    def options(self) -> Sequence[Option]:
        """Return them, each with its flag. The engine may be asked, for a second or so.

        Raises:
            PoolError: nothing can be had of it here: it is not installed, say. The form leaves it out.
        """


@runtime_checkable
class HasOffers(Protocol):
    """A launcher that knows something of what it would be asked for."""

    def offer(self, ask: Ask) -> Offer:
        """Return it, and ask for nothing. The pool's directory need not be there.

        Raises:
            MonarchNbError: what `ask` would raise, as far as that is known.
        """


def options_of(engine: Launcher) -> list[Option]:
    """Return what people choose of an engine: its own options; flags can be written in any case."""
    return [*engine.options()] if isinstance(engine, HasOptions) else []


def offer_of(engine: Launcher, ask: Ask) -> Offer:
    """Return what an engine says of something that it is not asked for yet."""
    return engine.offer(ask) if isinstance(engine, HasOffers) else Offer()


def priced(per_hour: float) -> str:
    """Return a price in US dollars as people read it; empty when it is not known.

    Example:
        >>> priced(12.4)
        '≈ $12.40 an hour'
    """
    return f"≈ ${per_hour:,.2f} an hour" if per_hour else ""


class EngineFlags(argparse.ArgumentParser):
    """Reads what stands after ` -- ` for an engine; what is wrong there is an error of ours."""

    def __init__(self, engine: str) -> None:
        super().__init__(prog="", add_help=False, allow_abbrev=False)
        self._engine = engine

    def error(self, message: str) -> NoReturn:
        known = ", ".join(flag for action in self._actions for flag in action.option_strings)
        raise UsageError(f"after the -- for {self._engine}: {message}; there are {known}")


def flags_of(options: Sequence[Option], values: Mapping[str, object]) -> list[str]:
    """Return what was chosen, by the options' names, as flags, those of one dash as two words; what was left empty is
    the engine's to choose.

    Example:
        >>> partition = Option("partition", "Partition", "text", "", flag="--partition")
        >>> flags_of([partition], {"partition": "a100"}), flags_of([partition], {"partition": None})
        (['--partition=a100'], [])
    """
    flags = []
    for option in options:
        value = values.get(option.name)
        if value is True:
            flags.append(option.flag)
        elif value not in (None, "", False):
            flags += [f"{option.flag}={value}"] if option.flag.startswith("--") else [option.flag, str(value)]
    return flags


def launcher(on: str) -> Launcher:
    """Return the launcher that is meant by `--on NAME` or `--on NAME:TARGET`.

    Raises:
        UsageError: there is none, and the message lists those that are installed; or it has no targets.
        PoolError: its code can not be loaded.
    """
    name, _, target = on.partition(":")
    if (made := _launcher(name)) is None:
        names = launcher_names()
        meant = "".join(f"did you mean {near}? " for near in get_close_matches(name, names, n=1))
        raise UsageError(f"--on {on}: there is no such engine; {meant}installed: {', '.join(names) or 'none'}")
    if target and not getattr(made, "targets", ""):
        raise UsageError(f"--on {on}: this engine takes no target: --on {name}")
    return made


def target_of(on: str) -> str:
    """Return what `--on NAME:TARGET` means of an engine; empty when it is not said.

    Example:
        >>> target_of("ssh:lab"), target_of("slurm")
        ('lab', '')
    """
    return on.partition(":")[2]


@cache
def _launcher(name: str) -> Launcher | None:
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name and isinstance(made := _loaded(point), Launcher):
            return made
    return None


def _loaded(point: EntryPoint) -> object:
    """Return what an entry point makes: somebody else's code, which may fail in any way."""
    try:
        return point.load()()
    except Exception as error:  # whatever it is, the user is told whose it is
        package = point.dist.name if point.dist else ""
        of = f" of the package {package}" if package else ""
        again = f"pip install --force-reinstall {package}" if package else "install it again"
        raise PoolError(
            f"--on {point.name}: the entry point {point.name} = {point.value}{of} can not be loaded "
            f"({type(error).__name__}: {error}): {again}, with what it needs, or tell whoever wrote it"
        ) from error


def launcher_names() -> list[str]:
    """Return what can stand after `--on`."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - {"hosts", "local"})
