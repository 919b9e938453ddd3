"""Actors on the ranks of meshes, with Monarch's public API: code written for `monarch.actor` runs when its import is
`monarch_nb.actor`.

    from monarch_nb.actor import Actor, endpoint

Importing this imports neither torch nor grpc nor IPython. What of Monarch's is not here says what to use instead
(`left_out`).

endpoints            what users write: classes and their endpoints; errors in what a call is given
actor_mesh, future   what they call: meshes of actors, adverbs, results
channel              ports, and responses one by one
hosts, contexts      where actors are: hosts, processes, ranks
value_mesh           values with coordinates, and what all meshes share
engine/              mailboxes, threads and open calls
"""

from __future__ import annotations

import importlib
from typing import Any

from monarch_nb.actor.actor_mesh import ActorMesh
from monarch_nb.actor.channel import Channel, Port, PortReceiver, RankedPortReceiver, send
from monarch_nb.actor.contexts import Context, context, current_actor_name, current_rank, current_size
from monarch_nb.actor.endpoints import Actor, Endpoint, concurrent_endpoint, endpoint
from monarch_nb.actor.engine.failing import MeshFailure, unhandled_fault_hook
from monarch_nb.actor.future import Future
from monarch_nb.actor.hosts import (
    HostMesh,
    ProcMesh,
    get_or_spawn_controller,
    local_proc_mesh,
    proc_mesh,
    shutdown_context,
    this_host,
    this_proc,
)
from monarch_nb.actor.left_out import missing
from monarch_nb.actor.value_mesh import ValueMesh
from monarch_nb.errors import ActorError, SupervisionError
from monarch_nb.shape import Extent, Point

__all__ = [
    "Actor",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RankedPortReceiver",
    "SupervisionError",
    "ValueMesh",
    "attach",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "get_or_spawn_controller",
    "local_proc_mesh",
    "proc_mesh",
    "send",
    "shutdown_context",
    "this_host",
    "this_proc",
    "unhandled_fault_hook",
]

attach: Any  # monarch_nb.attach, by name: nothing here imports what lies above


def __getattr__(name: str) -> Any:
    """Return what is loaded by name, or say of what Monarch has what to use instead."""
    if name == "attach":
        return importlib.import_module("monarch_nb").attach
    raise missing(name)
