"""Who follows runs here, and what they are sent of them: output as it comes, results a few at once, the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from monarch_nb.allocator.logs.output import DirectoryWatch
from monarch_nb.allocator.runs.sessions import Follower, Session
from monarch_nb.allocator.state.runs import Mesh, Run
from monarch_nb.config import CALLER_FILE_BYTES, NodePaths, cadence, caller_file
from monarch_nb.lines.templates import FEW_RANKS
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2

GATHER_RESULTS_S = cadence(0.05)
"""How long a rank's result may wait for those of others."""


class Audience:
    """The clients of a node.

    Args:
        sessions: theirs, as they come and go.
        watch: tells that output was written.
    """

    def __init__(self, sessions: Iterable[Session], watch: DirectoryWatch, paths: NodePaths) -> None:
        self._sessions, self._watch, self._paths = sessions, watch, paths
        self._loop = asyncio.get_running_loop()
        self._gathered: dict[str, list[run_pb2.RankResult]] = {}

    # ---- output ----

    def prepare_output(self, mesh: Mesh, run: Run) -> None:
        """Make the run's directory, so that it can be watched; or take the ranks' part of an older one over."""
        is_reused = run.output != run.number
        followed = [session for session in self._sessions if session.followers]
        if not run.ranks or (is_reused and not followed):
            return
        directory = self._paths.runs(mesh.spec.mesh_id) / str(run.output)
        if is_reused:
            for session in followed:
                session.leave(directory, run.ranks)
        else:
            with contextlib.suppress(OSError):  # a full disk: the ranks try again and say what they lose
                directory.mkdir()
                if client := run.submit.run.calls.client:
                    _note_caller(directory.parent, client, run.output)

    def follow(
        self,
        session: Session,
        mesh: Mesh,
        run: Run,
        shown: dict[int, run_pb2.Cursor],
        *,
        is_new: bool = False,
        whole: bool = False,
    ) -> None:
        """Send a run's output from here on.

        Args:
            shown: where a rank's output goes on; by default at its beginning.
            is_new: nothing was written yet.
            whole: floods are sent, too.
        """
        if not run.ranks:
            return
        cursors = {rank: run_pb2.Cursor() for rank in (run.ranks if is_new else mesh.ranks_writing(run))}
        for rank, cursor in shown.items():
            if rank in cursors:
                cursors[rank].CopyFrom(cursor)
        runs = self._paths.runs(mesh.spec.mesh_id)
        packs = len(mesh.all_ranks(run.submit)) > FEW_RANKS
        follower = Follower(session, self._watch, run, runs, cursors, is_new=is_new, packs=packs, whole=whole)
        session.follow(follower)

    def say(self, run: Run, rank: int, notice: str) -> None:
        """Tell who follows a run something about a rank that has not printed yet."""
        told = pb.RankOutput(rank=rank, items=[pb.OutputItem(notice=notice)])
        for session in self._interested(run.run_id):
            session.send(output=pb.Output(run_id=run.run_id, ranks=[told]))

    # ---- begin and results ----

    def begun(self, run_id: str) -> None:
        """A run that waited has begun on all ranks."""
        for session in self._interested(run_id):
            session.send(started=pb.Started(run_id=run_id))

    def send_results(self, session: Session, run: Run) -> None:
        """Send the results that a run has."""
        if run.results:
            _finish(session, run, list(run.results.values()))

    def rank_finished(self, run: Run, result: run_pb2.RankResult) -> None:
        """Send a rank's result soon, with those of others; all when it was the last."""
        gathered = self._gathered.setdefault(run.run_id, [])
        gathered.append(result)
        if run.finished:
            self._send_gathered(run)
        elif len(gathered) == 1:
            self._loop.call_later(GATHER_RESULTS_S, self._send_gathered, run)

    def _send_gathered(self, run: Run) -> None:
        results = self._gathered.pop(run.run_id, None)
        if not results:
            return
        for session in self._interested(run.run_id):
            _finish(session, run, results)

    def hurry(self, run_id: str) -> None:
        """Who follows a run wants its end, and no more than that."""
        for session in self._interested(run_id):
            if follower := session.followers.get(run_id):
                follower.hurry()

    # ---- the end ----

    def dismiss(self, run: Run, error_json: str) -> None:
        """Its mesh is gone: whoever waits for the run is told."""
        for session in self._interested(run.run_id):
            if not run.finished:
                session.send(refused=pb.Refused(run_id=run.run_id, error_json=error_json))
        self.forget(run.run_id)

    def part(self, mesh: Mesh, error_json: str) -> None:
        """Those who may not read a mesh any more do not follow its runs, and are told."""
        for session in self._sessions:
            if not session.may_read(mesh.spec.reservation_id):
                for run_id in session.run_ids & mesh.runs.keys():
                    session.send(refused=pb.Refused(run_id=run_id, error_json=error_json))
                    session.forget(run_id)

    def forget(self, run_id: str) -> None:
        """A run is not known any more."""
        for session in self._sessions:
            session.forget(run_id)

    def _interested(self, run_id: str) -> list[Session]:
        return [session for session in self._sessions if run_id in session.run_ids]


def _finish(session: Session, run: Run, results: Sequence[run_pb2.RankResult]) -> None:
    if follower := session.followers.get(run.run_id):
        follower.finished = run.finished
        follower.finish(results)
    else:
        session.send(finished=pb.Finished(run_id=run.run_id, results=results))


def _note_caller(runs: Path, client: str, number: int) -> None:
    """Have what Monarch's own engine has started for a client print in a run of its."""
    if not (client.isalnum() and client.isascii()):
        return
    path = caller_file(runs, client)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists():  # in place: those processes have it mapped
        with path.open("r+b") as file:
            file.write(number.to_bytes(CALLER_FILE_BYTES, "little"))
    else:
        begun = path.with_suffix(".new")
        begun.write_bytes(number.to_bytes(CALLER_FILE_BYTES, "little"))
        begun.replace(path)
