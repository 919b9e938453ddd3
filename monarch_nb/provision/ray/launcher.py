"""Nodes of a Ray cluster: a placement group that spreads over them, and on each an actor that holds an allocator.

The kernel stays free of Ray, whose import alone takes longer than all that is asked of it: a helper process talks to
the cluster, and ends soon after the last question.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import json
import os
import secrets
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_nb.config import GPU_LOCKS_VARIABLE, HOME_VARIABLE, LOG_LIMIT_VARIABLE, gap, passed_on
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.account import own_name
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Option
from monarch_nb.provision.helpers import Helper
from monarch_nb.provision.launchers import Ask, EngineFlags, Job, Look, Offer

SHOWN_NODES = 8
"""How many nodes an error lists."""
_PASSED_ON = (HOME_VARIABLE, GPU_LOCKS_VARIABLE, LOG_LIMIT_VARIABLE)


class RayLauncher:
    """Nodes of a Ray cluster.

    A job is known by its placement group and its cluster, as in "monarch-nb-alice-dev-3f2a@10.0.0.1:6379".
    """

    title = "Ray placement group"

    def options(self) -> list[Option]:
        """Return what can stand after ` -- `, where there is a cluster."""
        _call("find", address=_default_address())
        return [
            Option("cpus", "CPUs per node", "text", "", "empty: one for each GPU or proc", flag="--cpus"),
            Option("resources", "Resources per node", "text", "", "as in ssd=1", flag="--resources"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return whether there is room now."""
        _, bundle, facts = _found(ask)
        free = sum(_has(node["free"], bundle) for node in facts["nodes"] if node["alive"])
        if free >= ask.nodes:
            return Offer("would start now")
        has = "has" if free == 1 else "have"
        return Offer(f"would wait: {counted(free, 'node')} {has} {_sizes(bundle, bundle)} free")

    def ask(self, ask: Ask) -> str:
        """Ask for a placement group; it is checked first whether the cluster can ever have it."""
        address, bundle, facts = _found(ask)
        group = f"monarch-nb-{own_name()}-{ask.reservation}-{secrets.token_hex(2)}"
        try:
            _call(
                "ask",
                address=address,
                group=group,
                nodes=ask.nodes,
                bundle=bundle,
                avoid=facts["taken"],
                pool=ask.pool,
                arguments=_arguments(ask),
                environment=passed_on() | {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                certificate=base64.b64encode(ask.paths.node.read_bytes()).decode(),
            )
        except BaseException:
            with contextlib.suppress(PoolError):  # what is asked for nevertheless ends when nobody holds it
                _call("end", address=address, group=group, nodes=ask.nodes)
            raise
        return f"{group}@{address}"

    def look(self, job: Job) -> Look:
        """Return what the cluster's tables say; of what has ended nothing stays in the cluster."""
        group, address = _parts(job)
        try:
            facts = _call("look", address=address, group=group, nodes=job.nodes)
        except PoolError as error:
            if _is_gone(job, address):
                return Look(
                    "ended", f"Ray placement group {group} has ended with its cluster at {address}", "it is gone"
                )
            raise PoolError(f"Ray does not answer: {error}") from None
        look = look_of(job, facts)
        if look.trouble and not job.served:
            _fetch_log(job, facts)
        if look.state == "ended" and facts["state"] != "REMOVED":
            self.end(job)
        return look

    def extend(self, job: Job, by_s: float) -> None:
        raise UsageError("Ray sets no time limit: %mesh extend is for limits that you have set with --time")

    def end(self, job: Job) -> None:
        """Remove the placement group; Ray ends its actors, and allocators end with them."""
        group, address = _parts(job)
        _call("end", address=address, group=group, nodes=job.nodes)


# ---- what is asked for ----


@dataclass(frozen=True)
class Wanted:
    """What stands after ` -- `."""

    address: str = "auto"
    cpus: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)

    def bundle(self, ask: Ask) -> dict[str, float]:
        """Return what each node of the placement group takes, as Ray counts it."""
        gpus = {"GPU": float(ask.gpus)} if ask.gpus else {}
        cpus = float(ask.gpus or ask.procs) if self.cpus is None else self.cpus
        return {"CPU": cpus, **gpus, **self.resources}


