"""Actors on the ranks of meshes, with Monarch's public API: code written for `monarch.actor` runs when its import is
`monarch_nb.actor`.

    from monarch_nb.actor import Actor, endpoint

Importing this imports neither torch nor grpc nor IPython: names are loaded when they are first used. What of Monarch's
is not here says what to use instead (`left_out`).

actor, endpoints     what users write: classes and their endpoints
arguments            errors in what a call is given
actor_mesh, future   what they call: meshes of actors, adverbs, results
channel              ports, and responses one by one
hosts, contexts      where actors are: hosts, processes, ranks
bootstrap            what sets new processes up
shape, value_mesh, ids, supervision   data
engine/              mailboxes, threads and open calls
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.actor.actor import Actor
    from monarch_nb.actor.actor_mesh import ActorMesh, as_endpoint
    from monarch_nb.actor.channel import Accumulator, Channel, Port, PortReceiver, RankedPortReceiver, send
    from monarch_nb.actor.contexts import Context, context, current_actor_name, current_rank, current_size
    from monarch_nb.actor.endpoints import Endpoint, concurrent_endpoint, endpoint
    from monarch_nb.actor.engine.faults import unhandled_fault_hook
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
    from monarch_nb.actor.ids import ProcId, Uid
    from monarch_nb.actor.supervision import MeshFailure
    from monarch_nb.actor.value_mesh import ValueMesh
    from monarch_nb.errors import ActorError, SupervisionError
    from monarch_nb.shape import Extent, Point

    attach: Any  # monarch_nb.attach, by name: nothing here imports what lies above

__all__ = [
    "Accumulator",
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
    "ProcId",
    "ProcMesh",
    "RankedPortReceiver",
    "SupervisionError",
    "Uid",
    "ValueMesh",
    "as_endpoint",
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

_HOMES = {
    "monarch_nb": ("attach",),
    "monarch_nb.actor.actor": ("Actor",),
    "monarch_nb.actor.actor_mesh": ("ActorMesh", "as_endpoint"),
    "monarch_nb.actor.channel": ("Accumulator", "Channel", "Port", "PortReceiver", "RankedPortReceiver", "send"),
    "monarch_nb.actor.contexts": ("Context", "context", "current_actor_name", "current_rank", "current_size"),
    "monarch_nb.actor.endpoints": ("Endpoint", "concurrent_endpoint", "endpoint"),
    "monarch_nb.actor.engine.faults": ("unhandled_fault_hook",),
    "monarch_nb.actor.future": ("Future",),
    "monarch_nb.actor.hosts": (
        "HostMesh",
        "ProcMesh",
        "get_or_spawn_controller",
        "local_proc_mesh",
        "proc_mesh",
        "shutdown_context",
        "this_host",
        "this_proc",
    ),
    "monarch_nb.actor.ids": ("ProcId", "Uid"),
    "monarch_nb.actor.supervision": ("MeshFailure",),
    "monarch_nb.actor.value_mesh": ("ValueMesh",),
    "monarch_nb.errors": ("ActorError", "SupervisionError"),
    "monarch_nb.shape": ("Extent", "Point"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    if name not in _HOME_OF:
        raise importlib.import_module("monarch_nb.actor.left_out").missing(name)
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
