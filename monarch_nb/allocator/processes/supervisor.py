"""The processes of one node: templates, ranks and stores. Starts, adopts, watches and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import uuid
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.allocator.processes import processes
from monarch_nb.allocator.processes.links import RankLink, TemplateLink
from monarch_nb.allocator.processes.processes import ProcessWatch
from monarch_nb.allocator.processes.templates import EXIT_STATUS_WAIT_S, Templates
from monarch_nb.config import cadence, patience
from monarch_nb.errors import SpawnError
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_log = logging.getLogger(__name__)

T = TypeVar("T")

_UNTOLD_STATUS_WAIT_S = cadence(1.0)
"""Of what we end: nobody is told how it has ended."""
GRACEFUL_EXIT_S = patience(2.0)
FORKING_WAIT_S = patience(10.0)
"""Ranks that are just being forked are ended as soon as they are known; a busy machine takes its time."""
KILL_AGAIN_S = cadence(1.0)
"""After an attempt for which there were no descriptors: nothing tells when there are."""
STDERR_TAIL_LINES = 8
"""Of what a process that died said last."""


@dataclass(eq=False)
class RankProcess:
    """A living rank, or the process of a script beside it: then `mesh_id` is the run's id.

    Attributes:
        interrupted_at: when a script was last told to stop.
        saves_until_s: so long a script that got SIGTERM is left alone (time.monotonic).
        ending: ends it for good, once that has begun.
    """

    mesh_id: str
    rank: int
    record: state_pb2.RankRecord
    link: RankLink
    watch: ProcessWatch
    oom_kills_before: int
    killed_by_us: bool = False
    interrupted_at: float | None = None
    saves_until_s: float = 0.0
    ending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """What other processes call it: see Address in mail.proto."""
        return f"{self.mesh_id}/{self.rank}"

    @property
    def home_id(self) -> str:
        """The id of the mesh that it belongs to, also of a script's process."""
        return self.record.script_of or self.mesh_id


