"""`python -m monarch_nb.provision.ray.helper`: talks to Ray clusters for a notebook whose kernel stays free of Ray. It
answers lines of JSON with lines of JSON, and ends when nobody asks any more.

It reads what a cluster's control store knows, which takes milliseconds; it becomes a driver, for a moment, only to
ask for nodes, to give them back, and to read a log.
"""

from __future__ import annotations

import base64
import inspect
import json
import logging
import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# Where Jupyter is installed, jsonschema, which Ray imports, takes 2 s to read a grammar of addresses for this package.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import ray
from ray._private import ray_constants, services, utils
from ray._private.state import GlobalState
from ray._raylet import GcsClient, GcsClientOptions
from ray.util import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from monarch_nb.config import gap, patience
from monarch_nb.provision.ray.node import NAMESPACE, NotebookNode, Start, actor_name, free, log_name, logs_directory

IDLE_S = gap(30.0)
"""It ends when nobody has asked for so long."""
LOG_TAIL_BYTES = 8192
NODE_ID_LABEL = "ray.io/node-id"
"""Ray gives every node a label of this name, with its id."""

Facts = dict[str, Any]


class Refused(Exception):
    """Why something can not be done, for people; `kind` names the class of error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# ---- what is asked ----


def find(facts: Facts) -> Facts:
    """Return the address of a cluster, and what it has; `address` may be "auto"."""
    try:
        address = services.canonicalize_bootstrap_address_or_die(facts["address"])
    except (ConnectionError, ValueError) as error:
        raise Refused("none", str(error)) from None
    return {"address": address}


def cluster(facts: Facts) -> Facts:
    """Return what a cluster has, whether it can get more, and which of its nodes some placement groups use."""
    store, state = _connect(facts["address"])
    _check_versions(store)
    return {"nodes": _nodes(state), "grows": _grows(store, state), "taken": _taken(state, facts["groups"])}


def ask(facts: Facts) -> Facts:
    """Ask for nodes, each with an actor; they go on when this process is no driver any more."""
    with _driver(facts["address"]):
        toward = [ray.util.get_node_ip_address(), facts["address"].rpartition(":")[0].strip("[]")]
        start = Start(
            facts["group"],
            facts["nodes"],
            facts["pool"],
            facts["arguments"],
            toward,
            facts["environment"],
            base64.b64decode(facts["certificate"]),
        )
        bundle = facts["bundle"]
        wants = {"name": start.group, "lifetime": "detached", **_elsewhere(facts["avoid"], start.nodes)}
        group = placement_group([bundle] * start.nodes, "STRICT_SPREAD", **wants)
        others = {name: size for name, size in bundle.items() if name not in ("CPU", "GPU")}
        for index in range(start.nodes):
            actor = ray.remote(NotebookNode).options(
                name=actor_name(start.group, index),
                lifetime="detached",
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                resources=others,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            )
            actor.remote(start, index)
    return {}


def _elsewhere(avoid: Sequence[str], count: int) -> Facts:
    """Return what has the nodes of a placement group be none of some: a Ray that is older spreads each by itself."""
    if not avoid or "bundle_label_selector" not in inspect.signature(placement_group).parameters:
        return {}
    return {"bundle_label_selector": [{NODE_ID_LABEL: f"!in({','.join(avoid)})"}] * count}


def _taken(state: GlobalState, groups: Sequence[str]) -> list[str]:
    """Return the nodes on which the actors of some placement groups live. Ray gives a group another node for one that
    has failed, which it does not use."""
    starts = tuple(actor_name(group, 0).removesuffix("0") for group in groups)
    living = (actor for actor in state.actor_table(None).values() if starts and actor["State"] == "ALIVE")
    return sorted({actor["Address"]["NodeID"] for actor in living if actor["Name"].startswith(starts)})


def look(facts: Facts) -> Facts:
    """Return what the cluster knows of a reservation."""
    store, state = _connect(facts["address"])
    groups = state.placement_group_table()
    living = (group for group in groups.values() if group["state"] != "REMOVED")
    group = next((group for group in living if group["name"] == facts["group"]), None)
    names = [actor_name(facts["group"], index) for index in range(facts["nodes"])]
    actors = {actor["Name"]: actor for actor in state.actor_table(None).values() if actor["Name"] in names}
    told = [store.internal_kv_get(name.encode(), namespace=NAMESPACE.encode()) for name in names]
    return {
        "state": group["state"] if group else "REMOVED",
        "bundle": group["bundles"][0] if group else {},
        "waiting": sum(group["state"] == "PENDING" for group in groups.values()),
        "placed": list(group["bundles_to_node_id"].values()) if group else [],
        "actors": [_actor(actors.get(name)) for name in names],
        "told": [json.loads(one) if one else {} for one in told],
        "nodes": _nodes(state),
    }


def log(facts: Facts) -> Facts:
    """Return the end of an allocator's log, which lies on its node."""
    with _driver(facts["address"]):
        strategy = NodeAffinitySchedulingStrategy(facts["node"], soft=False)
        read = ray.remote(_log_tail).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
        try:
            return {"text": ray.get(read.remote(facts["group"], facts["index"]), timeout=patience(20.0))}
        except (ray.exceptions.RayError, OSError):
            return {"text": ""}


