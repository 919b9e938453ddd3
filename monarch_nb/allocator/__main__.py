"""`python -m monarch_nb.allocator`: run one node in the foreground until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import resource
import signal
import socket
import sqlite3
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from monarch_nb import config
from monarch_nb.allocator.logs.limit import default_limit_bytes
from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.templates import Templates
from monarch_nb.allocator.readings.gpus import discover_gpus, visible
from monarch_nb.config import cadence, patience
from monarch_nb.errors import MonarchNbError, PoolError, UsageError
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.ground.rank_sets import counted
from monarch_nb.ground.room import explained, lacks_room
from monarch_nb.sizes import bytes_of
from monarch_nb.times import seconds_of
from monarch_nb.trust.published import HEARTBEAT_S, Published, overwritten_by, publish, withdraw

if TYPE_CHECKING:
    import grpc

    from monarch_nb.allocator.api.network import Network
    from monarch_nb.allocator.node import Node
    from monarch_nb.proto import allocator_pb2 as pb
    from monarch_nb.trust.identity import Identity

_log = logging.getLogger(__name__)

FRESHEN_S = cadence(60.0)
LOOK_EVERY_S = cadence(1.0)
"""How often a temporary node looks whether it holds something."""
LAST_S = patience(5.0)
"""So long what is cancelled may take to end."""
DESCRIPTORS = 1 << 16
"""A rank needs three, and the usual limit is 1024."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("monarch-nb allocator", description="Run one node's allocator in the foreground.")
    parser.add_argument("--directory", type=Path, help="state of the node (default: a node of the local pool)")
    parser.add_argument("--node-id", help="unique in the pool (default: node0; with --listen this host's name)")
    network = parser.add_argument_group("nodes of a network", "Always encrypted, for certificates of the pool only.")
    network.add_argument(
        "--listen", metavar="HOST:PORT", help="serve other machines too, as in host1:7878 (this port when none is said)"
    )
    toward = "listen on the interface that leads to the first of these hosts that is another machine, on any port"
    network.add_argument("--toward", metavar="HOST", nargs="+", help=toward)
    network.add_argument("--port", type=int, help="of --toward, when it is to be the same each time")
    network.add_argument("--pool", default=None, help="whose certificate to use: monarch-nb pool init made it")
    network.add_argument("--certificate", metavar="FILE", help="the node.pem to use (default: the pool's)")
    network.add_argument(
        "--interface", metavar="NAME", help="on which stores, Gloo and NCCL listen (default: that of --listen)"
    )
    network.add_argument(
        "--advertise", metavar="HOST:PORT", help="where others reach this node (default: what --listen says)"
    )
    network.add_argument("--publish", metavar="DIR", type=Path, help="publish this node in a directory that all share")
    temporary = "for a job: a signal ends everything, and so does this time without a reservation; no files stay"
    network.add_argument("--temporary", metavar="TIME", help=temporary)
    grace = "so long ranks have to save, and scripts to end, before they are ended (default: %(default)s)"
    network.add_argument("--grace", metavar="TIME", default="25s", help=grace)
    first = "how long a temporary one waits for its first reservation (default: as long as for others)"
    network.add_argument("--first", metavar="TIME", help=first)
    parser.add_argument("--procs", type=int, help="CPU ranks that fit (default: the number of CPUs)")
    gpus = "offer the GPUs, or those in $CUDA_VISIBLE_DEVICES (default: %(default)s)"
    parser.add_argument("--gpus", choices=["all", "visible", "none"], default="all", help=gpus)
    parser.add_argument("--isolate", action="store_true", help="behave as a node that shares no files with others")
    parser.add_argument("--python", default=sys.executable, help="the ranks' python (default: this one)")
    parser.add_argument("--preload", action="append", help="module that ranks have imported already (default: torch)")
    limits = "of fairness (default: limits.toml beside the nodes' certificate; without it there are none)"
    parser.add_argument("--limits", metavar="FILE", type=Path, help=f"the file with the limits {limits}")
    log_limit = f"of what ranks print, as in 20GB; 0: all (default: ${config.LOG_LIMIT_VARIABLE}, else 20GB at most)"
    parser.add_argument("--log-limit", metavar="SIZE", help=f"how much to keep {log_limit}")
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keeper-fd", type=int, help=argparse.SUPPRESS)  # end when nobody has its other end any more
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace, paths: config.NodePaths, network: Network | None) -> bool:
    """Serve until Shutdown (everything ends) or a signal (ranks go on, the next allocator adopts them). A temporary one
    ends everything whenever it ends. Return whether everything has ended."""
    from monarch_nb.rpc.channel import make_server, open_channel_to_node  # before gRPC: it says how that is to behave

    # isort: split
    from monarch_nb.allocator.api.access import Access, Revoked
    from monarch_nb.allocator.api.guard import Guard
    from monarch_nb.allocator.api.service import AllocatorService
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.processes import ProcessWatch

    given = options.log_limit
    limit_bytes = bytes_of(given, "--log-limit") if given else default_limit_bytes(paths.directory)
    preload = list(config.DEFAULT_PRELOAD) if options.preload is None else [m for m in options.preload if m]

    def shown() -> Identity | None:
        return network.identity if network else None

    def to_node(address: str) -> Any:
        return open_channel_to_node(address, shown())

    node = Node(
        paths,
        options.node_id,
        procs=options.procs or usable_cpus(),
        gpus=_gpus(options.gpus),
        python=options.python,
        preload=preload,
        isolated=options.isolate,
        log_limit_bytes=limit_bytes,
        store_host=network.address if network else "127.0.0.1",
        interface=network.interface if network else "lo",
        address=network.advertised if network else paths.address,
        open_channel=to_node,
        certificate=shown,
        limits=options.limits or (network.limits if network else config.local_limits()),
        trust=network.trust if network else None,
        publish=network.publish if network else None,
        grace_s=seconds_of(options.grace, "--grace"),
    )
    node.limits.check()
    await node.start()
    server = make_server()
    revoked = Revoked(network.certificate, paths.revoked) if network else None
    access = Access(node, revoked)
    service = AllocatorService(node, access)
    Guard(service, access, paths.directory).serve_on(server)
    paths.allocator_socket.unlink(missing_ok=True)
    server.add_insecure_port(paths.address)
    if network:
        _listen(server, network)
    await node.mail.listen()
    await server.start()
    identity = processes.identify(os.getpid())
    write_facts(
        paths,
        {
            "node_id": options.node_id,
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "boot_id": identity.boot_id,
            "address": paths.address,
            "procs": node.state.procs,
            "gpus": len(node.identity.gpus),
        },
    )
    report(options.ready_fd, {"serving": node.identity.address})
    offered = counted(node.state.procs, "proc"), counted(len(node.identity.gpus), "GPU")
    _log.info("%s serves on %s: %s, %s", options.node_id, node.identity.address, *offered)
    stopped_by_signal = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A scheduler may say it several times, and kills what takes too long.
        again = stopped_by_signal.set if options.temporary else partial(_on_signal, stopped_by_signal, number)
        loop.add_signal_handler(number, again)
    if options.temporary:  # as `#SBATCH --signal=USR1@600` has it
        loop.add_signal_handler(signal.SIGUSR1, node.grace.warn)
    loop.add_signal_handler(signal.SIGCHLD, processes.reap_orphans, ProcessWatch.watched)
    freshener = asyncio.create_task(keep_fresh(paths, node.gpu_locks.freshen))
    publisher = asyncio.create_task(_keep_published(node, network))
    watcher = asyncio.create_task(_report_template(node.supervisor.templates, options.ready_fd))
    waits: list[asyncio.Task[object]]
    waits = [asyncio.create_task(event.wait()) for event in (stopped_by_signal, node.shutdown)]
    if options.temporary:
        first_s = seconds_of(options.first, "--first") if options.first else None
        waits.append(asyncio.create_task(_unheld(node, seconds_of(options.temporary, "--temporary"), first_s)))
    if options.keeper_fd is not None:
        waits.append(asyncio.create_task(_left_alone(options.keeper_fd)))
    await asyncio.wait([*waits, freshener], return_when=asyncio.FIRST_COMPLETED)
    ends = bool(options.temporary) or freshener.done() or node.shutdown.is_set()
    what_stays = "" if ends else "; its ranks go on, and the next allocator adopts them"
    _log.info("%s ends%s", options.node_id, what_stays)
    for task in (*waits, watcher, freshener, publisher):
        task.cancel()
    if ends and stopped_by_signal.is_set():
        await node.grace.leave_in_peace()
    await server.stop(grace=0.2)
    await node.close(end_processes=ends)
    if network and network.publish and ends:
        withdraw(network.publish, _told(node, network))
    await service.close()
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:  # what clients had open, and what waits for them
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=LAST_S)
    return ends


