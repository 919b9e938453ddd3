"""A node: its parts, put together. The state decides; every other part has one matter to carry out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from monarch_nb import config
from monarch_nb.allocator.files.node_files import NodeFiles
from monarch_nb.allocator.logs.limit import LogLimit
from monarch_nb.allocator.logs.output import DirectoryWatch
from monarch_nb.allocator.logs.stored import KeptLogs
from monarch_nb.allocator.mail.mail import Mail
from monarch_nb.allocator.memory.records import Adoption, Records
from monarch_nb.allocator.processes.forking import Forking, Restarts
from monarch_nb.allocator.processes.grace import Autosaves
from monarch_nb.allocator.processes.scripts import Scripts
from monarch_nb.allocator.processes.stores import Stores
from monarch_nb.allocator.processes.supervisor import RankProcess, Supervisor
from monarch_nb.allocator.readings.load import Readings
from monarch_nb.allocator.readings.ranks import RankActors, Whereabouts
from monarch_nb.allocator.readings.reach import Reach
from monarch_nb.allocator.reservations.fairness import Fairness, LimitsFile, Others
from monarch_nb.allocator.reservations.gpu_locks import GpuLocks
from monarch_nb.allocator.reservations.leases import Leases, Meshes
from monarch_nb.allocator.reservations.members import Members, Owed, Undertakings
from monarch_nb.allocator.runs.audience import Audience
from monarch_nb.allocator.runs.runs import Runs, Values
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.allocator.state.state import Identity, NodeState
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.channel import OpenChannel, open_channel

TAKEN = "the node is taken away"
AGREEING = 0.4
"""The part of the grace in which a script can begin to save: the rest is for its own handler of SIGTERM."""


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
        self.paths, self.grace_s = paths, grace_s
        self.identity = Identity(
            node_id, address or paths.address, gpus, python, store_host, interface, isolated, token=uuid.uuid4().hex
        )
        self.sessions: set[Session] = set()
        self.shutdown, self.keeps_logs = asyncio.Event(), False
        self.state = state = NodeState(procs, [gpu.index for gpu in gpus])
        self.records = records = Records(paths, state, self._on_stored)
        self.supervisor = supervisor = Supervisor(
            paths,
            self._on_result,
            self._on_hello,
            self._on_death,
            self._on_store_death,
            self._on_there,
            self._on_mail,
            self._on_store_lost,
            records.save_template,
        )
        self.mail = mail = Mail(paths, self.identity, state, open_channel, certificate)
        self._python, self._preload = python, preload
        self.adoption = Adoption(state, records, supervisor)
        self.gpu_locks = gpu_locks = GpuLocks(paths.directory, gpus)
        self.readings = Readings(gpus, gpu_locks.held_by_others)
        self.reach = Reach(self.identity.store_host, open_channel)
        self.whereabouts = Whereabouts(state, supervisor.ranks)
        self.actors = RankActors(supervisor.ranks)
        self.watch = DirectoryWatch(asyncio.get_running_loop())
        self.audience = audience = Audience(self.sessions, self.watch, paths)
        self.files = files = NodeFiles(node_id, paths, state.owner_of, open_channel, certificate)
        self.kept_logs = kept_logs = KeptLogs(paths, files.removal.remove)
        self.log_limit = LogLimit(paths, state.meshes, kept_logs, log_limit_bytes)
        self.meshes = meshes = Meshes(paths, state, records, supervisor, audience, mail, files.removal, kept_logs)
        self.autosaves = Autosaves(records, supervisor)
        self.limits = LimitsFile(limits)
        others = Others(
            self.identity.address, self.identity.token, paths, files.relay, self._words_of_nodes, trust, publish
        )
        self.fairness = Fairness(self.identity, state, others, self.limits)
        self.leases = leases = Leases(
            state,
            records,
            supervisor,
            meshes,
            files,
            self.sessions,
            gpu_locks,
            self.autosaves,
            self.fairness,
            self._warn_scripts,
            grace_s,
        )
        self.owed = owed = Owed(records, files.relay)
        self.members = Members(
            self.identity.address,
            state,
            leases,
            owed,
            mail,
            self.sessions,
            self._end_runs,
        )
        self.undertakings = Undertakings(records, self.sessions, leases.expiry, owed)
        self.values = Values(paths, state, records)
        self.runs = runs = Runs(
            paths,
            state,
            records,
            supervisor,
            self.sessions,
            audience,
            leases.expiry,
            files.removal.remove,
            self._start_scripts,
        )
        self.forking = forking = Forking(
            paths, self.identity, state, records, supervisor, files, leases, meshes, runs, gpu_locks
        )
        self.restarts = Restarts(state, records, supervisor, runs, forking)
        self.scripts = Scripts(paths, self.identity, state, records, supervisor, audience, self.readings, runs, forking)
        self.stores = Stores(
            paths, self.identity, state, records, supervisor, leases, meshes, files.relay, self.shutdown
        )

    # ---- start and end ----

    async def start(self) -> None:
        """Read the database, adopt what still lives, and begin to warm the default template."""
        self.records.read()
        self.meshes.remove_unknown()
        self.mail.start()
        await self.adoption.adopt(self.scripts.resume)
        await self.files.release_others(self.state.leases)
        self.records.flush()
        await self.leases.resume()
        self.owed.resume()
        self.undertakings.resume()
        self.runs.resume()
        self.stores.resume()
        self.log_limit.start()
        self.supervisor.templates.keep_warm(self._python, self._preload)

    def warn_ranks(self) -> None:
        """The engine says that the node will be taken away: ranks save where that is armed, and scripts hear of it."""
        for reservation_id in self.state.leases:
            before_s = self.autosaves.before_s(reservation_id)
            self.autosaves.ask_soon(reservation_id, "the engine will take the node away", before_s)
        self.scripts.warn()

    async def leave_in_peace(self) -> None:
        """Everything is about to end by a signal: ranks save where that is armed, and scripts hear of it."""
        live = [process for process in self.supervisor.ranks.values() if not process.record.script_of]
        scripts = self.scripts.of_all_runs().values()
        await asyncio.gather(self.autosaves.save(live, TAKEN, self.grace_s), *map(self._end_script, scripts))

    async def _end_script(self, processes: list[RankProcess]) -> None:
        """Have a script save, and tell it in time that it is to end: it may never come to a step to save at, but save
        when it is told."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.grace_s
        begin_within_s = self.grace_s * (AGREEING if self.scripts.has_handler(processes) else 1.0)
        await self.autosaves.save(processes, TAKEN, self.grace_s, begin_within_s=begin_within_s)
        await self.scripts.terminate(processes, until - loop.time())

    async def close(self, *, end_processes: bool) -> None:
        """Stop; with `end_processes` everything of the node ends and its files are removed."""
        self.adoption.close()
        self.leases.expiry.close()
        self.leases.close()
        self.autosaves.close()
        self.owed.close()
        self.undertakings.close()
        self.log_limit.close()
        self.runs.close()
        self.scripts.close()
        if end_processes:  # before anything that takes long: whoever kills this allocator meanwhile leaves none behind
            await self.supervisor.close(end_processes=True)
        await asyncio.gather(*self.leases.releases.values(), *self.restarts.ending, return_exceptions=True)
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

    # ---- what one part has for others ----

    def collected(self, run_ids: Iterable[str]) -> None:
        """The client has the results of runs: nothing that is large need be kept."""
        for run_id in run_ids:
            self.values.collected(run_id)
            self.stores.forget(run_id)

    def _words_of_nodes(self) -> Sequence[str]:
        limits = self.limits.newest()
        return limits.nodes if limits else ()

    def _on_result(self, process: RankProcess, result: run_pb2.RankResult) -> None:
        (self.scripts if process.record.script_of else self.runs).on_result(process, result)

    def _on_hello(self, process: RankProcess, hello: wire.RankHello) -> None:
        (self.scripts if process.record.script_of else self.runs).on_hello(process, hello)

    def _on_death(self, process: RankProcess, status: int | None) -> None:
        (self.scripts if process.record.script_of else self.runs).on_death(process, status)
        self.mail.rank_is_gone(process, process.record.death)

    def _on_there(self, process: RankProcess, is_there: bool) -> None:
        if is_there:
            self.mail.rank_is_there(process)
            self.autosaves.tell(process)
        else:
            self.mail.rank_is_gone(process)

    def _on_mail(self, process: RankProcess, frame: bytes) -> None:
        self.mail.on_rank_mail(process, frame)

    def _on_store_death(self, mesh_id: str) -> None:
        self.stores.on_death(mesh_id)

    def _on_store_lost(self, mesh_id: str, lost: wire.StoreLost) -> None:
        self.stores.on_lost(mesh_id, lost)

    def _on_stored(self, mesh_id: str, rank: int, run_ids: list[str]) -> None:
        if process := self.supervisor.ranks.get((mesh_id, rank)):
            process.link.forget_results(run_ids)

    def _end_runs(self, mesh_id: str, why: str) -> None:
        self.runs.end_all(mesh_id, why)

    def _warn_scripts(self, reservation_id: str, left_s: float) -> None:
        self.scripts.warn_of_end(reservation_id, left_s)

    def _start_scripts(self, mesh_id: str, run_id: str, ranks: list[int]) -> None:
        self.scripts.start(mesh_id, run_id, ranks)
