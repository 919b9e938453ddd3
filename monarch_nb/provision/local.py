"""The local pool: nodes of this machine, one allocator daemon each, listening on Unix sockets only."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from monarch_nb.config import (
    DEFAULT_POOL,
    DEFAULT_PRELOAD,
    LOG_LIMIT_VARIABLE,
    NodePaths,
    home_directory,
    pool_directory,
    private_directory,
)
from monarch_nb.errors import PoolError, UsageError
from monarch_nb.provision import Node, Option, Progress
from monarch_nb.shape import counted
from monarch_nb.sizes import bytes_of

KEPT = "kept"
"""In the state directory: what ranks wrote and outlives its pool. No pool has that name."""
SERVE_TIMEOUT_S = 30.0
END_TIMEOUT_S = 30.0
"""How long an allocator that does not answer has time to end by itself."""
REMOVAL_TIMEOUT_S = 600.0
"""One that answers ends its ranks at once, then removes the files of its node: a slow disk needs minutes for many."""
_QUIET_S = 5.0
"""How long it does so before that is said."""
WARM_TIMEOUT_S = 180.0
"""All templates of a pool: sixteen that import torch at once need 22 s on two cores."""

MOST_NODES, MOST_PROCS = 64, 256
"""What forms offer at most: more processes than this are a slip of the finger."""

_SHAPE_FILE = "pool.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")


@dataclass(frozen=True)
class PoolShape:
    """What every node of a local pool is.

    Attributes:
        procs: CPU slots of each node.
        gpus: "all" or "none": whether the first node owns this machine's GPUs.
        isolate: every node has copies of the notebook's files instead of the files themselves.
        log_limit: how much of what ranks print each node keeps; "" for the default.
    """

    procs: int
    gpus: str
    isolate: bool = False
    log_limit: str = ""

    def __str__(self) -> str:
        text = counted(self.procs, "proc") + (", no GPUs" if self.gpus == "none" else "")
        text += ", isolated" if self.isolate else ""
        return text + (f", log limit {self.log_limit}" if self.log_limit else "")


class LocalProvisioner:
    """Starts and ends the allocators of the local pool. Every call is idempotent.

    Example:
        >>> nodes = LocalProvisioner().up(nodes=2, procs=4, progress=print)  # doctest: +SKIP
    """

    title = "local pool"

    def options(self, *, pool: str = DEFAULT_POOL) -> list[Option]:
        """Return what `up` can be asked for; at first what the pool is already, if there is one."""
        cores = os.cpu_count() or 1
        nodes = len(self.nodes(pool=pool)) or 1
        shape = _read_shape(_checked_directory(pool)) or PoolShape(cores, "all")
        gpus = (("all", "all of this machine's"), ("none", "none"))
        return [
            Option("nodes", "Nodes", "integer", nodes, "on this machine, each with an allocator", 1, MOST_NODES),
            Option("procs", "CPU slots per node", "integer", shape.procs, f"it has {cores} cores", 1, MOST_PROCS),
            Option("gpus", "GPUs", "choice", shape.gpus, "the first node owns them", choices=gpus),
            Option("isolate", "Isolated", "boolean", shape.isolate, "nodes get copies of the notebook's files"),
        ]

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
        """Have `nodes` nodes; return when the template process of each is warm.

        The same shape again returns at once, more nodes are added, and a node whose allocator died is started again in
        its directory, where it adopts its ranks.

        Args:
            nodes: None for as many as there are, else one.
            procs: CPU slots of each node; None for what the pool has, else one per core.
            gpus: "all" (the first node owns this machine's GPUs, the default) or "none".
            isolate: the nodes share no files with anybody, as nodes of other machines do not.
            log_limit: how much of what ranks print each node keeps, as in "20GB" ("0": all); the oldest goes. None for
                what the pool has, else $MONARCH_NB_LOG_LIMIT, else 20 GB or a quarter of the disk if that is less.
            pool: its name.
            progress: told line by line what is being done.

        Raises:
            UsageError: a number or a name that makes no sense.
            PoolError: the pool is up with another shape, or an allocator did not start (its last log lines are told).
        """
        _check_request(nodes, procs, gpus)
        if limit := log_limit or os.environ.get(LOG_LIMIT_VARIABLE):
            bytes_of(limit, "the log limit" if log_limit else f"${LOG_LIMIT_VARIABLE}")
        say = progress or _silent
        directory = _checked_directory(pool)
        with _exclusive(say):
            before = self.nodes(pool=pool)
            shape = _agree_on_shape(directory, before, nodes, procs, gpus, isolate, log_limit)
            count = max(nodes or 1, len(before))
            alive = {node.node_id for node in before if node.alive}
            missing = [node_id for node_id in map("node{}".format, range(count)) if node_id not in alive]
            if missing:
                if died := [node.node_id for node in before if not node.alive]:
                    say(f"the allocator of {', '.join(died)} died; a new one adopts its ranks")
                say(f"starting {counted(len(missing), 'local node')} × {shape}")
                _write_shape(private_directory(directory), shape)
                _start(directory, missing, shape, say, until_warm=True)
            return self.nodes(pool=pool)

    def down(self, force: bool = False, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> int:
        """End every node with all its ranks and remove its files; return how many nodes there were. What ranks wrote
        into their copies of a notebook's files is kept, and `progress` told where.

        Args:
            force: also when reservations are held.
            pool: its name.
            progress: told line by line what is being done.

        Raises:
            PoolError: reservations are held (the message names them) and `force` is false, or a node can not be ended.
        """
        say = progress or _silent
        directory = _checked_directory(pool)
        with _exclusive(say):
            nodes = self.nodes(pool=pool)
            dead = [node.node_id for node in nodes if not node.alive]
            if dead:
                # Only an allocator knows which processes are its own: it adopts them, and then ends them.
                say(f"starting {', '.join(dead)} again: its allocator died and may have left ranks")
                _start(directory, dead, _read_shape(directory) or PoolShape(1, "none"), say, until_warm=False)
                nodes = self.nodes(pool=pool)
            if not force:
                _refuse_if_held(nodes)
            if nodes:
                say(f"ending {counted(len(nodes), 'node')}")
            _end(nodes, say)
            for node in nodes:
                shutil.rmtree(NodePaths(node.directory).sockets, ignore_errors=True)
                for place in _keep(node):
                    say(f"kept what ranks wrote on {node.node_id}: {place}")
            shutil.rmtree(directory, ignore_errors=True)
            return len(nodes)

    def nodes(self, *, pool: str = DEFAULT_POOL) -> list[Node]:
        """Return the pool's nodes in order, also those whose allocator died."""
        found = [path for path in _checked_directory(pool).glob("node*") if path.name[4:].isdigit()]
        return [_read_node(path) for path in sorted(found, key=lambda path: int(path.name[4:]))]


def _check_request(nodes: int | None, procs: int | None, gpus: str | None) -> None:
    for name, value in (("nodes", nodes), ("procs", procs)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}")
    if gpus not in (None, "all", "none"):
        raise UsageError(f'gpus of the local pool are "all" or "none", not {gpus!r}')
    if sys.platform != "linux":
        raise PoolError("a local pool needs Linux; name a pool that runs elsewhere")


def _checked_directory(pool: str) -> Path:
    if not _NAME.fullmatch(pool) or pool == KEPT:
        raise UsageError(f"{pool!r} is no name for a pool: letters, digits, '-', '_' and '.', at most 32")
    return pool_directory(pool)


def _agree_on_shape(
    directory: Path,
    before: Sequence[Node],
    nodes: int | None,
    procs: int | None,
    gpus: str | None,
    isolate: bool,
    log_limit: str | None = None,
) -> PoolShape:
    shape = _read_shape(directory)
    if shape is None or not before:
        limit = log_limit or os.environ.get(LOG_LIMIT_VARIABLE, "")
        return PoolShape(procs or os.cpu_count() or 1, gpus or "all", isolate, limit)
    limit = log_limit or shape.log_limit
    wanted = PoolShape(procs or shape.procs, gpus or shape.gpus, isolate or shape.isolate, limit)
    if wanted != shape or (nodes or len(before)) < len(before):
        raise PoolError(
            f"the pool {directory.name!r} is up with {counted(len(before), 'node')} × {shape}; to have "
            f"{counted(nodes or len(before), 'node')} × {wanted}, end it first (monarch-nb down)"
        )
    return shape


def _read_shape(directory: Path) -> PoolShape | None:
    try:
        return PoolShape(**json.loads((directory / _SHAPE_FILE).read_text()))
    except FileNotFoundError:
        return None


def _write_shape(directory: Path, shape: PoolShape) -> None:
    partial = directory / f"{_SHAPE_FILE}.partial"
    partial.write_text(json.dumps(asdict(shape)))
    partial.replace(directory / _SHAPE_FILE)


def _read_node(directory: Path) -> Node:
    from monarch_nb.allocator.processes import is_alive
    from monarch_nb.proto.state_pb2 import ProcessIdentity

    paths = NodePaths(directory)
    address = f"unix:{paths.allocator_socket}"
    try:
        facts = json.loads(paths.facts.read_text())
    except FileNotFoundError:
        return Node(directory.name, directory, address, None)
    identity = ProcessIdentity(pid=facts["pid"], start_ticks=facts["start_ticks"], boot_id=facts["boot_id"])
    return Node(directory.name, directory, address, identity.pid if is_alive(identity) else None)


def _start(directory: Path, node_ids: Iterable[str], shape: PoolShape, say: Progress, *, until_warm: bool) -> None:
    from monarch_nb.provision.daemons import Starting, start_allocator, wait_for_lines

    began = time.monotonic()
    ready: list[str] = []

    def came(one: Starting) -> None:
        if one.template_error:
            raise PoolError(f"{one.node_id} serves, but ranks can not be started there: {one.template_error}")
        ready.append(one.node_id)
        say(f"{one.node_id} is ready ({len(ready)} of {len(starting)}, {time.monotonic() - began:.1f} s)")

    with ExitStack() as stack:
        starting = []
        for node_id in node_ids:
            paths = NodePaths(private_directory(directory / node_id))
            gpus = shape.gpus if node_id == "node0" else "none"
            one = start_allocator(
                paths,
                node_id,
                shape.procs,
                gpus,
                DEFAULT_PRELOAD,
                isolate=shape.isolate,
                log_limit=shape.log_limit,
            )
            stack.callback(one.close)
            starting.append(one)
        try:
            wait_for_lines(starting, 1, began + SERVE_TIMEOUT_S)
            if until_warm:
                wait_for_lines(starting, 2, began + WARM_TIMEOUT_S, came)
        except KeyboardInterrupt:
            say("interrupted: the nodes go on without us (monarch-nb down ends them)")
            # Let them get to where the next `up` or `down` finds them.
            wait_for_lines(starting, 1, time.monotonic() + SERVE_TIMEOUT_S)
            raise


def _refuse_if_held(nodes: Iterable[Node]) -> None:
    from monarch_nb.provision.daemons import describe

    holders = {
        f"{holder.reservation} ({holder.owner})": None for node in nodes for holder in describe(node.address).holders
    }
    if holders:
        raise PoolError(
            f"held by {', '.join(holders)}: release first (monarch-nb release NAME), or end everything with "
            "monarch-nb down --force"
        )


def _end(nodes: Iterable[Node], say: Progress) -> None:
    from monarch_nb.allocator.processes import identify
    from monarch_nb.provision.daemons import Watched, shut_down

    with ExitStack() as stack:
        watched = []
        for node in nodes:
            if node.pid is None:
                raise PoolError(f"{node.node_id} died while it was being ended; run monarch-nb down again")
            process = Watched(identify(node.pid))
            stack.callback(process.close)
            watched.append((node, process))
        with ThreadPoolExecutor(max_workers=16) as threads:
            answered = list(threads.map(shut_down, [node.address for node, _ in watched]))
        stubborn = []
        for (node, process), has_answered in zip(watched, answered, strict=True):
            if has_answered and not process.wait(_QUIET_S):
                say(f"removing the files of {node.node_id}")
            if not process.end(REMOVAL_TIMEOUT_S if has_answered else END_TIMEOUT_S):
                stubborn.append(node.node_id)
    if stubborn:
        raise PoolError(f"killed {', '.join(stubborn)}, which did not end when asked; run monarch-nb down again")


def _keep(node: Node) -> Iterator[Path]:
    """Move what ranks wrote to where it outlives the pool; yield the places."""
    kept = NodePaths(node.directory).kept
    if not kept.exists():
        return
    target = private_directory(private_directory(home_directory() / KEPT) / time.strftime("%Y%m%d-%H%M%S"))
    for path in kept.iterdir():
        yield path.rename(target / f"{path.name}-{node.node_id}")


@contextmanager
def _exclusive(say: Progress) -> Iterator[None]:
    """One process at a time changes the pools of a home; waiting for another can be interrupted."""
    home = os.open(home_directory(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting: another process is starting or ending the pool")
            fcntl.flock(home, fcntl.LOCK_EX)
        yield
    finally:
        os.close(home)


def _silent(_: str) -> None:
    pass