def _gpus(which: str) -> list[pb.Gpu]:
    """Return the GPUs that the node offers."""
    found = discover_gpus() if which != "none" else []
    return found if which == "all" else visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


async def _unheld(node: Node, longest_s: float, first_s: float | None = None) -> None:
    """Return when a node has held no reservation for so long: for `first_s`, if it has never held one."""
    unheld_s, most_s = 0.0, longest_s if first_s is None else first_s
    while unheld_s < most_s:
        await asyncio.sleep(LOOK_EVERY_S)
        if node.state.leases:
            unheld_s, most_s = 0.0, longest_s
        else:
            unheld_s += LOOK_EVERY_S


async def _left_alone(keeper_fd: int) -> None:
    """Return when the process that holds the other end has closed it, or is dead."""
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(keeper_fd, closed.set)
    await closed.wait()
    asyncio.get_running_loop().remove_reader(keeper_fd)


def _network(options: argparse.Namespace) -> Network | None:
    if options.toward:
        from monarch_nb.allocator.api.network import address_toward

        if options.listen:
            raise UsageError("say --listen or --toward, not both")
        options.listen = f"{address_toward(options.toward)}:{options.port or 0}"
    if options.listen is None:
        for flag in ("port", "pool", "certificate", "interface", "advertise", "publish", "temporary", "first"):
            if getattr(options, flag) is not None:
                raise UsageError(f"--{flag} is for nodes of a network: say where to listen, as in --listen host1:7878")
        return None
    from monarch_nb.allocator.api.network import check_free, network_of

    if options.pool is None and options.certificate is None:
        raise UsageError("whose node is this? --pool NAME, or --certificate node.pem (monarch-nb pool init NAME)")
    network = network_of(options)
    check_free(network.listen)
    return network