def parse_flags(arguments: Sequence[str], address: str = "auto") -> Wanted:
    """Read what stands after ` -- `; the address of the cluster is another one when that says so.

    Raises:
        UsageError: it is nothing that is known here; the message lists what is.

    Example:
        >>> parse_flags(["--cpus=12", "--resources=ssd=1"]).resources
        {'ssd': 1.0}
    """
    parser = EngineFlags("Ray")
    parser.add_argument("--address", default=address)
    parser.add_argument("--cpus", type=_size)
    parser.add_argument("--resources", type=_resources, action="append", default=[])
    options = parser.parse_args(list(arguments))
    address = options.address
    if "://" in address:
        raise UsageError(
            f"{address}: Ray Client and Ray's jobs are for machines outside of a cluster, which do not reach its "
            "nodes. Run the notebook on a node of the cluster, and say --address=HOST:6379 or nothing"
        )
    return Wanted(address, options.cpus, dict(pair for pairs in options.resources for pair in pairs))


def _resources(text: str) -> list[tuple[str, float]]:
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(equals and name and name not in ("CPU", "GPU", "memory") for name, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f"name a resource of the nodes, as in --resources=ssd=1, not {text!r}")
    return [(name, _size(size)) for name, _, size in pairs]


def _size(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of resources")
    return size


def _default_address() -> str:
    return os.environ.get("RAY_ADDRESS") or "auto"


def _found(ask: Ask) -> tuple[str, dict[str, float], dict[str, Any]]:
    """Return the address of the cluster that is meant, what each node of it is asked for, and what it has.

    Raises:
        CapacityError: it never has what is asked for.
    """
    wanted = parse_flags(ask.arguments, _default_address())
    address = str(_call("find", address=wanted.address)["address"])
    bundle = wanted.bundle(ask)
    groups = [group for group, _, where in (each.rpartition("@") for each in ask.further_to) if where == address]
    facts = _call("cluster", address=address, groups=groups)
    if not facts["grows"]:
        check_fits(facts["nodes"], bundle, ask.nodes, address, facts["taken"])
    return address, bundle, facts


def _arguments(ask: Ask) -> list[str]:
    """Return an allocator's command without its Python and its certificate: both are the node's own."""
    words = ask.allocator(publish=False)[1:]
    at = words.index("--certificate")
    return words[:at] + words[at + 2 :]


def check_fits(
    nodes: Sequence[Mapping[str, Any]],
    bundle: Mapping[str, float],
    count: int,
    address: str,
    taken: Collection[str] = (),
) -> None:
    """Check that a cluster can ever have what is asked for.

    Args:
        taken: ids of nodes of which the reservation has a part already: it is to be on others.

    Raises:
        CapacityError: it never has.
    """
    alive = sorted((node for node in nodes if node["alive"]), key=lambda node: str(node["name"]))
    fitting = [node for node in alive if node["id"] not in taken and _has(node["total"], bundle)]
    if len(fitting) >= count:
        return
    held = ", ".join(str(node["name"]) for node in alive if node["id"] in taken)
    there = "; ".join(f"{node['name']} {_sizes(node['total'], bundle)}" for node in alive[:SHOWN_NODES])
    more = f"; and {len(alive) - SHOWN_NODES} more" if len(alive) > SHOWN_NODES else ""
    each = f"with {_sizes(bundle, bundle)} each{f' beside {held}' if held else ''}"
    raise CapacityError(
        f"the Ray cluster at {address} never has {counted(count, 'node')} {each}, and no autoscaler that could add "
        f"some. Its nodes: {there}{more}. Ask for less, or for fewer CPUs: ... -- --cpus=1"
    )


def _has(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= size for name, size in bundle.items())


def _sizes(resources: Mapping[str, float], bundle: Mapping[str, float]) -> str:
    """Return how much there is of what a bundle takes: "8 GPU, 8 CPU"."""
    names = sorted(bundle, key=lambda name: (name != "GPU", name != "CPU"))
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in names)


# ---- what Ray says ----


def look_of(job: Job, facts: Mapping[str, Any]) -> Look:
    """Return what the tables of a cluster mean for a job."""
    group, _ = _parts(job)
    name = f"Ray placement group {group}"
    if facts["state"] == "REMOVED":
        why = "is gone: it was removed, or the cluster was started anew"
        return Look("ended", f"{name} {why}", why)
    if facts["state"] == "PENDING":
        return Look("waiting", f"{name} waits for {_missing(job, facts)}")
    nodes = {node["id"]: node for node in facts["nodes"]}
    failed = list(filter(None, (_failure(index, facts, nodes) for index in range(job.nodes))))
    if all(actor["state"] == "DEAD" for actor in facts["actors"]):
        return Look("ended", f"{name} has ended: {'; '.join(failed)}", "; ".join(failed))
    placed = [nodes[node]["name"] for node in facts["placed"] if node in nodes]
    addresses = tuple(told["address"] for told in facts["told"] if "address" in told)
    where = f"{name} runs on {', '.join(placed[:SHOWN_NODES])}{', …' if len(placed) > SHOWN_NODES else ''}"
    return Look("running", where, "; ".join(failed), addresses)


