"""A script that goes on: its store, its attempts, and how all its ranks end when one has failed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monarch_nb.client.connections import events
from monarch_nb.client.connections.connection import SPAWN_TIMEOUT_S
from monarch_nb.client.runs.interrupts.freeing import STOP_WAIT_S
from monarch_nb.client.runs.needs import HeldMesh
from monarch_nb.client.runs.run import ABORT_AFTER_S, Run
from monarch_nb.client.runs.values import RunValues
from monarch_nb.client.scripts.script import Script
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, ProcessGroupAborted
from monarch_nb.ground.rank_sets import MOST_NAMED, name_ranks
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

_HANDLES_S = patience(30.0)
"""How long a rank that handles the end of another may take before it is killed: as under torchrun."""


def called(script: Script) -> run_pb2.Script:
    """Return what ranks are told of the program itself."""
    arguments = [each.encode("utf-8", "surrogateescape") for each in script.arguments]
    return run_pb2.Script(path=script.path, arguments=arguments, module=script.module, executable=script.executable)


async def host_store(mesh: HeldMesh, run_id: str, *, only_port: bool = False) -> pb.HostStoreReply:
    """Host a store for a run on the first of its nodes; it is there until the run is collected.

    Args:
        only_port: find a port for it instead.
    """
    spec = mesh.reservation.spec
    request = pb.HostStoreRequest(
        reservation_id=mesh.reservation.id,
        mesh_id=run_id,
        python=spec.python,
        preload=spec.preload,
        only_port=only_port,
    )
    first = mesh.core.connection_of(mesh.ranks[0])
    reply: pb.HostStoreReply = await first.unary("HostStore", request, SPAWN_TIMEOUT_S)
    return reply


class ScriptRun(Run):
    """A script that this process has started; while it may be started again, its results are those of the last attempt,
    and its `id` and `number` are the newest attempt's.

    Args:
        on_attempt: called on the background thread when it goes on under another id.
        options: a run's.
    """

    def __init__(
        self,
        mesh: HeldMesh,
        run_id: str,
        script: Script,
        on_attempt: Callable[[ScriptRun], object],
        **options: Any,
    ) -> None:
        super().__init__(mesh, run_id, mesh.ranks, script.title, **options)
        self.is_script, self.is_of_nodes = True, script.shell
        self._script, self._attempt, self._on_attempt = script, 0, on_attempt
        self._held: list[events.Result] = []

    @property
    def _has_attempts(self) -> bool:
        return self._attempt < self._script.max_restarts and not self.is_interrupted

    def spec(self, store: pb.HostStoreReply) -> run_pb2.RunSpec:
        """Return what the ranks are told of this attempt."""
        script = self._script
        told = run_pb2.Script(
            beside=script.beside,
            store_host=store.host,
            store_port=store.port,
            attempt=self._attempt,
            max_restarts=script.max_restarts,
            environment=script.environment,
            cell_number=self.cell_number,
            directory=script.directory,
            shell=script.shell,
        )
        told.MergeFrom(called(script))
        tree = self.mesh.reservation.files.tree()
        return run_pb2.RunSpec(run_id=self.id, script=told, tree=tree, instruments=script.instruments)

    # ---- on the background loop ----

    def submit(self, spec: run_pb2.RunSpec) -> None:
        """As a run's; output is labelled by the mesh's ranks, so it is said which of the script's these are."""
        count = len(self.ranks)
        if self._script.shell:
            if count > 1:
                self.emit(events.Notice(self._names_of_nodes(), key="world"))
        elif self.ranks != tuple(range(count)) and not self._attempt:
            own = "is the script's rank 0" if count == 1 else f"are the script's ranks 0-{count - 1}"
            self.emit(events.Notice(f"{name_ranks(self.ranks)} of the mesh {own}", key="world"))
        super().submit(spec)

    def _names_of_nodes(self) -> str:
        named = [f"[{rank}] {self._nodes.name_of(rank)}" for rank in self.ranks]
        shown = named if len(named) <= MOST_NAMED else [*named[:MOST_NAMED], "…"]
        return f"once on each of {len(named)} nodes: {', '.join(shown)}"

    def emit(self, event: events.Event) -> None:
        """Tell every listener; results only when no other attempt follows, and with what can be said at the end."""
        if isinstance(event, events.Result) and (self._script.max_restarts or _is_torn(event)):
            self._held.append(event)
        else:
            super().emit(event)

    def _finish(self) -> None:
        if self.done:
            return
        if self._has_attempts and self._failed_ranks() and self.refusal is None:
            self._spawn(self._start_again())
        else:
            for result in self._held:
                super().emit(self._explained(result))
            super()._finish()

    def _explained(self, result: events.Result) -> events.Result:
        """Name the ranks that had come to their end when this one lost its group, unless a failure is the cause."""
        ended = [rank for rank, other in self.results.items() if other.outcome == "ok"]
        if _is_torn(result) and ended and all(failure.is_consequence for failure in self.failures):
            assert result.failure is not None
            message = f"{result.failure.message}; {name_ranks(ended)} had ended (exit code 0)"
            result = replace(result, failure=replace(result.failure, message=message, rendered=""))
            self.results[result.rank] = result
        return result

    async def _start_again(self) -> None:
        """All have ended because one has failed: begin anew, with processes, a store and a number of their own."""
        failed = min(self.failures, key=lambda failure: failure.is_consequence)
        old, new = self.id, uuid.uuid4().hex
        try:
            store = await host_store(self.mesh, new)
        except MonarchNbError as error:
            self.refusal = error
        if self.refusal is not None or self.is_interrupted:
            self._script = replace(self._script, max_restarts=self._attempt)
            self._finish()
            return
        attempt = f"attempt {self._attempt + 2} of {self._script.max_restarts + 1}"
        for text in self._decoder.rest():
            super().emit(text)
        which = f"rank {failed.rank}{self.mesh.core.where_of([failed.rank])}"
        super().emit(events.Restart(f"{which} {failed.line}: starting all again, {attempt}"))
        super().emit(events.Notice("", key="abort"))
        self._tell_collected()
        for connection in self._nodes.connections():
            connection.forget(old)
        self._attempt += 1
        self.id = self.run_id = new
        self.number = 0
        self.results.clear()
        self._held.clear()
        self._values = RunValues()
        self.is_completing = self._is_aborting = self.is_collected = False
        self._on_attempt(self)
        self.submit(self.spec(store))

    async def _abort_others(self) -> None:
        """A rank has failed: the others end, as torchrun's do."""
        attempt = self._attempt
        await asyncio.sleep(ABORT_AFTER_S)
        if self.is_interrupted or attempt != self._attempt or not (left := self.left()):
            return
        self._say_aborted(left)
        self._cancel_left()
        await asyncio.sleep(STOP_WAIT_S)
        if attempt == self._attempt and (stuck := (await self._freeing.look()).stuck):
            await self.mesh.core.kill_script(self.id, stuck)
        await asyncio.sleep(_HANDLES_S - STOP_WAIT_S)
        if attempt == self._attempt and (left := self.left()):
            await self.mesh.core.kill_script(self.id, left)


def _is_torn(result: events.Result) -> bool:
    """Return whether a rank failed because its process group was broken."""
    return result.failure is not None and result.failure.name == ProcessGroupAborted.__name__