def _listen(server: grpc.aio.Server, network: Network) -> None:
    from monarch_nb.rpc.channel import listen

    try:
        listen(server, network.listen, lambda: network.identity)
    except RuntimeError as error:
        raise PoolError(f"can not listen on {network.listen}: {error}") from error
    if network.kept_port:
        network.kept_port.close()


def _on_signal(stopped: asyncio.Event, number: int) -> None:
    if stopped.is_set():
        os._exit(128 + number)
    stopped.set()


async def _report_template(templates: Templates, ready_fd: int | None) -> None:
    await templates.ready.wait()
    report(ready_fd, {"template_error": templates.error})
    if ready_fd is not None:
        os.close(ready_fd)


async def _keep_published(node: Node, network: Network | None) -> None:
    """Tell of the node where all look, as long as it serves."""
    if network is None or network.publish is None:
        return
    told, other = _told(node, network), ""
    while True:
        try:
            await asyncio.to_thread(publish, network.publish, told, beside=bool(other))
        except OSError as error:  # a file system that is away comes back
            _log.warning("can not publish in %s: %s", network.publish, error)
        await asyncio.sleep(HEARTBEAT_S)
        if not other and (other := await asyncio.to_thread(overwritten_by, network.publish, told)):
            _log.warning("the node at %s is called %s as well: start one with another --node-id", other, told.node_id)


def _told(node: Node, network: Network) -> Published:
    """Return what the node tells of itself."""
    return Published(
        node.identity.node_id,
        network.advertised,
        config.VERSION,
        [gpu.name for gpu in node.identity.gpus],
        node.state.procs,
        heartbeat=0.0,
    )


