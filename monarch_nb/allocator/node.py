"""A node: its parts, put together. The state decides; every other part has one matter to carry out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.allocator.logs.limit import LogLimit
from monarch_nb.allocator.logs.output import DirectoryWatch
from monarch_nb.allocator.logs.stored import KeptLogs
from monarch_nb.allocator.mail.mail import Mail
from monarch_nb.allocator.memory.records import Records
from monarch_nb.allocator.processes.forking import Forking
from monarch_nb.allocator.processes.grace import Grace
from monarch_nb.allocator.processes.scripts import Scripts
from monarch_nb.allocator.processes.stores import Stores
from monarch_nb.allocator.processes.supervisor import RankProcess, Supervisor
from monarch_nb.allocator.readings.load import Readings
from monarch_nb.allocator.readings.ranks import RankActors, Whereabouts
from monarch_nb.allocator.readings.reach import Reach
from monarch_nb.allocator.reservations.fairness import Fairness, LimitsFile
from monarch_nb.allocator.reservations.gpu_locks import GpuLocks
from monarch_nb.allocator.reservations.leases import Leases
from monarch_nb.allocator.reservations.members import Members, Outbox, Undertakings
from monarch_nb.allocator.runs.audience import Audience
from monarch_nb.allocator.runs.runs import Runs
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.allocator.state.state import Identity, NodeState
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.channel import OpenChannel, open_channel


class Node:
    """One allocator's node.

    Args:
        paths: where everything of it lies.
        node_id: "node0"; unique in the pool.
        procs: CPU slots. gpus: its GPUs.
        python, preload: of the template that is kept warm.
        store_host: address of the interface on which stores and collectives listen.
        interface: its name.
        address: where other nodes, and clients on other machines, reach it; that of its socket when there are none.
        open_channel: to another node. certificate: what that shows now.
        isolated: see no files of clients, even when they are on this machine.
        log_limit_bytes: how much of what ranks print is kept; 0 for all.
        limits: the file of the limits of fairness; None: there is none.
        grace_s: how long ranks may take to save, and scripts to end, before everything ends.
        trust, publish: say where other nodes are (monarch_nb.allocator.reservations.fairness).

    Attributes:
        sessions: of its clients, as they come and go.
        shutdown: set when everything is to end. keeps_logs: but for what meshes printed that have ended.
    """

    def __init__(
        self,
        paths: config.NodePaths,
        node_id: str,
        *,
        procs: int,
        gpus: list[pb.Gpu],
        python: str,
        preload: list[str],
        store_host: str = "127.0.0.1",
        interface: str = "lo",
        isolated: bool = False,
        log_limit_bytes: int = 0,
        address: str = "",
        open_channel: OpenChannel = open_channel,
        certificate: Callable[[], object] = lambda: None,
        limits: Path | None = None,
        trust: config.TrustPaths | None = None,
        publish: Path | None = None,
        grace_s: float = 0.0,
    ) -> None:
        self.paths = paths
        self.identity = Identity(
            node_id, address or paths.address, gpus, python, store_host, interface, isolated, token=uuid.uuid4().hex
        )
        self.sessions: set[Session] = set()
        self.shutdown, self.keeps_logs = asyncio.Event(), False
        self._preload = preload
        self.state = NodeState(procs, [gpu.index for gpu in gpus])
        self.records = Records(self)
        self.supervisor = Supervisor(self)
        self.gpu_locks = GpuLocks(paths.directory, gpus)
        self.readings = Readings(gpus, self.gpu_locks.held_by_others)
        self.reach = Reach(store_host, open_channel)
        self.whereabouts = Whereabouts(self.state, self.supervisor.ranks)
        self.actors = RankActors(self.supervisor.ranks)
        self.mail = Mail(paths, self.identity, self.state, open_channel, certificate)
        self.watch = DirectoryWatch(asyncio.get_running_loop())
        self.audience = Audience(self.sessions, self.watch, paths)
        self.files = NodeFiles(node_id, paths, self.state.owner_of, open_channel, certificate)
        self.kept_logs = KeptLogs(paths, self.files.removal.remove)
        self.log_limit = LogLimit(paths, self.state.meshes, self.kept_logs, log_limit_bytes)
        self.grace = Grace(self, grace_s)
        self.limits = LimitsFile(limits)
        self.fairness = Fairness(self, trust, publish)
        self.leases = Leases(self)
        self.outbox = Outbox(self)
        self.members = Members(self)
        self.undertakings = Undertakings(self)
        self.runs = Runs(self)
        self.forking = Forking(self)
        self.scripts = Scripts(self)
        self.stores = Stores(self)

    # ---- start and end ----

    async def start(self) -> None:
        """Read the database, adopt what still lives, and begin to warm the default template."""
        self.records.read()
        self.leases.remove_unknown_meshes()
        self.mail.start()
        await self.records.adopt()
        await self.files.release_others(self.state.leases)
        self.records.flush()
        await self.leases.resume()
        self.outbox.resume()
        self.undertakings.resume()
        self.runs.resume()
        self.stores.resume()
        self.log_limit.start()
        self.supervisor.templates.keep_warm(self.identity.python, self._preload)

    async def close(self, *, end_processes: bool) -> None:
        """Stop; with `end_processes` everything of the node ends and its files are removed."""
        for adopting in self.records.adopting:
            adopting.cancel()
        self.leases.expiry.close()
        self.leases.close()
        self.grace.close()
        self.outbox.close()
        self.undertakings.close()
        self.log_limit.close()
        self.runs.close()
        self.scripts.close()
        if end_processes:  # before anything that takes long: whoever kills this allocator meanwhile leaves none behind
            await self.supervisor.close(end_processes=True)
        await asyncio.gather(*self.leases.releases.values(), *self.forking.ending, return_exceptions=True)
        if not end_processes:
            await self.supervisor.close(end_processes=False)
        self.records.close()
        self.gpu_locks.close(released=end_processes)
        self.watch.close()
        await self.mail.close()
        await self.files.close()
        if end_processes:
            names = {reservation_id: lease.request.name for reservation_id, lease in self.state.leases.items()}
            await asyncio.to_thread(self.files.remove_all, names, keep_logs=self.keeps_logs)

    # ---- what becomes of processes ----

    def on_result(self, process: RankProcess, result: run_pb2.RankResult) -> None:
        """A rank, or a script, has finished a run."""
        (self.scripts if process.record.script_of else self.runs).on_result(process, result)

    def on_hello(self, process: RankProcess, hello: wire.RankHello) -> None:
        """A process says what it has done and what it does, when it was connected to (again)."""
        (self.scripts if process.record.script_of else self.runs).on_hello(process, hello)

    def on_death(self, process: RankProcess, status: int | None) -> None:
        """A process ended, and was not asked to; None: its wait status is unknown."""
        (self.scripts if process.record.script_of else self.runs).on_death(process, status)
        self.mail.rank_is_gone(process, process.record.death)

    def on_there(self, process: RankProcess, is_there: bool) -> None:
        """A process is ready, or about to be ended."""
        if is_there:
            self.mail.rank_is_there(process)
            self.grace.tell(process)
        else:
            self.mail.rank_is_gone(process)
