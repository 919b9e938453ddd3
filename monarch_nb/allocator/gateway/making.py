"""How a gateway is put together, and what its rooms are told on their command lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from monarch_nb.allocator.gateway.rooms import Rooms
from monarch_nb.allocator.gateway.starters import PlainStarter, Starter
from monarch_nb.allocator.node import Node

if TYPE_CHECKING:
    from monarch_nb.allocator.serving.network import Network


def make_rooms(node: Node, options: argparse.Namespace, network: Network | None) -> Rooms:
    """Return the rooms of a gateway's node, which ends there what it ends."""
    rooms = Rooms(_starter(node, options, network), node.paths.sockets, node.state)
    node.leases.end_in_room = rooms.end
    node.leases.expiry.idle_in_room = rooms.idle_s
    return rooms


def _starter(node: Node, options: argparse.Namespace, network: Network | None) -> Starter:
    words = room_words(options, node.identity.node_id, node.identity.address, network.address if network else "")
    return PlainStarter(node.paths.directory / "rooms", ["-m", "monarch_nb.allocator", *words])


def room_words(options: argparse.Namespace, node_id: str, address: str, interface: str) -> list[str]:
    """Return the command line of a room, with `{directory}`, `{ready}` and `{account}` to be filled in."""
    words = ["--room", "{account}", "--directory", "{directory}", "--ready-fd", "{ready}"]
    words += ["--node-id", node_id, "--advertise", address, "--python", options.python, "--gpus", options.gpus]
    for name in ("procs", "log_limit"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for module in options.preload or ():
        words += ["--preload", module]
    if interface:
        words += ["--interface", interface]
    return words + (["--isolate"] if options.isolate else [])
