"""The processes of scripts: forked for one run beside the live ranks of its slots, and ended with it.

To the supervisor and the database they are the ranks of a mesh whose id is the run's. What they print, and what they
come to, belongs to the mesh on whose slots they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.processes.specs import Plan, plan_script
from monarch_nb.config import gap, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.ground.frames import pack_pickle
from monarch_nb.ground.tasks import Tasks
from monarch_nb.proto import run_pb2, state_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.sizes import size

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.supervisor import RankProcess
    from monarch_nb.allocator.state.runs import Mesh, Run

UNATTENDED_S = gap(10.0)
"""Clients end the other ranks sooner when one has failed; a node does it after this time, and kills after it again."""
WORTH_A_WORD_BYTES = 1 << 30
_ENDED_BY_SIGINT = 128 + signal.SIGINT
"""The exit code of a shell whose command was."""


@dataclass
class _Start:
    """Processes of a run that are being forked; `given_up` when it was interrupted meanwhile."""

    run: Run
    ranks: list[int]
    given_up: bool = False


class Scripts:
    """Starts, watches and ends the scripts of a node."""

    def __init__(self, node: Node) -> None:
        self._node, self._paths, self._identity, self._state = node, node.paths, node.identity, node.state
        self._records, self._supervisor, self._audience = node.records, node.supervisor, node.audience
        self._starting: dict[asyncio.Task[None], _Start] = {}
        self._interrupting = Tasks()

    # ---- begin ----

    def start(self, mesh_id: str, run_id: str, ranks: Iterable[int]) -> None:
        """Fork a run's processes on these ranks' slots, and send them the run."""
        mesh = self._state.meshes[mesh_id]
        start = _Start(mesh.runs[run_id], list(ranks))
        task = asyncio.get_running_loop().create_task(self._start(mesh, start))
        self._starting[task] = start
        task.add_done_callback(self._starting.pop)

    async def _start(self, mesh: Mesh, start: _Start) -> None:
        run, ranks = start.run, start.ranks

        def plan(workspace: Path | None) -> list[Plan]:
            return [plan_script(self._node, mesh, run, rank, workspace) for rank in ranks]

        def say(text: str) -> None:
            self._audience.say(run, ranks[0], text)

        try:
            forked = await self._node.forking.fork(mesh, plan, run.submit.run.script, say)
        except (MonarchNbError, OSError) as error:
            failure = run_pb2.Failure(name=type(error).__name__, message=str(error))
            for rank in ranks:
                self._give_back(run, rank, outcome=run_pb2.OUTCOME_ERROR, failure=failure)
            return
        if start.given_up:
            await self._supervisor.end(forked, patience_s=0.0)
            self._records.delete_ranks(forked)
            return
        if held := await self._held_on_gpus(mesh, run):
            self._audience.say(run, ranks[0], held)
        encoded = wire.ToRank(run=run.submit.run).SerializeToString()
        for process in forked:
            process.link.start(encoded)

    async def _held_on_gpus(self, mesh: Mesh, run: Run) -> str:
        """Return what live ranks hold of a script's GPUs; empty when it is little, or not theirs alone."""
        slots = [mesh.ranks[rank] for rank in run.ranks]
        indices = {index for slot in slots for index in slot.gpu_indices}
        if not indices or any(slot.scripts != {run.run_id} for slot in slots):
            return ""
        pids = [process.record.process.pid for process in self._supervisor.ranks.values()]
        gpus = (await self._node.readings.read(pids)).node.gpus
        used = {gpu.index: gpu.memory_used_bytes for gpu in gpus if gpu.index in indices}
        much = [f"{size(held)} of GPU {index}" for index, held in sorted(used.items()) if held >= WORTH_A_WORD_BYTES]
        return f"live ranks hold {', '.join(much)}: %mesh restart frees it" if much else ""

    def _give_back(
        self, run: Run, rank: int, outcome: run_pb2.Outcome.ValueType, failure: run_pb2.Failure | None = None
    ) -> None:
        """A run has not begun on a rank, and will not."""
        mesh_id = run.submit.mesh_id
        result = run_pb2.RankResult(run_id=run.run_id, rank=rank, outcome=outcome, failure=failure)
        self._node.runs.apply(self._state.script_result(mesh_id, result))
        self._node.runs.apply(self._state.script_ended(mesh_id, rank, run.run_id))

    # ---- the end ----

    def on_result(self, process: RankProcess, result: run_pb2.RankResult) -> None:
        """A script has ended: so does its process, with all that it started, once the result is written down."""
        self._finish(process.home_id, result)
        self._records.flush()
        process.watch.kill()

    def _finish(self, mesh_id: str, result: run_pb2.RankResult) -> None:
        self._node.runs.apply(self._state.script_result(mesh_id, result))
        if result.outcome in (run_pb2.OUTCOME_ERROR, run_pb2.OUTCOME_DIED):
            asyncio.get_running_loop().call_later(UNATTENDED_S, self._end_rest, result.run_id)

    def _end_rest(self, run_id: str) -> None:
        """A rank has failed long ago, and others go on here: its client is gone, else it would have ended them."""
        left, now_s = self.of_run(run_id), time.monotonic()
        if (until_s := max((process.saves_until_s for process in left), default=0.0)) > now_s:
            asyncio.get_running_loop().call_later(until_s - now_s, self._end_rest, run_id)
        elif left:
            self.interrupt(run_id)
            ranks = [process.rank for process in left]
            asyncio.get_running_loop().call_later(UNATTENDED_S, self.kill, run_id, ranks)

    def on_death(self, process: RankProcess, status: int | None) -> None:
        """The process has ended: on our word, or in the middle of the script."""
        mesh_id, rank = process.home_id, process.rank
        mesh = self._state.meshes.get(mesh_id)
        run = mesh.runs.get(process.mesh_id) if mesh else None
        if run is not None and rank not in run.results:
            self._finish(mesh_id, self._outcome(process, run, status))
        self._supervisor.stacks(process).unlink(missing_ok=True)
        self._paths.error_file(mesh_id, rank, process.mesh_id).unlink(missing_ok=True)
        self._records.delete_ranks([process])
        self._node.runs.apply(self._state.script_ended(mesh_id, rank, process.mesh_id))

    def _outcome(self, process: RankProcess, run: Run, status: int | None) -> run_pb2.RankResult:
        """Return what became of a script that ended its process, or was ended, without a word."""
        files = RankFiles(self._paths.runs(process.home_id), run.output, process.rank)
        result = run_pb2.RankResult(run_id=run.run_id, rank=process.rank, end=files.end())
        result.duration_s = time.time() - (run.started_at or run.submitted_at)
        if status is not None and os.WIFEXITED(status):
            result.value_inline = b"".join(pack_pickle(os.WEXITSTATUS(status), pickle.dumps))
        if status == 0:
            result.outcome = run_pb2.OUTCOME_OK
            return result
        has_handled = status is not None and os.WIFEXITED(status) and os.WEXITSTATUS(status) != _ENDED_BY_SIGINT
        if process.interrupted_at is not None and not (process.killed_by_us or has_handled):
            result.outcome = run_pb2.OUTCOME_INTERRUPTED
            result.failure.name, result.failure.message = KeyboardInterrupt.__name__, "interrupted"
            return result
        result.outcome = run_pb2.OUTCOME_DIED
        error_file = self._paths.error_file(process.home_id, process.rank, process.mesh_id)
        words = [*files.tail_lines("err"), *_recorded(error_file)]
        result.death.CopyFrom(self._supervisor.explain_death(process, status, words))
        if result.death.HasField("exit_code"):
            result.death.likely_cause = ""  # as any program that ends with a code of its own
        return result

    # ---- interrupts ----

    def interrupt(self, run_id: str) -> None:
        """Interrupt a run where it has begun; where its processes are being forked it will not begin."""
        self.give_up(run_id)
        for process in self.of_run(run_id):
            self._interrupting.start(self._interrupt(process))

    def give_up(self, run_id: str) -> None:
        """Do not begin a run where its processes are being forked."""
        for start in list(self._starting.values()):
            if start.run.run_id == run_id and not start.given_up:
                start.given_up = True
                for rank in start.ranks:
                    self._give_back(start.run, rank, outcome=run_pb2.OUTCOME_CANCELLED)

    async def _interrupt(self, process: RankProcess) -> None:
        process.interrupted_at = time.monotonic()
        request = wire.ControlRequest(interrupt=wire.InterruptRun(run_id=process.mesh_id))
        reply = await process.link.control(request, patience(2.0))
        if reply is None and not process.link.is_open:  # it is another program by now (os.execv)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.record.process.pid, signal.SIGINT)

    def kill(self, run_id: str, ranks: Iterable[int]) -> list[RankProcess]:
        """SIGKILL a run's processes on some ranks, with all that they started."""
        doomed = [process for process in self.of_run(run_id) if process.rank in ranks]
        self._supervisor.kill(doomed)
        return doomed

    # ---- who does what ----

    def of_run(self, run_id: str) -> list[RankProcess]:
        """Return a run's living processes."""
        return [process for process in self._supervisor.ranks.values() if process.mesh_id == run_id]

    def at_work(self, mesh: Mesh, rank: int) -> RankProcess | None:
        """Return the process that executes the newest script on a rank's slot, if one does."""
        known = self._supervisor.ranks
        running = [run for run_id in mesh.ranks[rank].scripts if (run := mesh.runs.get(run_id))]
        there = {run.number: known.get((run.run_id, rank)) for run in running if rank not in run.results}
        return there[max(there)] if there else None

    # ---- a restarted allocator ----

    def resume(self, records: Iterable[state_pb2.RankRecord]) -> None:
        """Know the processes that the allocator before this one had, before they are adopted."""
        known = ((record.script_of, record.rank, record.mesh_id) for record in records if record.script_of)
        self._node.runs.apply(self._state.scripts_known(known))

    def on_hello(self, process: RankProcess, hello: wire.RankHello) -> None:
        """A process says what it has done: the run may not have been sent to it."""
        mesh = self._state.meshes.get(process.home_id)
        run = mesh.runs.get(process.mesh_id) if mesh else None
        for result in hello.results:
            self.on_result(process, result)
        if run is not None and not hello.running and not hello.done:
            process.link.start(wire.ToRank(run=run.submit.run).SerializeToString())

    def close(self) -> None:
        """Stop starting."""
        for task in (*self._starting, *self._interrupting):
            task.cancel()


def _recorded(error_file: Path) -> list[str]:
    """Return what torch's `@record` wrote of an error, which nobody else has told when the process ended itself."""
    try:
        message = json.loads(error_file.read_text())["message"]
    except (OSError, ValueError, TypeError, LookupError):
        return []
    return str(message.get("message", "") if isinstance(message, dict) else message).splitlines()