def write_facts(paths: config.NodePaths, content: dict[str, object]) -> None:
    """Tell local clients where the node serves; replaced in one step. On a full disk there is no room for two, but what
    the allocator before has said can be written over: ranks that live wait for this one."""
    temporary, text = paths.facts.with_suffix(".new"), json.dumps(content)
    try:
        temporary.write_text(text)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if not lacks_room(error) or not paths.facts.exists():
            raise
        with paths.facts.open("r+") as file:
            file.write(text.ljust(paths.facts.stat().st_size))
        return
    temporary.replace(paths.facts)


def report(ready_fd: int | None, content: dict[str, object]) -> None:
    """Write one line for whoever started us, if they still listen."""
    if ready_fd is not None:
        try:
            os.write(ready_fd, json.dumps(content).encode() + b"\n")
        except BrokenPipeError:
            pass


async def keep_fresh(paths: config.NodePaths, freshen: Callable[[], None]) -> None:
    """Touch the node's files now and then: cleaners of /tmp remove what nobody has touched for days.

    Args:
        freshen: touches others.

    Returns when somebody removed them all the same: nobody could reach this allocator and its ranks any more.
    """
    while not _is_gone(paths.allocator_socket):
        await asyncio.sleep(FRESHEN_S)
        freshen()
        _touch(paths.directory)
        for directory in (paths.directory, paths.sockets):
            with contextlib.suppress(OSError):
                for path in directory.iterdir():
                    _touch(path)


def _is_gone(path: Path) -> bool:
    """Whether a file is certainly not there: a storage that fails for a while is no reason to end ranks."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone, or its file system can not be written
        os.utime(path)


def lock(paths: config.NodePaths) -> IO[bytes]:
    """Make sure that this is the node's only allocator; held until the process ends."""
    file = paths.lock.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        where = "on this host" if _serves_here(paths) else "on another host, which has the same name"
        raise PoolError(
            f"another allocator serves {paths.directory} already, {where}: a second one needs a name of its own, as in "
            f"--node-id {paths.directory.name}-b (and --directory, if you gave it)"
        ) from error
    return file


def _serves_here(paths: config.NodePaths) -> bool:
    """Whether the allocator that serves a directory, which hosts may share, is one of this host."""
    try:
        return bool(json.loads(paths.facts.read_text())["boot_id"] == processes.boot_id())
    except (OSError, ValueError, KeyError):  # it has not said yet
        return True


def _check_platform() -> None:
    if sys.platform != "linux":
        raise PoolError(
            "nodes run on Linux only: run this on the host that has the GPUs, and tell this computer with "
            "monarch-nb pool add NAME HOST"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the allocator; return the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if os.getpid() == 1:  # the first process of a container is not ended by a signal that it does not handle
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    directory = options.directory or Path()
    try:
        _check_platform()
        network = _network(options)
        options.node_id = options.node_id or (socket.gethostname() if network else "node0")
        pool = network.identity.pool if network else config.DEFAULT_POOL
        # No job finds what an earlier one has left.
        name = f"{options.node_id}-{uuid.uuid4().hex[:8]}" if options.temporary else options.node_id
        directory = options.directory or config.pool_directory(pool) / name
        paths = config.NodePaths(config.private_directory(directory.absolute()))
        for sockets in (paths.sockets.parent, paths.sockets):
            config.private_directory(sockets)
        held = lock(paths)
        processes.become_subreaper()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, DESCRIPTORS), most))
        has_ended = asyncio.run(serve(options, paths, network))
        if has_ended and network:
            with contextlib.suppress(OSError):  # other nodes are in it, or what ranks wrote
                paths.directory.parent.rmdir()
        held.close()
    except MonarchNbError as error:
        sys.stderr.write(f"monarch-nb allocator: {error}\n")
        return 1
    except (OSError, sqlite3.Error) as error:
        if not lacks_room(error):
            raise
        sys.stderr.write(f"monarch-nb allocator: {explained(error, directory.absolute())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
