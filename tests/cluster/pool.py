"""Machines, people, and the pool."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from monarch_nb.rpc import channel as channels  # isort: skip  (sets gRPC's environment before grpc is imported)
import pytest

import monarch_nb
from cluster.clock import Life, VirtualLoop, Work, running
from cluster.ranks import Rank, ScriptedSupervisor
from cluster.wire import UNHEARD_S, Channel, Server, Wire
from monarch_nb import config
from monarch_nb.allocator import node as node_module
from monarch_nb.allocator.api.access import Access
from monarch_nb.allocator.api.guard import Guard
from monarch_nb.allocator.api.service import AllocatorService
from monarch_nb.allocator.node import Node
from monarch_nb.client.connections import bridge
from monarch_nb.client.connections.connection import Connection
from monarch_nb.client.meshes.core import MeshCore
from monarch_nb.client.pools import pool as pools
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.ground.flag import Flag
from monarch_nb.provision import known
from monarch_nb.shape import Extent
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import Identity
from monarch_nb.trust.pools import Hosts, change_hosts, make_paths
from monarch_nb.trust.private_files import write_private

T = TypeVar("T")

EPOCH_S = time.time()
"""When every cluster begins: certificates are good then."""
CHAOS_S = 0.5
"""So long a message takes at most when there is chaos."""
SHUFFLE_S = 0.002
"""The same when only the order is to be another."""
END_S = 3600.0
"""So long the end of a cluster may take: a test that has failed leaves anything."""


class Machine:
    """A host with an allocator, which may be killed and started again; its ranks live on.

    Attributes:
        ranks: every process that there ever was, by pid.
        is_cut: its network swallows everything.
        fails_to_spawn: why no template starts; empty: one does.
    """

    def __init__(self, cluster: Cluster, number: int, procs: int) -> None:
        self._cluster, self._procs = cluster, procs
        self.name, self.address = f"node{number}", f"node{number}:7878"
        self.paths = config.NodePaths(cluster.directory / self.name)
        self.paths.sockets.mkdir(parents=True)
        self.ranks: dict[int, Rank] = {}
        self.is_cut, self.fails_to_spawn, self.fork_s = False, "", 0.0
        self.life = Life(self.name, self)
        self.life.is_over = True

    @property
    def alive(self) -> list[Rank]:
        """The ranks that live, in their order."""
        return sorted((rank for rank in self.ranks.values() if rank.status is None), key=lambda one: one.spec.rank)

    def start(self) -> None:
        """Start the allocator, for the first time or again."""
        self.life = Life(self.name, self)
        self._cluster.run(self._serve(), self.life)

    async def _serve(self) -> None:
        identity = self._cluster.identity(self.name, "node")
        self.node = node = Node(
            self.paths,
            self.name,
            procs=self._procs,
            gpus=[],
            python="python",
            preload=[],
            address=self.address,
            open_channel=lambda address: channels.open_channel_to_node(address, identity),
            certificate=lambda: identity,
            limits=self._cluster.directory / config.LIMITS_FILE,
            trust=self._cluster.trust,
        )
        access = Access(node)
        server: Any = Server(self.life)
        self._service = AllocatorService(node, access)
        Guard(self._service, access, self.paths.directory).serve_on(server)
        await node.start()
        self._cluster.wire.servers[self.address] = server
        self._cluster.wire.tell_changed()

    def kill(self) -> None:
        """SIGKILL the allocator: nothing more is written, and its sockets are closed."""
        self.life.is_over = True
        self.node.watch.close()
        self.node.records.database.close()
        wire = self._cluster.wire
        del wire.servers[self.address]
        wire.break_off(lambda call: call.address == self.address or call.life is self.life)

    def cut(self) -> None:
        """Pull its cable."""
        self.is_cut = True
        wire = self._cluster.wire
        far = [call for call in wire.calls if (call.address == self.address) is not (call.life is self.life)]
        wire.break_off(lambda call: call in far, UNHEARD_S)

    def mend(self) -> None:
        """Plug it in again."""
        self.is_cut = False
        self._cluster.wire.tell_changed()

    async def close(self) -> None:
        await self.node.close(end_processes=True)
        await self._service.close()


class _Cores(weakref.WeakValueDictionary[Any, Any]):
    """The meshes that clients have met: each knows its own, as each is a process."""

    pool = ""

    def of(
        self, get: Callable[..., MeshCore], mesh_id: str, connections: dict[int, Connection], extent: Extent
    ) -> MeshCore:
        self.pool = next(iter(connections.values())).identity.pool  # type: ignore[union-attr]
        return get(mesh_id, connections, extent)

    def get(self, mesh_id: str, default: Any = None) -> Any:
        return super().get((self.pool, mesh_id), default)

    def __setitem__(self, mesh_id: str, core: Any) -> None:
        super().__setitem__((self.pool, mesh_id), core)


class Client:
    """A process of somebody's that uses the pool: a kernel, say. It knows the pool by a name of its own."""

    def __init__(self, cluster: Cluster, person: str, pool: str) -> None:
        self._cluster, self.person, self.pool = cluster, person, pool
        self.life = Life(pool, SimpleNamespace(is_cut=False))

    def reserve(self, name: str = "dev", **arguments: Any) -> Reservation:
        usual = {"procs": 1, "preload": [], "files": False, "directory": str(self._cluster.work)}
        return self.life.call(monarch_nb.reserve, name, pool=self.pool, **(usual | arguments))

    def attach(self, name: str = "dev") -> Reservation:
        return self.life.call(monarch_nb.attach, name, pool=self.pool)

    def list(self) -> list[str]:
        """The names of what is held in the pool."""
        return [info.name for info in self.life.call(monarch_nb.list_reservations, self.pool)]

    def does(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Work:
        """Have it do something beside the test."""
        return self._cluster.work_of(self.life, functools.partial(function, *arguments, **named))

    def dies_at(self, moment: str) -> None:
        """Kill it when it calls a method ("Spawn"), before that is sent, or when that is answered ("Spawn is done")."""
        self._cluster.wire.fates[self.life, moment] = self.kill

    def kill(self) -> None:
        """SIGKILL it."""
        self.life.is_over = True
        self._cluster.wire.break_off(lambda call: call.life is self.life)
        pools._pools.pop(self.pool, None)


class Cluster:
    """A pool of so many nodes, with so many slots each.

    Args:
        seed: of what is random.
        chaos: messages take up to half a second. shuffled: they arrive in another order, in no time.
        limits: what limits.toml says.
    """

    def __init__(
        self,
        nodes: int = 1,
        procs: int = 1,
        *,
        seed: int = 0,
        chaos: bool = False,
        shuffled: bool = False,
        limits: str = "",
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mnb-", dir="/tmp"))  # short: paths of sockets end at 107 bytes
        self.work = self.directory / "work"
        self.work.mkdir()
        if limits:
            write_private(self.directory / config.LIMITS_FILE, limits.encode())
        self.loop = VirtualLoop()
        self.wire = Wire(self.loop, seed, CHAOS_S if chaos else SHUFFLE_S if shuffled else 0.0)
        self.nodes = [Machine(self, number, procs) for number in range(nodes)]
        self._clients: list[Client] = []
        self._works: list[Work] = []
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self._forget()
            raise
        return self

    def _start(self) -> None:
        patch, loop = self._patch, self.loop
        boot_time = time.clock_gettime
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "time", lambda: EPOCH_S + loop.time())
        patch.setattr(
            time, "clock_gettime", lambda clock: loop.time() if clock == time.CLOCK_BOOTTIME else boot_time(clock)
        )
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(Flag, "wait", lambda flag, timeout_s=None: self._wait(flag, timeout_s))
        patch.setattr(bridge, "_loops", [loop])
        patch.setattr(pools, "_pools", {})
        patch.setattr(MeshCore, "_cores", cores := _Cores())
        patch.setattr(MeshCore, "get", functools.partial(cores.of, MeshCore.get))
        patch.setattr(known, "pool_names", lambda: [life.name] if (life := running.get()) else [])
        patch.setattr(channels, "_credentials", lambda _, identity: identity)
        patch.setattr(
            channels.grpc.aio,
            "secure_channel",
            lambda address, credentials, **_: Channel(self.wire, address, credentials),
        )
        patch.setattr(node_module, "Supervisor", ScriptedSupervisor)
        patch.setenv(config.HOME_VARIABLE, str(self.directory / "home"))
        patch.setenv(config.CONFIG_VARIABLE, str(self.directory / "config"))
        patch.setattr(pools, "atexit", SimpleNamespace(register=lambda *_: None))
        self.trust = make_paths("lab")
        self.authority = Authority.create("lab", self.trust)
        self._know_nodes(self.trust)
        for node in self.nodes:
            node.start()

    def __exit__(self, *_: object) -> None:
        try:
            for work in self._works:
                work.give_up()
            self.run(self._close())
        finally:
            self._forget()

    def _forget(self) -> None:
        self._clients.clear()  # their reservations are used no longer, and so nothing keeps the nodes' files open
        self._works.clear()
        self.loop.close()
        self._patch.undo()
        shutil.rmtree(self.directory)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(END_S):
                for machine in self.nodes:
                    if not machine.life.is_over:
                        await machine.close()
        finally:
            await self.loop.end_all()

    # ---- who takes part ----

    def identity(self, name: str, role: str = "user", pool: str = "lab") -> Identity:
        return dataclasses.replace(self.authority, pool=pool).issue(name, role)

    def client(self, person: str = "ann") -> Client:
        """Return a new process of somebody's."""
        made = Client(self, person, f"{person}-{len(self._clients)}")
        paths = make_paths(made.pool)
        self.identity(person, pool=made.pool).save(paths.identity)
        self._know_nodes(paths)
        self._clients.append(made)
        return made

    def _know_nodes(self, paths: config.TrustPaths) -> None:
        change_hosts(paths, lambda _: Hosts(nodes=tuple(node.address for node in self.nodes)))

    def work_of(self, life: Life, function: Callable[[], Any]) -> Work:
        self._works.append(Work(self.loop, life, function))
        return self._works[-1]

    # ---- time ----

    def run(self, coroutine: Coroutine[Any, Any, T], life: Life | None = None) -> T:
        """Run something on the loop, as some process if one is named."""
        make = self.loop.create_task
        task: asyncio.Task[T] = make(coroutine) if life is None else life.call(make, coroutine)
        self.loop.until_done(task)
        return task.result()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run(asyncio.sleep(seconds))

    def settle(self) -> None:
        """Let everything happen that is under way."""
        self.sleep(2 * CHAOS_S)

    def until(self, holds: Callable[[], object], within_s: float = 60.0) -> None:
        """Let time pass until something holds."""
        end_s = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < end_s, f"not within {within_s:g} s"
            self.sleep(0.05)

    def _wait(self, flag: Flag, timeout_s: float | None) -> bool:
        if flag.is_set():
            return True
        woken = self.loop.create_future()
        sleeper: Any = SimpleNamespace(release=lambda: woken.done() or woken.set_result(True))
        flag._sleepers.append(sleeper)
        timer = None if timeout_s is None else self.loop.call_later(timeout_s, sleeper.release)
        self.loop.until_done(woken)
        if timer is not None:
            timer.cancel()
        flag._sleepers.remove(sleeper)
        return flag.is_set()
