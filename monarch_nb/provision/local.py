"""The local pool: nodes of this machine, one allocator daemon each, listening on Unix sockets only."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.config import (
    DEFAULT_POOL,
    DEFAULT_PRELOAD,
    LOG_LIMIT_VARIABLE,
    POOL_READY,
    NodePaths,
    cadence,
    gap,
    home_directory,
    patience,
    pool_directory,
    private_directory,
)
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError, UsageError
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.interrupting import at_waits, pause
from monarch_nb.ground.rank_sets import counted, listed
from monarch_nb.provision import MOST_NODES, MOST_PROCS, NOBODY, Node, Option, Progress
from monarch_nb.provision.known import (
    PoolShape,
    change_for,
    check_known,
    read_shape,
    too_much,
    wanted_shape,
    why_no_local_pool,
    write_shape,
)
from monarch_nb.sizes import bytes_of
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.proto import allocator_pb2 as pb

KEPT = "kept"
"""In the state directory: what ranks wrote and outlives its pool. No pool has that name."""
SERVE_TIMEOUT_S = patience(30.0)
END_TIMEOUT_S = patience(30.0)
"""How long an allocator that does not answer has time to end by itself."""
REMOVAL_TIMEOUT_S = patience(600.0)
"""One that answers ends its ranks at once, then removes the files of its node: a slow disk needs minutes for many."""
_QUIET_S = cadence(5.0)
"""How long it does so before that is said."""
MOST_HEALINGS, HEALINGS_WITHIN_S = 3, gap(600.0)
"""So often in so long allocators that died are started again though nobody has asked for it: what killed them may do it
again."""
HEALING_WAIT_S = patience(5.0)
"""Who does so waits so long for others that change the pool."""
_LOOK_S = cadence(0.05)
_HEALINGS = "healings"
"""In the pool's directory: when that was, one time in a line."""
WARM_TIMEOUT_S = patience(180.0)
"""All templates of a pool: sixteen that import torch at once need 22 s on two cores."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")


class LocalProvisioner:
    """Starts and ends the allocators of the local pool. Every call is idempotent.

    Example:
        >>> nodes = LocalProvisioner().up(nodes=2, procs=4, progress=print)  # doctest: +SKIP
    """

    title = "local pool"

    def options(self, *, pool: str = DEFAULT_POOL) -> list[Option]:
        """Return what `up` can be asked for; at first what the pool is already, if there is one. Nothing where no local
        pool can be."""
        if why_no_local_pool():
            return []
        cores = usable_cpus()
        nodes = len(self.nodes(pool=pool)) or 1
        shape = read_shape(_checked_directory(pool)) or PoolShape(cores, "all")
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
        its directory, where it adopts its ranks. A pool that holds nothing is made anew where that takes another shape,
        or fewer nodes.

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
            PoolError: this machine can have no local pool, the pool has another shape and holds something, or an
                allocator did not start (its last log lines are told).
        """
        _check_request(nodes, procs, gpus, log_limit)
        say = progress or _silent
        directory = _checked_directory(pool)
        with _exclusive(say):
            (directory / _HEALINGS).unlink(missing_ok=True)  # whoever asks for it has seen what kills them
            before = self.nodes(pool=pool)
            now = read_shape(directory) if before else None
            wanted, count = wanted_shape(now, procs, gpus, isolate, log_limit), nodes or len(before) or 1
            if before and (wanted != now or count < len(before)):
                with _locked(directory, fcntl.LOCK_EX, say, "others are reserving"):
                    _reshape(directory, before, count, wanted, say)
            else:
                _have(directory, before, count, wanted, say)
            return self.nodes(pool=pool)

    @contextmanager
    def room(
        self,
        nodes: int,
        procs: int,
        gpus: int,
        *,
        pool: str = DEFAULT_POOL,
        but: tuple[str, str] = NOBODY,
        progress: Progress | None = None,
    ) -> Iterator[None]:
        """Make room for a reservation, as far as that takes nothing from anybody; until the block ends, nobody else
        changes the pool, or takes (see `steady`) what was made.

        A pool that is not up is started, if its name means one. One that started by itself, or holds nothing, gets the
        nodes that are missing; when nodes have too few slots, one that holds nothing is made anew. Else nothing is
        changed.

        Args:
            nodes: how many are asked for.
            procs, gpus: how many of one kind, of each node; 0 of the other.
            pool: its name.
            but: name and owner of a reservation that is to have more nodes: its own are none of these.
            progress: told line by line what is being done.

        Raises:
            UsageError: so much that it must be a slip of the finger.
            NoSuchPool: the name means no pool.
            CapacityError: no pool is up, and this machine has not so many GPUs.
            PoolError: this machine can have no local pool, or an allocator did not start or did not end.
        """
        _check_request(nodes, procs or None, None)
        if nodes > MOST_NODES or procs > MOST_PROCS:
            raise UsageError(f"a local pool has at most {MOST_NODES} nodes × {MOST_PROCS} procs, unless `up` starts it")
        say = progress or _silent
        directory = _checked_directory(pool)
        with _exclusive(say):
            check_known(pool)  # only now: `down` may have ended it while we waited
            before = self.nodes(pool=pool)
            if gpus and not before:
                _check_gpus(nodes, gpus)
            with _locked(private_directory(directory), fcntl.LOCK_EX, say, "others are reserving"):
                if before:
                    _make_room(directory, before, nodes, procs, but, say)
                else:
                    asked = f"{counted(nodes, 'node')} × {counted(procs or gpus, 'proc' if procs else 'gpu')}"
                    say(f"no pool is up: starting a local one, {asked}")
                    shape = wanted_shape(None, procs or None, None, isolate=False, log_limit=None)
                    began = time.monotonic()
                    _have(directory, before, nodes, replace(shape, by_itself=True), say)
                    say(f"{POOL_READY} in {time.monotonic() - began:.1f} s")
                yield

    @contextmanager
    def steady(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> Iterator[None]:
        """Until the block ends, nobody ends the pool's nodes for holding nothing."""
        with ExitStack() as stack:
            try:
                shared = _locked(_checked_directory(pool), fcntl.LOCK_SH, progress or _silent, "the pool is changing")
                stack.enter_context(shared)
            except FileNotFoundError:
                pass  # it is not up
            yield

    def prospect(
        self,
        nodes: int,
        procs: int,
        described: Sequence[pb.DescribeReply],
        *,
        pool: str = DEFAULT_POOL,
        but: tuple[str, str] = NOBODY,
    ) -> str:
        """Return what the pool would become in `room`, going by what its nodes say; empty when it would stay as it is.

        Example:
            >>> provisioner().prospect(2, 8, described)  # doctest: +SKIP
            '2 nodes × 8 procs'
        """
        shape = read_shape(_checked_directory(pool))
        change = change_for(
            nodes, procs, described, by_itself=shape is not None and shape.by_itself, cores=usable_cpus(), but=but
        )
        return str(change or "")

    def revive(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> None:
        """Start the allocators again that died, however often, for somebody who ends what their ranks hold; return when
        they serve. They adopt the ranks that live.

        Args:
            pool: its name.
            progress: told line by line what is being done.

        Raises:
            PoolError: an allocator did not start (its last log lines are told).
        """
        if all(node.alive for node in self.nodes(pool=pool)):
            return
        say = progress or _silent
        with _exclusive(say):
            _revive(_checked_directory(pool), self.nodes(pool=pool), say)

    def heal(self, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> None:
        """Start the allocators again that died, for whoever needs a node now and has not asked for this: at most three
        times in ten minutes. Errors are told, too, and nobody waits long while somebody else changes the pool.

        Args:
            pool: its name.
            progress: told line by line what is being done.
        """
        if not _lost(self.nodes(pool=pool)):
            return
        say = progress or _silent
        try:
            with _exclusive(say, HEALING_WAIT_S):
                directory, lost = _checked_directory(pool), _lost(self.nodes(pool=pool))
                if lost and _may_heal(directory, lost[0], say):
                    _revive(directory, lost, say)
        except (PoolError, OSError) as error:
            say(str(error))

    def down(self, force: bool = False, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> int:
        """End every node with all its ranks and remove its files, also what ranks printed; return how many nodes there
        were. What ranks wrote into their copies of a notebook's files is kept, and `progress` told where.

        Args:
            force: also when reservations are held.
            pool: its name.
            progress: told line by line what is being done.

        Raises:
            NoSuchPool: the name means no pool.
            PoolError: reservations are held (the message names them) and `force` is false, or a node can not be ended.
        """
        say = progress or _silent
        directory = _checked_directory(pool)
        if not directory.exists():  # else something is left to be removed
            check_known(pool)
        with _exclusive(say), ExitStack() as stack:
            nodes = self.nodes(pool=pool)
            if _revive(directory, nodes, say):
                nodes = self.nodes(pool=pool)
            if nodes and not force:
                stack.enter_context(_locked(directory, fcntl.LOCK_EX, say, "others are reserving"))
                _refuse_if_held(nodes)
            if nodes:
                say(f"ending {counted(len(nodes), 'node')}, with what ranks printed there")
            _end(nodes, say)
            shutil.rmtree(directory, ignore_errors=True)
            return len(nodes)

    def nodes(self, *, pool: str = DEFAULT_POOL) -> list[Node]:
        """Return the pool's nodes in order, also those whose allocator died."""
        found = [path for path in _checked_directory(pool).glob("node*") if path.name[4:].isdigit()]
        return [_read_node(path) for path in sorted(found, key=lambda path: int(path.name[4:]))]


def _check_gpus(nodes: int, gpus: int) -> None:
    from monarch_nb.allocator.readings.gpus import discover_gpus

    if not (found := discover_gpus()):
        raise CapacityError("this machine has no GPU (NVML finds none); --procs N asks for CPU ranks")
    if nodes > 1 or gpus > len(found):
        asked = f"{counted(nodes, 'node')} × {counted(gpus, 'gpu')}"
        raise CapacityError(f"{asked} asked for; this machine is 1 node with {len(found)} GPUs")


def _check_request(nodes: int | None, procs: int | None, gpus: str | None, log_limit: str | None = None) -> None:
    if why := why_no_local_pool():
        raise PoolError(why)
    if limit := log_limit or os.environ.get(LOG_LIMIT_VARIABLE):
        bytes_of(limit, "the log limit" if log_limit else f"${LOG_LIMIT_VARIABLE}")
    for name, value in (("nodes", nodes), ("procs", procs)):
        if value is not None and value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}")
    if gpus not in (None, "all", "none"):
        raise UsageError(f'gpus of the local pool are "all" or "none", not {gpus!r}')


def _checked_directory(pool: str) -> Path:
    if not _NAME.fullmatch(pool) or pool == KEPT:
        raise UsageError(f"{pool!r} is no name for a pool: letters, digits, '-', '_' and '.', at most 32")
    return pool_directory(pool)


def _read_node(directory: Path) -> Node:
    from monarch_nb.allocator.supervision.processes import is_alive
    from monarch_nb.proto.state_pb2 import ProcessIdentity

    paths = NodePaths(directory)
    address = f"unix:{paths.allocator_socket}"
    try:
        facts = json.loads(paths.facts.read_text())
    except FileNotFoundError:
        return Node(directory.name, directory, address, None)
    identity = ProcessIdentity(pid=facts["pid"], start_ticks=facts["start_ticks"], boot_id=facts["boot_id"])
    return Node(directory.name, directory, address, identity.pid if is_alive(identity) else None)


def _have(directory: Path, before: Sequence[Node], count: int, shape: PoolShape, say: Progress) -> None:
    """Start those of `count` nodes that do not live."""
    alive = {node.node_id for node in before if node.alive}
    missing = [node_id for node_id in map("node{}".format, range(count)) if node_id not in alive]
    if missing:
        if died := [node.node_id for node in before if not node.alive]:
            say(_died(died))
        if much := too_much(count, shape.procs, usable_cpus()):
            say(much)
        imported = "".join(f", importing {name}" for name in DEFAULT_PRELOAD if name)
        say(f"starting {counted(len(missing), 'local node')} × {shape}{imported}")
        write_shape(private_directory(directory), shape)
        _start(directory, missing, shape, say, until_warm=True)


def _died(node_ids: Sequence[str]) -> str:
    if len(node_ids) == 1:
        return f"the allocator of {node_ids[0]} died; a new one adopts its ranks"
    return f"the allocators of {listed(node_ids)} died; new ones adopt their ranks"


def _revive(directory: Path, nodes: Sequence[Node], say: Progress) -> bool:
    """Start the allocators again that died, as they were; return whether there were such. Only an allocator knows which
    processes are its own: it adopts them, and then can end them."""
    dead = [node.node_id for node in nodes if not node.alive]
    if dead:
        say(_died(dead))
        shape = read_shape(directory) or PoolShape(1, "none")
        _start(directory, dead, shape, say, until_warm=False, as_before=True)
    return bool(dead)


def _lost(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes whose allocators died."""
    return [node for node in nodes if node.has_died]


def _may_heal(directory: Path, lost: Node, say: Progress) -> bool:
    """Return whether allocators may be started again once more, and note that they are; the first time that they may
    not is noted, too, and said. Where there is no room for the note, somebody has to ask."""
    note, now = directory / _HEALINGS, time.time()
    times: list[float] = []
    with suppress(FileNotFoundError, ValueError):
        times = [float(each) for each in note.read_text().split()]
    recent = [each for each in times if 0 <= now - each < HEALINGS_WITHIN_S]
    if len(recent) > MOST_HEALINGS:
        return False
    with suppress(OSError):
        partial = note.with_suffix(".partial")
        partial.write_text("\n".join(map(str, [*recent, now])))
        partial.replace(note)
        if len(recent) < MOST_HEALINGS:
            return True
        log = NodePaths(lost.directory).allocator_log
        say(
            f"{lost.node_id}: allocators of this pool died more than {MOST_HEALINGS} times in "
            f"{duration(HEALINGS_WITHIN_S)}, and are not started by themselves now. See {log} and the kernel's log "
            "(dmesg); monarch-nb up starts them"
        )
    return False


def _make_room(
    directory: Path, before: Sequence[Node], nodes: int, procs: int, but: tuple[str, str], say: Progress
) -> None:
    from monarch_nb.provision.daemons import describe

    shape = read_shape(directory)
    try:
        described = [describe(node.address) for node in before]
    except NodeUnreachable:  # nobody knows what it holds
        return
    if shape is None or not (
        change := change_for(nodes, procs, described, by_itself=shape.by_itself, cores=usable_cpus(), but=but)
    ):
        return
    shape = replace(shape, procs=change.procs, by_itself=True)
    if change.anew:
        say(f"the pool holds nothing: making it {change}")
        _make_anew(directory, before, change.nodes, shape, say)
        say(f"the local pool held nothing: now {change}")
    else:
        _have(directory, before, change.nodes, shape, say)
        say(f"the local pool has grown: now {change}")


def _reshape(directory: Path, before: Sequence[Node], count: int, shape: PoolShape, say: Progress) -> None:
    """Make a pool anew that holds nothing, as somebody wants it.

    Raises:
        PoolError: it holds something.
    """
    now = f"{counted(len(before), 'node')} × {read_shape(directory)}"
    wanted = f"{counted(count, 'node')} × {shape}"
    if _revive(directory, before, say):
        before = [_read_node(node.directory) for node in before]
    if holders := _holders(before):
        raise PoolError(
            f"the pool {directory.name!r} is up with {now}, and held by {', '.join(holders)}: release first "
            f"(monarch-nb release NAME), and it can become {wanted}"
        )
    say(f"the pool {directory.name!r} holds nothing: {now} become {wanted}")
    _make_anew(directory, before, count, shape, say)


def _make_anew(directory: Path, before: Sequence[Node], count: int, shape: PoolShape, say: Progress) -> None:
    """End all nodes and start others, which get their logs. Ctrl-C waits while there are none; then they go on to start
    without us."""
    node_ids = [f"node{index}" for index in range(count)]
    if much := too_much(count, shape.procs, usable_cpus()):
        say(much)
    try:
        with at_waits():
            _end(before, say, keep_logs=True)
            for index, node in enumerate(before):
                _pass_on_logs(node, directory / node_ids[index % count])
            write_shape(directory, shape)
    except KeyboardInterrupt:
        _start(directory, node_ids, shape, say, until_warm=False)
        raise
    _start(directory, node_ids, shape, say, until_warm=True)


def _start(
    directory: Path,
    node_ids: Sequence[str],
    shape: PoolShape,
    say: Progress,
    *,
    until_warm: bool,
    as_before: bool = False,
) -> None:
    from monarch_nb.provision.daemons import Starting, start_again, start_allocator, wait_for_lines

    began = time.monotonic()
    ready: list[str] = []

    def came(one: Starting) -> None:
        if one.template_error:
            raise PoolError(f"{one.node_id} serves, but ranks can not be started there: {one.template_error}")
        ready.append(one.node_id)
        say(f"{one.node_id} is ready ({len(ready)} of {len(starting)}, {time.monotonic() - began:.1f} s)")

    def launch(node_id: str) -> Starting:
        paths = NodePaths(private_directory(directory / node_id))
        if as_before and (again := start_again(paths, node_id)) is not None:
            return again
        return start_allocator(
            paths,
            node_id,
            shape.procs,
            shape.gpus if node_id == "node0" else "none",
            DEFAULT_PRELOAD,
            isolate=shape.isolate,
            log_limit=shape.log_limit,
        )

    starting: list[Starting] = []
    new = [node_id for node_id in node_ids if not NodePaths(directory / node_id).facts.exists()]
    with ExitStack() as stack:
        try:
            with at_waits():  # all of them, or a pool would be half there
                for node_id in node_ids:
                    starting.append(launch(node_id))
                    stack.callback(starting[-1].close)
            wait_for_lines(starting, 1, began + SERVE_TIMEOUT_S)
            if until_warm:
                wait_for_lines(starting, 2, began + WARM_TIMEOUT_S, came)
        except KeyboardInterrupt:
            say(
                f"interrupted: ending the {counted(len(new), 'node')} that {'was' if len(new) == 1 else 'were'} started"
            )
            # Let them get to where they can be told; others have ranks to adopt, and go on.
            wait_for_lines(starting, 1, time.monotonic() + SERVE_TIMEOUT_S)
            _take_away(directory, new, say)
            raise


def _take_away(directory: Path, node_ids: Iterable[str], say: Progress) -> None:
    """End new nodes, but those that somebody holds already; the pool is as it was before them."""
    from monarch_nb.provision.daemons import describe

    nodes = [node for node in map(_read_node, map(directory.joinpath, node_ids)) if node.alive]
    idle = [node for node in nodes if not describe(node.address).holders]
    _end(idle, say)
    for node in idle:
        shutil.rmtree(node.directory, ignore_errors=True)
    if not list(directory.glob("node*")):
        shutil.rmtree(directory, ignore_errors=True)


def _holders(nodes: Iterable[Node]) -> list[str]:
    from monarch_nb.provision.daemons import describe

    holders = (holder for node in nodes for holder in describe(node.address).holders)
    return list(dict.fromkeys(f"{holder.reservation} ({holder.owner})" for holder in holders))


def _refuse_if_held(nodes: Iterable[Node]) -> None:
    if holders := _holders(nodes):
        raise PoolError(
            f"held by {', '.join(holders)}: release first (monarch-nb release NAME), or end everything with "
            "monarch-nb down --force"
        )


def _end(nodes: Sequence[Node], say: Progress, *, keep_logs: bool = False) -> None:
    """End nodes; what ranks wrote into their copies of a notebook's files is kept.

    Args:
        keep_logs: leave what meshes printed that have ended in the nodes' directories.
    """
    from monarch_nb.allocator.supervision.processes import identify
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
            ask = partial(shut_down, keep_logs=keep_logs)
            answered = list(threads.map(ask, [node.address for node, _ in watched]))
        stubborn = []
        for (node, process), has_answered in zip(watched, answered, strict=True):
            if has_answered and not process.wait(_QUIET_S):
                say(f"removing the files of {node.node_id}")
            if not process.end(REMOVAL_TIMEOUT_S if has_answered else END_TIMEOUT_S):
                stubborn.append(node.node_id)
    if stubborn:
        raise PoolError(f"killed {', '.join(stubborn)}, which did not end when asked; run monarch-nb down again")
    for node in nodes:
        shutil.rmtree(NodePaths(node.directory).sockets, ignore_errors=True)
        for place in _keep(node):
            say(f"kept the files that ranks wrote on {node.node_id}: {place}")


def _pass_on_logs(node: Node, successor: Path) -> None:
    """Remove the directory of a node that has ended; what meshes printed there that have ended is its successor's."""
    from monarch_nb.allocator.logs.kept import take_over

    logs = NodePaths(node.directory).logs
    if node.directory != successor:
        take_over(logs, NodePaths(private_directory(successor)).logs)
        shutil.rmtree(node.directory, ignore_errors=True)
        return
    for path in {*node.directory.glob("*")} - {logs}:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _keep(node: Node) -> Iterator[Path]:
    """Move what ranks wrote to where it outlives the pool; yield the places."""
    kept = NodePaths(node.directory).kept
    if not kept.exists():
        return
    target = private_directory(private_directory(home_directory() / KEPT) / time.strftime("%Y%m%d-%H%M%S"))
    for path in kept.iterdir():
        yield path.rename(target / f"{path.name}-{node.node_id}")


def _exclusive(say: Progress, within_s: float = math.inf) -> AbstractContextManager[None]:
    """One process at a time changes the pools of a home."""
    return _locked(home_directory(), fcntl.LOCK_EX, say, "another process is starting or ending the pool", within_s)


@contextmanager
def _locked(directory: Path, kind: int, say: Progress, why: str, within_s: float = math.inf) -> Iterator[None]:
    """Hold a lock on a directory; waiting for another can be interrupted.

    Raises:
        PoolError: the other has held it for `within_s`.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _take(handle, kind):
            say(f"waiting: {why}")
            deadline = time.monotonic() + within_s
            while not _take(handle, kind):
                if time.monotonic() > deadline:
                    raise PoolError(f"{why}, for more than {within_s:g} s")
                pause(_LOOK_S)
        yield
    finally:
        os.close(handle)


def _take(handle: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
        return True
    return False


def _silent(_: str) -> None:
    pass
