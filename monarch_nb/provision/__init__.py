"""Ways to obtain nodes: one file each, found by the entry points of the group `monarch_nb.provisioners`.

jobs       nodes that an engine is asked for: a pool for each job, awaited, found again, priced, ended
slurm      an engine: jobs of Slurm
lsf        an engine: jobs of LSF
lightning  an engine: jobs of Lightning AI
skypilot   clusters of SkyPilot: the launcher, and the process that asks SkyPilot for it
ssh        an engine: hosts that ssh reaches
remote     what is done on these
kubernetes pods of a Kubernetes cluster: the launcher, what it asks for, and how it asks
ray        nodes of a Ray cluster: the launcher, the process that asks Ray for it, and what runs on Ray's nodes
helpers    how engines are asked: by their commands, or by processes that talk to them for a kernel
launchers  what every engine can do
known      which pools there are by name; what a local one is, and what it would become
local      nodes of this machine: started, given another shape, ended
hosts      allocators that run on other machines: found, never started
daemons    allocators as daemons: detached, awaited, asked and ended
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from monarch_nb.config import DEFAULT_POOL, NodePaths
from monarch_nb.errors import UsageError
from monarch_nb.trust.pools import is_pool

if TYPE_CHECKING:
    from monarch_nb.proto import allocator_pb2 as pb
    from monarch_nb.trust.identity import Identity

ENTRY_POINTS = "monarch_nb.provisioners"
MOST_NODES, MOST_PROCS = 64, 256
"""What forms offer at most, and what is started by itself: more processes than this are a slip of the finger."""

NOBODY = ("", "")
"""Name and owner of no reservation."""

Progress = Callable[[str], None]
"""Is told, line by line, what is being done."""


@dataclass(frozen=True)
class Node:
    """A node of a pool.

    Attributes:
        directory: holds everything of the node (see monarch_nb.config.NodePaths); empty when it is on another machine.
        address: where its allocator listens, as gRPC writes it.
        pid: of its allocator; None when it is dead, 0 when it is on another machine: then only it can tell.
        identity: who we are to a node of a network.
        node_address: where other nodes reach it; empty when that is `address`, as far as is known.
    """

    node_id: str
    directory: Path
    address: str
    pid: int | None
    identity: Identity | None = None
    node_address: str = ""

    @property
    def alive(self) -> bool:
        """Whether the node's allocator lives, as far as can be seen without asking it."""
        return self.pid is not None

    @property
    def has_died(self) -> bool:
        """Whether its allocator died; one that is being started for the first time has not."""
        return not self.alive and NodePaths(self.directory).facts.exists()


OptionKind = Literal["integer", "text", "choice", "boolean"]


@dataclass(frozen=True)
class Option:
    """What a provisioner can be asked for: an argument of its `up`, or a flag of an engine's, as a form shows it.

    Attributes:
        name: of the argument. label: for people, short.
        default: what the form has at first.
        minimum, maximum: of an integer.
        choices: of a choice, each with its label.
        flag: of an engine, as it stands after ` -- `: "--partition".
    """

    name: str
    label: str
    kind: OptionKind
    default: int | str | bool
    help: str = ""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[tuple[str, str], ...] = ()
    flag: str = ""


class Provisioner(Protocol):
    """What obtains nodes, and gives them back. Every call is idempotent. As it is here, people start and end nodes."""

    title: str
    """What its pools are called: "local pool"."""

    def options(self, *, pool: str = DEFAULT_POOL) -> list[Option]:
        """Return what `up` can be asked for, in the order in which a form shows it; at first it has what the pool is
        already, if there is one."""
        return []

    def up(
        self,
        nodes: int | None = None,
        procs: int | None = None,
        gpus: str | None = None,
        *,
        isolate: bool = False,
        log_limit: str | None = None,
        pool: str = DEFAULT_POOL,
        progress: Progress | None = None,
    ) -> list[Node]:
        """Have that many nodes; return when they are ready."""

    def room(
        self,
        nodes: int,
        procs: int,
        gpus: int,
        *,
        pool: str = DEFAULT_POOL,
        but: tuple[str, str] = NOBODY,
        progress: Progress | None = None,
    ) -> AbstractContextManager[None]:
        """Have room for a reservation, if that takes nothing from anybody; it is kept for the block. One that is to
        have more, `but`, needs nodes besides its own."""
        return nullcontext()

    def steady(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> AbstractContextManager[None]:
        """Have nodes stay for the block, also those that hold nothing."""
        return nullcontext()

    def prospect(
        self,
        nodes: int,
        procs: int,
        described: Sequence[pb.DescribeReply],
        *,
        pool: str = DEFAULT_POOL,
        but: tuple[str, str] = NOBODY,
    ) -> str:
        """Return what `room` would make of the pool, going by what nodes say; empty when it would change nothing."""
        return ""

    def revive(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> None:
        """Have what runs on nodes be served again whose allocators died, as far as they can be started from here."""

    def heal(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> None:
        """The same for whoever needs a node and has not asked for it: not again and again."""

    def down(self, force: bool = False, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> int:
        """End every node; return how many there were."""

    def nodes(self, *, pool: str = DEFAULT_POOL) -> list[Node]:
        """Return the nodes, also those whose allocator died."""


@cache
def provisioner(name: str = "local") -> Provisioner:
    """Return the provisioner of that name.

    Raises:
        UsageError: there is none; the message lists those that are installed.

    Example:
        >>> provisioner("local").up(nodes=2, procs=4)  # doctest: +SKIP
    """
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise UsageError(f"no provisioner {name!r}; installed: {', '.join(sorted(found)) or 'none'}")
    made: Provisioner = found[name].load()()
    return made


def provisioner_of(pool: str) -> Provisioner:
    """Return what obtains the nodes of a pool: `hosts` for one that `monarch-nb pool` knows, else `local`.

    Example:
        >>> provisioner_of("lab").nodes(pool="lab")  # doctest: +SKIP
    """
    return provisioner("hosts" if is_pool(pool) else "local")
