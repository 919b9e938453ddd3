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
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from monarch_nb import config
from monarch_nb.allocator.logs.limit import default_limit_bytes
from monarch_nb.allocator.readings import facts
from monarch_nb.allocator.readings.gpus import discover_gpus
from monarch_nb.allocator.supervision import processes
from monarch_nb.allocator.supervision.warming import Warming
from monarch_nb.errors import MonarchNbError, PoolError
from monarch_nb.sizes import bytes_of

FRESHEN_S = 60.0
DESCRIPTORS = 1 << 16
"""A rank needs three, and the usual limit is 1024."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("monarch-nb allocator", description="Run one node's allocator in the foreground.")
    parser.add_argument("--directory", type=Path, help="state of the node (default: a node of the local pool)")
    parser.add_argument("--node-id", default="node0", help="unique in the pool (default: %(default)s)")
    parser.add_argument("--procs", type=int, help="CPU ranks that fit (default: the number of CPUs)")
    parser.add_argument("--gpus", choices=["all", "none"], default="all", help="offer the GPUs (default: %(default)s)")
    parser.add_argument("--isolate", action="store_true", help="behave as a node that shares no files with others")
    parser.add_argument("--python", default=sys.executable, help="the ranks' python (default: this one)")
    parser.add_argument("--preload", action="append", help="module that ranks have imported already (default: torch)")
    log_limit = f"of what ranks print, as in 20GB; 0: all (default: ${config.LOG_LIMIT_VARIABLE}, else 20GB at most)"
    parser.add_argument("--log-limit", metavar="SIZE", help=f"how much to keep {log_limit}")
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace, paths: config.NodePaths) -> None:
    """Serve until Shutdown (everything ends) or a signal (ranks go on, the next allocator adopts them)."""
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.serving.access import Access
    from monarch_nb.allocator.serving.describe import Description
    from monarch_nb.allocator.serving.guard import Guard
    from monarch_nb.allocator.serving.read_lines import LogLines
    from monarch_nb.allocator.serving.read_logs import LogReader
    from monarch_nb.allocator.serving.service import AllocatorService
    from monarch_nb.allocator.supervision.supervisor import ProcessWatch
    from monarch_nb.proto import allocator_pb2_grpc
    from monarch_nb.rpc.channel import make_server

    preload = list(config.DEFAULT_PRELOAD) if options.preload is None else [m for m in options.preload if m]
    node = Node(
        paths,
        options.node_id,
        procs=options.procs or facts.cpu_slots(),
        gpus=discover_gpus() if options.gpus == "all" else [],
        python=options.python,
        preload=preload,
        isolated=options.isolate,
        log_limit_bytes=_log_limit_bytes(options, paths),
    )
    await node.start()
    server = make_server()
    description = Description(
        node.identity,
        node.state,
        node.supervisor,
        node.warming,
        node.readings,
        node.whereabouts,
        node.actors,
        node.leases.expiry,
        node.scripts,
    )
    log_lines = LogLines(node.paths, node.state, node.watch, node.archives)
    log_reader = LogReader(node.paths, node.state, node.watch, node.sessions, node.archives)
    access = Access(node.identity.node_id, paths.address, node.state, node.records)
    service = AllocatorService(node, description, log_lines, log_reader, access)
    guard: Any = Guard(service, access)
    allocator_pb2_grpc.add_AllocatorServicer_to_server(guard, server)
    health_service = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    paths.allocator_socket.unlink(missing_ok=True)
    address = paths.address
    server.add_insecure_port(address)
    await node.mail.listen()
    await server.start()
    for name in ("", "monarch_nb.v1.Allocator"):
        await health_service.set(name, health_pb2.HealthCheckResponse.SERVING)
    identity = processes.identify(os.getpid())
    write_facts(
        paths,
        {
            "node_id": options.node_id,
            "pid": identity.pid,
            "start_ticks": identity.start_ticks,
            "boot_id": identity.boot_id,
            "address": address,
            "procs": node.state.procs,
            "gpus": len(node.identity.gpus),
        },
    )
    report(options.ready_fd, {"serving": address})
    stopped_by_signal = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopped_by_signal, number)
    loop.add_signal_handler(signal.SIGCHLD, processes.reap_orphans, ProcessWatch.watched)
    freshener = asyncio.create_task(keep_fresh(paths, node.gpu_locks.freshen))
    watcher = asyncio.create_task(_report_template(node.warming, options.ready_fd))
    waits = [asyncio.create_task(event.wait()) for event in (stopped_by_signal, node.shutdown)]
    await asyncio.wait([*waits, freshener], return_when=asyncio.FIRST_COMPLETED)
    unreachable = freshener.done()
    for task in (*waits, watcher, freshener):
        task.cancel()
    await server.stop(grace=0.2)
    await node.close(end_processes=unreachable or node.shutdown.is_set())
    await log_lines.close()


def _log_limit_bytes(options: argparse.Namespace, paths: config.NodePaths) -> int:
    if options.log_limit:
        return bytes_of(options.log_limit, "--log-limit")
    return default_limit_bytes(paths.directory)


def _on_signal(stopped: asyncio.Event, number: int) -> None:
    if stopped.is_set():
        os._exit(128 + number)
    stopped.set()


async def _report_template(warming: Warming, ready_fd: int | None) -> None:
    await warming.ready.wait()
    report(ready_fd, {"template_error": warming.error})
    if ready_fd is not None:
        os.close(ready_fd)


def write_facts(paths: config.NodePaths, content: dict[str, object]) -> None:
    """Tell local clients where the node serves; replaced in one step."""
    temporary = paths.facts.with_suffix(".new")
    temporary.write_text(json.dumps(content))
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
        raise PoolError(f"another allocator serves {paths.directory} already") from error
    return file


def main(arguments: list[str] | None = None) -> int:
    """Run the allocator; return the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        directory = options.directory or config.pool_directory() / options.node_id
        paths = config.NodePaths(config.private_directory(directory.absolute()))
        for sockets in (paths.sockets.parent, paths.sockets):
            config.private_directory(sockets)
        held = lock(paths)
        processes.become_subreaper()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, DESCRIPTORS), most))
        asyncio.run(serve(options, paths))
        held.close()
    except MonarchNbError as error:
        sys.stderr.write(f"monarch-nb allocator: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