def end(facts: Facts) -> Facts:
    """Give nodes back."""
    with _driver(facts["address"]):
        free(facts["group"], facts["nodes"])
    return {}


def _log_tail(group: str, index: int) -> str:
    path = logs_directory() / log_name(group, index)
    return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


# ---- clusters ----


def _connect(address: str) -> tuple[GcsClient, GlobalState]:
    """Return a cluster's control store, and its tables; this process is no driver by that."""
    if address not in _connected:
        state = GlobalState()
        state._initialize_global_state(
            GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        )
        _connected[address] = GcsClient(address=address), state
    return _connected[address]


_connected: dict[str, tuple[GcsClient, GlobalState]] = {}


@contextmanager
def _driver(address: str) -> Iterator[None]:
    """Be a driver of a cluster."""
    store, _ = _connect(address)
    _check_versions(store)
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise Refused("unreachable", str(error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_versions(store: GcsClient) -> None:
    metadata = store.internal_kv_get(b"CLUSTER_METADATA", namespace=ray_constants.KV_NAMESPACE_CLUSTER)
    if not metadata:
        return
    facts = json.loads(metadata)
    try:
        utils.check_version_info(facts, "this process")
    except RuntimeError:
        raise Refused(
            "version",
            f"the cluster has Ray {facts['ray_version']} and Python {facts['python_version']}, this environment Ray "
            f"{ray.__version__} and Python {'.'.join(map(str, sys.version_info[:3]))}",
        ) from None


def _nodes(state: GlobalState) -> list[Facts]:
    free_ = state.available_resources_per_node()
    return [
        {
            "id": node["NodeID"],
            "name": node["NodeName"] if node["NodeName"] != node["NodeManagerAddress"] else node["NodeManagerHostname"],
            "alive": node["Alive"],
            "why": node["DeathReasonMessage"],
            "total": node["Resources"],
            "free": free_.get(node["NodeID"], {}),
        }
        for node in state.node_table()
    ]


def _grows(store: GcsClient, state: GlobalState) -> bool:
    """Whether the cluster has an autoscaler that may add nodes. One that only reports calls the types of nodes after
    the nodes themselves."""
    if state.get_cluster_config() is not None:
        return True
    status = store.internal_kv_get(ray_constants.DEBUG_AUTOSCALING_STATUS.encode(), namespace=None)
    report = (json.loads(status).get("autoscaler_report") or {}) if status else {}
    return any(not kind.startswith("node_") for kind in report.get("active_nodes", {}))


def _actor(actor: Mapping[str, Any] | None) -> Facts:
    if actor is None:
        return {"state": "", "node": "", "why": ""}
    return {"state": actor["State"], "node": actor["Address"]["NodeID"], "why": _death(actor["DeathCause"])}


def _death(cause: Any) -> str:
    """Return why an actor has died, in Ray's words."""
    if cause is None or cause.WhichOneof("context") is None:
        return ""
    context = getattr(cause, cause.WhichOneof("context"))
    if hasattr(context, "formatted_exception_string"):
        return str(context.formatted_exception_string).strip()
    return str(context.error_message).strip()


# ---- lines ----

_CALLS: dict[str, Callable[[Facts], Facts]] = {
    "find": find,
    "cluster": cluster,
    "ask": ask,
    "look": look,
    "log": log,
    "end": end,
}


def main() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    logging.getLogger("ray").setLevel(logging.ERROR)
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        facts = json.loads(line)
        try:
            answer = _CALLS[facts["call"]](facts)
        except Refused as error:
            answer = {"refused": error.kind, "message": str(error)}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:  # who has asked is gone, and will never know of the nodes
            if facts["call"] == "ask":
                end(facts)
            return


if __name__ == "__main__":
    main()
