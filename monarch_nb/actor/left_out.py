"""Names of Monarch's actor API that are not here, in 0.7 or in earlier releases, and what to use instead."""

import sys

_WORKER_LOOPS = (
    "a node's allocator looks after its processes; monarch_nb.reserve() starts one on this machine "
    "(monarch-nb allocator in the foreground); reserve hosts with monarch_nb.reserve(name, nodes=2, gpus=8)"
)
_TRANSPORTS = "messages go through the allocators of the nodes, so there is no transport to choose: leave the line out"
_SHAPES = "the shape of a mesh is mesh.extent, and mesh.slice(), split() and flatten() make others"
_TELEMETRY = (
    "nothing here collects spans; torch.profiler.record_function(name), with `with` or as a decorator, is seen by the "
    "profiler, and %mesh actors says what runs and for how long"
)
_HOSTS = (
    "hosts belong to their reservation: procs.stop() ends processes that were spawned on them, and %mesh release, or "
    "release() of the reservation, gives them back"
)
_WORKSPACE = (
    "the files of the project that have changed are sent to nodes that lack them before each cell and mesh.run; "
    "%mesh sync, or sync() of the reservation, sends them without a cell"
)
_TENSORS = "there is no tensor engine: endpoints take and return tensors, and ranks exchange them by torch.distributed"
_IDENTIFIERS = "identifiers are texts, as in context().actor_instance.actor_id"
_TORCH_ELASTIC = "ranks have RANK, WORLD_SIZE, MASTER_ADDR and the others from the start: leave the line out"

LEFT_OUT = {
    # Of 0.7.
    "Accumulator": "functools.reduce(combine, counters.value.call().get().values(), first) combines all responses",
    "ProcId": _IDENTIFIERS,
    "Uid": _IDENTIFIERS,
    "as_endpoint": "only endpoints are called: decorate the method with @endpoint",
    "ChannelTransport": _TRANSPORTS,
    "attach_to_workers": (
        "hosts are reserved: monarch_nb.reserve(name, nodes=2, gpus=8); other processes find them with "
        "monarch_nb.attach(name)"
    ),
    "config": "what endpoints print lands in the cell that called them, with its ranks: there is no prefix to switch",
    "debug_controller": (
        "the debugger needs no controller: the cell that waits asks when an endpoint stops at breakpoint(), and "
        "%mesh debug or monarch-nb debug NAME ask elsewhere"
    ),
    "default_bootstrap_cmd": (
        "processes are forked from the node's template: give them environment variables with "
        "monarch_nb.reserve(name, env={...}), and run code in each before its actors with spawn_procs(bootstrap=...)"
    ),
    "enable_transport": _TRANSPORTS,
    "get_meter": "nothing here collects metrics; Monarch's is OpenTelemetry's: opentelemetry.metrics.get_meter(name)",
    "returns_future": "make the function async and await it, or return the Future of the call that it makes",
    "run_worker_loop_forever": _WORKER_LOOPS,
    "run_worker_loop_until_shutdown": _WORKER_LOOPS,
    "span": _TELEMETRY,
    "start_worker_loop_forever": _WORKER_LOOPS,
    "traced": _TELEMETRY,
    # Of releases before 0.7.
    "MonarchContext": "context() returns a Context, as in Monarch's later releases",
    "NDSlice": _SHAPES,
    "Shape": _SHAPES,
    "hosts_from_config": "hosts are reserved: monarch_nb.reserve(name, nodes=2, gpus=8)",
    "sim_proc_mesh": (
        "hosts are simulated by a local pool: monarch_nb.reserve(name, nodes=4, procs=2) makes four of this machine"
    ),
    # Of modules beside monarch.actor.
    "SPMDActor": "a script runs on all ranks with mesh.run_script(path, *arguments), in torchrun's environment",
    "setup_env_for_distributed": _TORCH_ELASTIC,
    "setup_torch_elastic_env": _TORCH_ELASTIC,
    "setup_torch_elastic_env_async": _TORCH_ELASTIC,
}
"""What to use instead of each."""

LEFT_OUT_METHODS = {
    "HostMesh.is_fake_in_process": "hosts are always nodes of a pool, and processes are never threads of the program",
    "HostMesh.region": _SHAPES,
    "HostMesh.shutdown": _HOSTS,
    "HostMesh.stop": _HOSTS,
    "HostMesh.stream_logs": "what ranks print is always shown in the cell that called, and kept for %mesh logs",
    "HostMesh.sync_workspace": _WORKSPACE,
    "ProcMesh.activate": _TENSORS,
    "ProcMesh.from_host_mesh": "processes are started by spawn_procs(per_host={'gpus': 8}) of the hosts",
    "ProcMesh.rank_tensor": _TENSORS,
    "ProcMesh.rank_tensors": _TENSORS,
    "ProcMesh.sync_workspace": _WORKSPACE,
    "ProcMesh.to_table": _TENSORS,
}
"""The same of what meshes have in Monarch and not here."""


def explain(name: str) -> str | None:
    """Return why `monarch_nb.actor` has no `name`, and what to use instead; None if Monarch has no such name either.

    Example:
        >>> explain("enable_transport")
        'monarch_nb.actor leaves enable_transport out: messages go through …: leave the line out'
    """
    instead = LEFT_OUT.get(name)
    return None if instead is None else f"monarch_nb.actor leaves {name} out: {instead}"


def missing_method(kind: str, name: str) -> AttributeError:
    """Return what `__getattr__` of a mesh raises for a name that it does not have.

    Args:
        kind: the name of its class.
    """
    instead = LEFT_OUT_METHODS.get(f"{kind}.{name}")
    text = f"monarch_nb.actor leaves {kind}.{name} out: {instead}"
    return AttributeError(text if instead else f"{kind!r} object has no attribute {name!r}", name=name)


def missing(name: str) -> AttributeError | ImportError:
    """Return what the package's `__getattr__` raises for a name that it does not have.

    `from package import name` takes an AttributeError for granted and loses its text. So whoever imports is told by an
    ImportError; `hasattr` and other lookups need the AttributeError.
    """
    text = explain(name) or f"module 'monarch_nb.actor' has no attribute {name!r}"
    asking = sys._getframe(2)
    if name in LEFT_OUT and asking.f_globals.get("__name__") == "importlib._bootstrap":
        return ImportError(text, name="monarch_nb.actor")
    return AttributeError(text, name=name)
