"""The runs of a node: queued for who follows them, sent to ranks as the state decides, and what they come to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.logs.output import RankFiles
from monarch_nb.allocator.logs.stored import DROPPED_TOGETHER, drop_oldest, stored_outputs
from monarch_nb.allocator.state.lease import Right
from monarch_nb.allocator.state.runs import Effect, Mesh, RankFinished, RunDropped, StartRun
from monarch_nb.config import gap
from monarch_nb.errors import AccessDenied, RunNotFound, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.status import error_to_json

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.processes.supervisor import RankProcess
    from monarch_nb.allocator.runs.sessions import Session

KEPT_BUNDLE_BYTES = 4_000
"""A collected result that is no larger is still there to be shown once more."""

CALLS_PATIENCE_S = gap(5.0)
"""A client that is gone may be coming back so long; then what it called is over."""

EARLIER_PATIENCE_S = gap(2.0)
"""A run that comes before others, and that another client has submitted, may be on its way so long."""


class Runs:
    """Carries out what the state decides of runs."""

    def __init__(self, node: Node) -> None:
        self._node, self._paths, self._state, self._records = node, node.paths, node.state, node.records
        self._supervisor, self._sessions, self._audience = node.supervisor, node.sessions, node.audience
        self._ending: dict[str, asyncio.TimerHandle] = {}

    # ---- what clients want ----

    def submit(self, session: Session, submit: pb.Submit) -> pb.Queued:
        """Queue a run for a session that follows it; the same run id again only follows it. Return what the session is
        told."""
        mesh = self._state.mesh(submit.mesh_id)
        is_calls = submit.run.HasField("calls")
        if is_calls:
            session.calls.add(submit.run.run_id)
        known = submit.run.run_id in mesh.runs
        # Else the allocator before this one had started it, and there is output. What is called comes another way here,
        # perhaps sooner, and prints at once.
        is_new = not (known or is_calls or submit.run.output or mesh.is_running(submit.run.run_id))
        queued, effects = self._state.submit(submit, time.time())
        run = mesh.runs[submit.run.run_id]
        self._node.leases.expiry.used(mesh.spec.reservation_id)
        if not known:
            self._records.note_number(submit.mesh_id, mesh.last_number)
            # Before a rank executes it: else the next allocator might not know which output it prints to.
            self._records.run_added(submit.mesh_id, run.run_id)
            self._audience.prepare_output(mesh, run)
        session.send(urgent=is_calls or bool(queued.ahead), queued=queued)  # the first call waits for it
        if not submit.quiet:
            # Before it starts: then there is nothing to read.
            self._audience.follow(session, mesh, run, dict(submit.cursors), is_new=is_new, whole=submit.whole)
        self.apply(effects)
        if known:
            self._audience.send_results(session, run)
        else:
            self._wait_for_earlier(mesh)
        return queued

    def _wait_for_earlier(self, mesh: Mesh) -> None:
        """A run that must come before others may never come, because its client died half-way: wait for it a little."""
        if run := next((run for run in mesh.queue if mesh.lacks_earlier(run)), None):
            asyncio.get_running_loop().call_later(EARLIER_PATIENCE_S, self._proceed, mesh.spec.mesh_id, run.run_id)

    def _proceed(self, mesh_id: str, run_id: str) -> None:
        if mesh := self._state.meshes.get(mesh_id):
            self.apply(mesh.proceed(run_id))
            self._wait_for_earlier(mesh)

    def follow(self, session: Session, request: pb.Follow) -> None:
        """Send a run's output from the given cursors, and the results it has."""
        mesh = self._state.mesh(request.mesh_id)
        run = mesh.runs.get(request.run_id)
        if run is None:
            raise RunNotFound("the run is not known here any more: `%mesh logs` has its output")
        shown = run.shown if request.from_shown else {}
        cursors = {**shown, **request.cursors}
        session.send(queued=self._state.queued(mesh, run))
        self._audience.follow(session, mesh, run, cursors)
        self._audience.send_results(session, run)

    def withdraw(self, reservation_id: str, name: str, right: Right) -> None:
        """Somebody has another right to a reservation than before: what that does not cover ends, but for cells that
        run."""
        meshes = self._state.meshes_of(reservation_id).values()
        if right < Right.RUN:
            for run in [run for mesh in meshes for run in mesh.queue if run.submit.owner == name and run.is_calls]:
                self.end_calls(run.run_id)
            self.apply(self._state.withdraw(reservation_id, name))
        request = self._state.leases[reservation_id].request
        over = AccessDenied(f"{request.owner} no longer shares {request.name} with you", request.owner, request.name)
        for mesh in meshes:
            self._audience.part(mesh, error_to_json(over))
        for session in self._sessions:
            if not session.may_read(reservation_id):
                session.attached.discard(reservation_id)

    # ---- values that are too large for a message ----

    def blob_path(self, mesh_id: str, blob: str) -> Path:
        """Return a blob's path; its name must be one plain file name."""
        self._state.mesh(mesh_id)
        if not blob or blob != Path(blob).name or blob.startswith("."):
            raise UsageError(f"bad blob name {blob!r}")
        return self._paths.blobs(mesh_id) / blob

    def collected(self, run_ids: Iterable[str]) -> None:
        """The client has the results of runs: nothing that is large need be kept."""
        for run_id in run_ids:
            self._collected(run_id)
            self._node.stores.forget(run_id)

    def _collected(self, run_id: str) -> None:
        if mesh_id := self._state.collected(run_id):
            run = self._state.meshes[mesh_id].runs[run_id]
            if run.finished and run.submit.run.HasField("push"):  # the ranks have mapped it
                self.blob_path(mesh_id, run.submit.run.push.blob).unlink(missing_ok=True)
            for result in run.results.values():
                if result.HasField("value_blob"):
                    self.blob_path(mesh_id, result.value_blob).unlink(missing_ok=True)
                result.ClearField("value")
                if len(result.bundle_json) > KEPT_BUNDLE_BYTES:
                    result.ClearField("bundle_json")
            self._records.run_changed(mesh_id, run_id)
            self._records.flush_soon()

    # ---- calls ----

    def end_calls(self, run_id: str) -> None:
        """Nothing more is called in the name of a run of calls; one that is over, or not known, is fine."""
        if timer := self._ending.pop(run_id, None):
            timer.cancel()
        for session in self._sessions:
            session.calls.discard(run_id)
        if found := self._state.calls(run_id):
            mesh, run = found
            runs = self._paths.runs(mesh.spec.mesh_id)
            ends = {rank: RankFiles(runs, run.output, rank).end() for rank in run.ranks}
            self.apply(mesh.end_calls(run, ends, time.time()))

    def session_left(self, session: Session) -> None:
        """The runs of calls of a client that is gone end soon, unless it comes back."""
        self._end_soon(session.calls)

    def resume(self) -> None:
        """A restarted allocator: clients have the time to say which of their runs of calls go on."""
        for mesh in self._state.meshes.values():
            self._wait_for_earlier(mesh)
        runs = [run for mesh in self._state.meshes.values() for run in mesh.queue if run.is_calls]
        self._end_soon(run.run_id for run in runs)

    def close(self) -> None:
        """Wait for no client any more."""
        for timer in self._ending.values():
            timer.cancel()

    def _end_soon(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            if run_id not in self._ending:
                loop = asyncio.get_running_loop()
                self._ending[run_id] = loop.call_later(CALLS_PATIENCE_S, self._end_unless_called, run_id)

    def _end_unless_called(self, run_id: str) -> None:
        del self._ending[run_id]
        if not any(run_id in session.calls for session in self._sessions):
            self.end_calls(run_id)

    # ---- what the state decides ----

    def apply(self, effects: list[Effect]) -> None:
        """Carry out what the state decided."""
        encoded: dict[str, bytes] = {}
        scripts: dict[tuple[str, str], list[int]] = {}
        for effect in effects:
            if isinstance(effect, StartRun):
                run_id = effect.run.run_id
                if self._state.begun(effect.mesh_id, run_id, time.time()):
                    self._audience.begun(run_id)
                if effect.run.HasField("script"):
                    scripts.setdefault((effect.mesh_id, run_id), []).append(effect.rank)
                    continue
                if run_id not in encoded:
                    encoded[run_id] = wire.ToRank(run=effect.run).SerializeToString()
                if process := self._supervisor.ranks.get((effect.mesh_id, effect.rank)):
                    process.link.start(encoded[run_id])
                self._records.run_changed(effect.mesh_id, run_id)
            elif isinstance(effect, RankFinished):
                self._finish(effect)
            elif isinstance(effect, RunDropped):
                self._records.delete_run(effect.mesh_id, effect.run_id)
                self._audience.forget(effect.run_id)
        for (mesh_id, run_id), ranks in scripts.items():
            self._node.scripts.start(mesh_id, run_id, ranks)

    def _finish(self, effect: RankFinished) -> None:
        mesh = self._state.meshes[effect.mesh_id]
        run = mesh.runs[effect.run_id]
        self._node.leases.expiry.used(mesh.spec.reservation_id)
        self._records.run_changed(effect.mesh_id, effect.run_id)
        if run.output != run.number and not effect.result.untouched:
            RankFiles(self._paths.runs(effect.mesh_id), run.output, effect.result.rank).note_run(run.number)
        self._audience.rank_finished(run, effect.result)
        if run.finished and run.number % DROPPED_TOGETHER == 0:
            drop_oldest(mesh, self._paths.runs(effect.mesh_id), self._node.files.removal.remove)
        self._records.flush_soon()

    def end_all(self, mesh_id: str, why: str) -> None:
        """The ranks of a mesh here are about to end: so does what they run or have queued."""
        for rank in self._state.mesh(mesh_id).ranks:
            self.apply(self._state.rank_died(mesh_id, rank, run_pb2.Death(likely_cause=why)))

    # ---- what ranks say ----

    def on_result(self, process: RankProcess, result: run_pb2.RankResult) -> None:
        """A rank's live process finished a run."""
        mesh_id = process.mesh_id
        mesh = self._state.meshes.get(mesh_id)
        if mesh and result.run_id in mesh.runs:  # else its client will submit it again, and then the rank has it still
            self._records.acknowledge(mesh_id, result.rank, result.run_id)
        self.apply(self._state.result(mesh_id, result))
        self._records.flush_soon()

    def on_hello(self, process: RankProcess, hello: wire.RankHello) -> None:
        """A rank says what it has done and what it does."""
        if process.mesh_id in self._state.meshes:  # else it is being released
            for result in hello.results:
                self.on_result(process, result)
            self.apply(self._state.rank_adopted(process.mesh_id, process.rank, hello.running, hello.done))

    def on_death(self, process: RankProcess, status: int | None) -> None:
        """A rank's live process ended, and was not asked to."""
        mesh = self._state.meshes.get(process.mesh_id)
        if mesh is None:
            return
        running = mesh.ranks[process.rank].running
        runs = self._paths.runs(process.mesh_id)
        others = {run.output for run in mesh.runs.values() if run.is_script}
        newest = max((output for output in stored_outputs(runs) if output not in others), default=0)
        output = mesh.runs[running].output if running in mesh.runs else newest
        called = [run.output for run in reversed(mesh.queue) if run.is_calls and process.rank in run.ranks]
        said = (RankFiles(runs, one, process.rank).tail_lines("err") for one in [*called, output])
        stderr = next(filter(None, said), [])
        death = self._supervisor.explain_death(process, status, stderr)
        process.record.death.CopyFrom(death)
        self._records.save_rank(process.record)
        # Before its runs end: who hears of these, and runs something else at once, is to know that it is dead.
        for session in [session for session in self._sessions if session.may_read(mesh.spec.reservation_id)]:
            session.send(rank_died=pb.RankDied(mesh_id=process.mesh_id, rank=process.rank, death=death))
        self.apply(self._state.rank_died(process.mesh_id, process.rank, death))
        self._records.flush_soon()
