"""How a gateway is put together: the warden that starts it, and what its rooms are told on their command lines."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.allocator.gateway.rooms import Rooms
from monarch_nb.allocator.gateway.starters import PlainStarter, Starter
from monarch_nb.allocator.node import Node
from monarch_nb.allocator.serving.network import place_of
from monarch_nb.errors import UsageError
from monarch_nb.warden.client import Warden
from monarch_nb.warden.command import TOLD, command

if TYPE_CHECKING:
    from monarch_nb.allocator.serving.network import Network


def make_rooms(node: Node, options: argparse.Namespace, network: Network | None, *reaching: Any) -> Rooms:
    """Return the rooms of a gateway's node, which ends there what it ends.

    Args:
        reaching: how other nodes are reached: `open_channel` and `certificate`, as of Rooms.
    """
    of_leases = node.state, node.leases.begin_in_room
    rooms = Rooms(_starter(node, options, network), node.paths.sockets, *of_leases, *reaching)
    node.leases.end_in_room = rooms.end
    node.leases.expiry.idle_in_room = rooms.idle_s
    node.fairness.running_in_rooms = rooms.running
    return rooms


def _starter(node: Node, options: argparse.Namespace, network: Network | None) -> Starter:
    if options.warden_fd is not None:
        return Warden.inherited(options.warden_fd)
    words = room_words(options, node.identity.node_id, node.identity.address, network.address if network else "")
    return PlainStarter(node.paths.directory / "rooms", ["-m", "monarch_nb.allocator", *words])


def room_words(options: argparse.Namespace, node_id: str, address: str, interface: str) -> list[str]:
    """Return the command line of a room, with `{directory}`, `{ready}` and `{account}` to be filled in."""
    words = ["--room", "{account}", "--directory", "{directory}", "--ready-fd", "{ready}"]
    words += ["--node-id", node_id, "--advertise", address, "--python", options.python, "--gpus", "none"]
    for name in ("procs", "log_limit"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for module in options.preload or ():
        words += ["--preload", module]
    if interface:
        words += ["--interface", interface]
    return words + (["--isolate"] if options.isolate else [])


def start_warden(arguments: Sequence[str], options: argparse.Namespace) -> None:
    """Become the warden, which starts this command line again as the gateway; never returns.

    Raises:
        UsageError: this process is not root's, or the command line says what a gateway can not do.
    """
    if os.geteuid() != 0:
        raise UsageError("--as-users starts processes as other users: run it as root (sudo monarch-nb allocator …)")
    if not options.listen or not options.certificate:
        raise UsageError("--as-users is for nodes that people reach with certificates: say --listen and --certificate")
    for flag in ("toward", "temporary", "keeper_fd", "directory", "plain_rooms", "isolate"):
        if getattr(options, flag):
            raise UsageError(f"--as-users does not go with --{flag.replace('_', '-')}")
    place, node_id = place_of(options), options.node_id or socket.gethostname()
    said = [word for word in arguments if word != "--as-users"]
    said += ["--node-id", node_id, "--listen", place.listen, "--advertise", place.advertised]
    this = [sys.executable, "-P", "-m", "monarch_nb.allocator"]
    gateway = [*this, *(word.replace("{", "{{").replace("}", "}}") for word in said), "--warden-fd", "{descriptor}"]
    room = [*this, *room_words(options, node_id, place.advertised, place.address)]
    words = command(gateway, room, options.warden or ())
    signal.pthread_sigmask(signal.SIG_BLOCK, TOLD)  # told to end, it has to read of an earlier warden's rooms first
    os.execv(words[0], words)


async def end_of_warden(descriptor: int) -> None:
    """Return when the process at the other end of a socket has ended. What it says is left to be read."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    connection = socket.socket(fileno=os.dup(descriptor))

    def look() -> None:
        try:
            if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                gone.set()
        except BlockingIOError:
            return
        except OSError:
            gone.set()

    loop.add_reader(connection.fileno(), look)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(connection.fileno())
        connection.close()