def _missing(job: Job, facts: Mapping[str, Any]) -> str:
    """Return what a placement group that is pending waits for."""
    bundle = facts["bundle"]
    alive = [node for node in facts["nodes"] if node["alive"]]
    free, able = (sum(_has(node[part], bundle) for node in alive) for part in ("free", "total"))
    sums = [_sum([node[part] for node in alive]) for part in ("free", "total")]
    others = facts["waiting"] - 1
    return (
        f"{counted(job.nodes, 'node')} with {_sizes(bundle, bundle)} each: of the {able} that are as large {free} have "
        f"that free; the cluster has {_sizes(sums[0], bundle)} free of {_sizes(sums[1], bundle)}"
        + (f", and {counted(others, 'other placement group')} waiting" if others > 0 else "")
    )


def _sum(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for part in parts for name in part}
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _failure(index: int, facts: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what has become of a node of a job, if it does not work."""
    actor, told = facts["actors"][index], facts["told"][index]
    node = nodes.get(actor["node"], {})
    name = told.get("node") or node.get("name") or f"node {index}"
    if actor["state"] == "DEAD" and node and not node["alive"]:
        return f"{name} has died ({node['why'] or 'Ray does not say why'})"
    if actor["state"] == "DEAD":
        return f"{name} has lost its actor ({actor['why'] or 'Ray does not say why'})"
    return f"{name} has lost its allocator, which has ended" if told.get("ended") else ""


def _parts(job: Job) -> tuple[str, str]:
    group, _, address = job.id.rpartition("@")
    return group, address


def _is_gone(job: Job, address: str) -> bool:
    """Whether a cluster is no more, rather than away: its host says that nobody listens, or has no name any more; and
    no allocator of the job serves."""
    try:
        _connect(address)
        return False
    except (ConnectionRefusedError, socket.gaierror):
        pass
    except OSError:
        return False
    try:
        known = json.loads(job.paths.hosts.read_bytes()).get("nodes", [])
    except (OSError, ValueError):
        known = []
    for node in known:
        try:
            _connect(node)
        except OSError:
            continue
        return False
    return True


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), gap(5.0)).close()


def _fetch_log(job: Job, facts: Mapping[str, Any]) -> None:
    """Have the log of an allocator that failed where people look for it: it lies on its node."""
    group, address = _parts(job)
    alive = {node["id"] for node in facts["nodes"] if node["alive"]}
    if job.paths.log.exists():
        return
    for index, (actor, told) in enumerate(zip(facts["actors"], facts["told"], strict=True)):
        if (actor["state"] == "DEAD" or told.get("ended")) and actor["node"] in alive:
            found = _call("log", address=address, group=group, index=index, node=actor["node"])
            job.paths.log.write_text(found["text"])
            return


# ---- the helper ----


def _command() -> list[str]:
    return [sys.executable, "-P", "-m", "monarch_nb.provision.ray.helper"]


_helper = Helper("Ray", _command, _PASSED_ON)


def _call(name: str, **facts: object) -> dict[str, Any]:
    """Have something done in a cluster.

    Raises:
        PoolError: Ray is not installed, there is no cluster, it does not answer, or it is of another version.
    """
    if importlib.util.find_spec("ray") is None:
        raise PoolError(
            f"Ray is not installed in {sys.prefix}: pip install 'monarch-nb[ray]', in the version that the cluster has "
            "(ray --version on one of its nodes)"
        )
    if name != "find" and (why := _unreachable(str(facts["address"]))):
        raise PoolError(why)
    answer = _helper.call({"call": name, **facts})
    if kind := answer.get("refused"):
        raise PoolError(_REFUSALS[kind].format(message=answer["message"]))
    return answer


_REFUSALS = {
    "none": "there is no Ray cluster to connect to ({message}). Run the notebook on a node of one (ray status says "
    "whether it is), or name it: ... -- --address=HOST:6379, or $RAY_ADDRESS",
    "unreachable": "this machine is no node of the Ray cluster, or the cluster does not take it: {message}",
    "version": "{message}: both must be the same. Install the cluster's: pip install ray==VERSION, in a Python "
    "of that version",
}


def _unreachable(address: str) -> str:
    """Return why a cluster's control store can not be reached; empty when it can: Ray's own client takes minutes."""
    try:
        _connect(address)
    except OSError as error:
        return f"there is no Ray cluster at {address} ({error.strerror or error}); ray status there says more"
    return ""