class Supervisor:
    """Owner of all processes of a node.

    Args:
        node: told what becomes of them.
    """

    def __init__(self, node: Node) -> None:
        self._node, self.paths = node, node.paths
        self.templates = Templates(node.paths, self._note_exit, node.records.save_template)
        self._exits: dict[int, int] = {}
        self._exit_waiters: dict[int, asyncio.Future[int]] = {}
        self._tasks = Tasks()
        self.ranks: dict[tuple[str, int], RankProcess] = {}
        self.leaving: set[RankProcess] = set()
        """Those that are to end, or are ending: their successors may be in `ranks` already."""
        self._dead: list[RankProcess] = []
        """Those that have just died, and may have left processes."""
        self._forks = Tasks()
        self._is_ending = False
        self.stores: dict[str, ProcessWatch] = {}

    # ---- ranks ----

    def _note_exit(self, pid: int, wait_status: int) -> None:
        self._exits[pid] = wait_status
        if (waiter := self._exit_waiters.pop(pid, None)) and not waiter.done():
            waiter.set_result(wait_status)

    async def fork_ranks(
        self, template: TemplateLink, planned: list[tuple[state_pb2.RankRecord, wire.RankSpec]]
    ) -> list[RankProcess]:
        """Fork ranks as planned and wait until each is ready.

        Raises:
            SpawnError: some did not get ready; none of them is left.
        """
        return await self._forked(self._fork_ranks(template, planned))

    async def _forked(self, forking: Coroutine[Any, Any, T]) -> T:
        """Have a template fork, unless all is to end: what is forked is known before that."""
        if self._is_ending:
            forking.close()
            raise SpawnError("the node is just being shut down")
        # Who waits for it may be cancelled; the processes are there all the same.
        return await asyncio.shield(self._forks.start(forking))

    async def _fork_ranks(
        self, template: TemplateLink, planned: list[tuple[state_pb2.RankRecord, wire.RankSpec]]
    ) -> list[RankProcess]:
        oom_kills_before = processes.oom_kills()
        pids = await template.fork_ranks([spec for _, spec in planned])
        ranks: list[RankProcess] = []
        try:
            for (record, _), pid in zip(planned, pids, strict=True):
                with contextlib.suppress(ProcessLookupError):
                    record.process.CopyFrom(processes.identify(pid))
                ranks.append(self._make_rank(record, pid, oom_kills_before))
        except OSError as error:  # no descriptors left: nobody would know of them
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for rank in ranks:
                rank.watch.close()
            raise SpawnError(f"ranks could not be started: {error}") from error
        try:
            async with asyncio.timeout(patience(60.0)):
                await asyncio.gather(*(rank.link.connect() for rank in ranks))
        except (SpawnError, TimeoutError) as error:
            await self.end(ranks, patience_s=0.0)
            raise SpawnError(f"ranks did not get ready: {str(error) or 'no answer'}") from error
        if any((rank.mesh_id, rank.rank) in self.ranks for rank in ranks):  # else nobody would know of those any more
            await self.end(ranks, patience_s=0.0)
            raise SpawnError("other ranks took their places while they started")
        for rank in ranks:
            self._supervise(rank)
        return ranks

    def _make_rank(self, record: state_pb2.RankRecord, pid: int, oom_kills_before: int) -> RankProcess:
        def on_message(message: wire.FromRank) -> None:
            kind = message.WhichOneof("message")
            if kind == "hello" and self.ranks.get((rank.mesh_id, rank.rank)) is rank:  # else it is started or ended
                self._node.on_hello(rank, message.hello)
            elif kind == "result" and rank not in self.leaving:  # else its successor answers for that rank
                self._node.on_result(rank, message.result)
            elif kind == "store_lost":
                self._node.stores.on_lost(rank.mesh_id, message.store_lost)

        def on_mail(frame: bytes) -> None:
            if rank not in self.leaving:
                self._node.mail.on_rank_mail(rank, frame)

        link = RankLink(self.paths.rank_socket(record.mesh_id, record.rank, record.incarnation), on_message, on_mail)
        rank = RankProcess(record.mesh_id, record.rank, record, link, ProcessWatch(pid), oom_kills_before)
        return rank

    async def adopt_rank(self, record: state_pb2.RankRecord) -> None:
        """Connect to a rank that outlived the allocator before us; one that is gone is reported as dead.

        It takes as long as C code of the user's holds the interpreter: the rank's memory is worth any wait.
        """
        rank = self._make_rank(record, record.process.pid, processes.oom_kills())
        if not processes.is_alive(record.process):
            self._node.on_death(rank, await self._exit_status(rank.watch))
            rank.watch.close()
            return
        self._supervise(rank)
        try:
            await rank.link.connect()
        except SpawnError:  # it does not listen any more
            self.kill([rank])

    def _supervise(self, rank: RankProcess) -> None:
        self.ranks[rank.mesh_id, rank.rank] = rank
        self._node.on_there(rank, True)
        self._tasks.start(self._await_death(rank))

    async def _await_death(self, rank: RankProcess) -> None:
        await rank.watch.ended.wait()
        key = (rank.mesh_id, rank.rank)
        if self.ranks.get(key) is not rank:
            return  # replaced or released: `end` looks after it
        del self.ranks[key]
        self._dead.append(rank)
        await asyncio.sleep(0)  # who dies in the same moment is added, and all processes are looked at once for all
        dead, self._dead = self._dead, []
        self._kill_trees(dead)
        status = await self._exit_status(rank.watch)
        rank.link.close()
        rank.watch.close()
        self._socket(rank).unlink(missing_ok=True)
        if key not in self.ranks:  # else it was replaced meanwhile
            self._node.on_death(rank, status)

    async def _exit_status(self, watch: ProcessWatch, wait_s: float = EXIT_STATUS_WAIT_S) -> int | None:
        """The template tells; if it is dead we are the parent; else ask the kernel; else it is unknown."""
        pid = watch.pid
        if pid not in self._exits and (status := watch.exit_status()) is not None:
            return status
        if pid not in self._exits:
            waiter = self._exit_waiters[pid] = asyncio.get_running_loop().create_future()
            # Without templates nobody tells: we are the parent.
            ends = asyncio.get_running_loop().create_task(self.templates.all_end())
            try:
                await asyncio.wait({waiter, ends}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ends.cancel()
                self._exit_waiters.pop(pid, None)
        status = self._exits.pop(pid, None)
        self.templates.forget_exit(pid)
        return watch.exit_status() if status is None else status

    def kill(self, ranks: Iterable[RankProcess]) -> None:
        """SIGKILL ranks with all that they started. Their deaths are reported as ever."""
        doomed = list(ranks)
        for rank in doomed:
            rank.killed_by_us = True
            rank.watch.kill()
        self._kill_trees(doomed)

    def _kill_trees(self, ranks: list[RankProcess]) -> None:
        """SIGKILL all that ranks started. What can not be looked for now, without descriptors, ends later."""
        if not ranks:
            return
        try:
            processes.kill_trees([(rank.record.process, rank.record.token) for rank in ranks])
        except OSError as error:
            _log.error("processes that ranks started can not be ended yet: %s", error)
            self._tasks.start(self._kill_trees_later(ranks))

    async def _kill_trees_later(self, ranks: list[RankProcess]) -> None:
        await asyncio.sleep(KILL_AGAIN_S)
        self._kill_trees(ranks)

    def retire(self, ranks: Iterable[RankProcess]) -> None:
        """Make room in `ranks` for the successors of those that are to end. From now on no death is reported."""
        for rank in ranks:
            if self.ranks.get((rank.mesh_id, rank.rank)) is rank:
                del self.ranks[rank.mesh_id, rank.rank]
                self._node.on_there(rank, False)
            self.leaving.add(rank)

    async def end(self, ranks: Iterable[RankProcess], *, patience_s: float = GRACEFUL_EXIT_S) -> None:
        """End ranks for good: ask the idle ones, then SIGKILL every tree. No death is reported, and whoever is ending
        already is only waited for."""
        doomed = list(ranks)
        if remaining := [rank for rank in doomed if rank.ending is None]:
            self.retire(remaining)
            ending = asyncio.create_task(self._end(remaining, patience_s))
            for rank in remaining:
                rank.ending = ending
        await asyncio.gather(*(asyncio.shield(ending) for ending in {rank.ending for rank in doomed} if ending))

    async def _end(self, doomed: list[RankProcess], patience_s: float) -> None:
        await asyncio.gather(*(self._end_gently(rank, patience_s) for rank in doomed))
        self.kill(doomed)
        for rank in doomed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rank.watch.ended.wait(), GRACEFUL_EXIT_S)
            await self._exit_status(rank.watch, _UNTOLD_STATUS_WAIT_S)
            rank.link.close()
            rank.watch.close()
            self._socket(rank).unlink(missing_ok=True)
            self.leaving.discard(rank)

    def stacks(self, rank: RankProcess) -> Path:
        """Return the file to which faulthandler writes where a rank is."""
        return self.paths.stacks(rank.home_id, rank.rank, rank.mesh_id if rank.record.script_of else "")

    def explain_death(self, rank: RankProcess, status: int | None, stderr: list[str]) -> run_pb2.Death:
        """Say how a process ended, and what it said last.

        Args:
            stderr: the last lines that it wrote there.
        """
        return processes.explain_death(
            rank.record.process.pid,
            status,
            killed_by_us=rank.killed_by_us,
            oom_kills_before=rank.oom_kills_before,
            stderr=stderr,
            stderr_tail=processes.last_words(stderr, self.stacks(rank), STDERR_TAIL_LINES),
        )

    def _socket(self, rank: RankProcess) -> Path:
        return self.paths.rank_socket(rank.mesh_id, rank.rank, rank.record.incarnation)

    async def _end_gently(self, rank: RankProcess, patience_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                if await rank.link.control(wire.ControlRequest(exit=wire.ExitRank()), patience_s):
                    await rank.watch.ended.wait()

    # ---- stores ----

    async def fork_store(self, mesh_id: str, template: TemplateLink, host: str, port: int = 0) -> tuple[int, int]:
        """Fork a mesh's store; return its pid and port."""
        return await self._forked(self._fork_store(mesh_id, template, host, port))

    async def _fork_store(self, mesh_id: str, template: TemplateLink, host: str, port: int) -> tuple[int, int]:
        pid, port = await template.fork_store(host, port, dict(os.environ))
        self.watch_store(mesh_id, pid)
        return pid, port

    def watch_store(self, mesh_id: str, pid: int) -> None:
        """Look after a store until `end_store`; its death is reported."""
        watch = self.stores[mesh_id] = ProcessWatch(pid)
        self._tasks.start(self._await_store_death(mesh_id, watch))

    async def _await_store_death(self, mesh_id: str, watch: ProcessWatch) -> None:
        await watch.ended.wait()
        if self.stores.get(mesh_id) is watch:
            del self.stores[mesh_id]
            await self._exit_status(watch)
            watch.close()
            self._node.stores.on_death(mesh_id)

    async def end_store(self, mesh_id: str) -> None:
        """End a mesh's store."""
        if watch := self.stores.pop(mesh_id, None):
            watch.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.ended.wait(), GRACEFUL_EXIT_S)
            await self._exit_status(watch, _UNTOLD_STATUS_WAIT_S)
            watch.close()

    # ---- the end ----

    async def close(self, *, end_processes: bool) -> None:
        """Let go of everything; with `end_processes` end it as well."""
        self._is_ending = end_processes
        if end_processes:
            if self._forks:
                await asyncio.wait(self._forks, timeout=FORKING_WAIT_S)
            await self.end([*self.ranks.values(), *self.leaving], patience_s=patience(1.0))
            for mesh_id in list(self.stores):
                await self.end_store(mesh_id)
            await self.templates.end_all(GRACEFUL_EXIT_S)
            shutil.rmtree(self.paths.sockets, ignore_errors=True)
        self.templates.close()
        self._tasks.cancel()


def new_token() -> str:
    """Return a token for a rank's environment, by which its descendants are found."""
    return uuid.uuid4().hex
