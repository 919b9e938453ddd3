"""What a Ray cluster runs on each node of a reservation: an actor that holds an allocator, and what it tells of it.

The allocator is no child of the actor's process: Ray kills children together with a worker, and an allocator that is
killed leaves its ranks. It ends by itself, with all that it started, when the actor's end of a socket is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util import get_placement_group, remove_placement_group

from monarch_nb.config import cadence, gap, pool_directory
from monarch_nb.provision.daemons import daemon_environment, detach

NAMESPACE = "monarch-nb"
"""Of everything that reservations have in a cluster."""
OTHERS_EVERY_S = cadence(1.0)
"""How often an actor whose allocator has ended looks whether it was the last."""
SHOWN_S = gap(30.0)
"""So long a node whose allocator never served stays, so that whoever waits can read why."""
_NOT_OF_RANKS = (
    *("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS", "SPT_NOENV"),
    *("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED"),
)
"""What is true of Ray's own worker only."""


@dataclass(frozen=True)
class Start:
    """How allocators of a reservation are started.

    Attributes:
        group: the placement group's name. nodes: how many it has. pool: that the nodes are.
        arguments: the command, without Python and without certificate.
        toward: hosts to which nodes are to be reachable. environment: that is set.
        certificate: the node's, with its key: never in a file, an environment or a list of processes.
    """

    group: str
    nodes: int
    pool: str
    arguments: Sequence[str]
    toward: Sequence[str]
    environment: Mapping[str, str]
    certificate: bytes = field(repr=False)


def actor_name(group: str, index: int) -> str:
    """Return what the actor of a node is called in the cluster.

    Example:
        >>> actor_name("monarch-nb-dev-1f", 0)
        'monarch-nb-dev-1f-node0'
    """
    return f"{group}-node{index}"


def log_name(group: str, index: int) -> str:
    """Return how an allocator's log is called in the folder of Ray's logs, where the dashboard shows it."""
    return f"{actor_name(group, index)}.log"


def logs_directory() -> Path:
    """Return the folder of Ray's logs on this node; in a process that is connected to the cluster."""
    return Path(ray._private.worker._global_node.get_logs_dir_path())


def told_key(group: str, index: int) -> bytes:
    """Return the key under which the cluster's store has what an actor tells."""
    return actor_name(group, index).encode()


class NotebookNode:
    """An actor that holds an allocator for as long as it lives.

    Args:
        start: how. index: of the node in its reservation.
    """

    def __init__(self, start: Start, index: int) -> None:
        os.environ.update(start.environment)
        self._start, self._index = start, index
        self._name = _node_name(index)
        self._directory = pool_directory(start.pool) / f"{self._name}-{secrets.token_hex(4)}"
        ready, keeper = self._run_allocator()
        threading.Thread(target=self._watch, args=(ready, keeper), daemon=True).start()

    def _run_allocator(self) -> tuple[int, socket.socket]:
        """Start it; return a pipe in which it says where it serves, and a socket; who closes that ends the other."""
        certificate = os.memfd_create("node.pem")
        os.fchmod(certificate, 0o600)
        os.write(certificate, self._start.certificate)
        ready, ready_fd = os.pipe()
        keeper, keeper_fd = socket.socketpair()
        fds = [certificate, ready_fd, keeper_fd.fileno()]
        command = [sys.executable, *self._start.arguments, "--certificate", f"/proc/self/fd/{certificate}"]
        command += ["--node-id", self._name, "--directory", str(self._directory), "--toward", *self._start.toward]
        command += ["--ready-fd", str(ready_fd), "--keeper-fd", str(keeper_fd.fileno())]
        environment = {name: value for name, value in daemon_environment().items() if name not in _NOT_OF_RANKS}
        try:
            with (logs_directory() / log_name(self._start.group, self._index)).open("ab") as log:
                detach(command, Path("/"), environment, log, fds)
        finally:
            os.close(certificate)
            os.close(ready_fd)
            keeper_fd.close()
        return ready, keeper

    def _watch(self, ready: int, keeper: socket.socket) -> None:
        """Tell where the allocator serves, and that it has ended; give the nodes back when it was the last."""
        with os.fdopen(ready) as lines:
            line = lines.readline()
        address = str(json.loads(line)["serving"]) if line else ""
        if address:
            self._tell(node=self._name, address=address)
        while keeper.recv(4096):  # it sends nothing
            pass
        if self._directory.exists():
            self._bury()
        self._tell(node=self._name, ended=True)
        deadline_s = time.monotonic() + (0.0 if address else SHOWN_S)
        while self._others_live() or time.monotonic() < deadline_s:
            time.sleep(OTHERS_EVERY_S)
        free(self._start.group, self._start.nodes)

    def _bury(self) -> None:
        """End what an allocator has left that was killed: another one adopts it, and is told to end."""
        ready, keeper = self._run_allocator()
        keeper.shutdown(socket.SHUT_WR)
        while keeper.recv(4096):
            pass
        os.close(ready)

    def _tell(self, **facts: object) -> None:
        _internal_kv_put(told_key(self._start.group, self._index), json.dumps(facts), namespace=NAMESPACE)

    def _others_live(self) -> bool:
        return any(_lives(self._start.group, index) for index in range(self._start.nodes) if index != self._index)


def free(group: str, nodes: int) -> None:
    """Give the nodes of a reservation back: what they run ends. Again is as once."""
    for index in range(nodes):
        _internal_kv_del(told_key(group, index), namespace=NAMESPACE)
    actors = list(filter(None, (_actor(group, index) for index in range(nodes))))
    with contextlib.suppress(ValueError):  # it is gone
        remove_placement_group(get_placement_group(group))
    for actor in actors:  # Ray forgets nobody who waits for a place that there will never be
        ray.kill(actor)


def _actor(group: str, index: int) -> ray.actor.ActorHandle | None:
    """Return the actor of a node; None when it is dead, or dying: then Ray may have forgotten its class already."""
    try:
        return ray.get_actor(actor_name(group, index))
    except (ValueError, AssertionError):
        return None


def _lives(group: str, index: int) -> bool:
    """Whether the allocator of a node serves, or may yet."""
    told = _internal_kv_get(told_key(group, index), namespace=NAMESPACE)
    if told and json.loads(told).get("ended"):
        return False
    return _actor(group, index) is not None


def _node_name(index: int) -> str:
    """Return what this node is called: as in Ray, if somebody has named it, else as its host; another on each."""
    own_id = ray.get_runtime_context().get_node_id()
    names = {}
    for node in ray.nodes():
        if node["Alive"]:
            named = node["NodeName"] != node["NodeManagerAddress"]
            names[node["NodeID"]] = node["NodeName" if named else "NodeManagerHostname"]
    own = names.pop(own_id)
    return f"{own}-{index}" if own in names.values() else own
