"""Runs of calls: what a client calls of actors has a number, output and an end, and holds nobody up."""

from __future__ import annotations

import pytest

from monarch_nb.allocator.runs import runs as runs_module
from monarch_nb.allocator.serving.control import interrupt
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.state.runs import Run
from monarch_nb.config import run_file
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, events, make_node, spawn, submit, tell


def call(node: NodeWithoutProcesses, run_id: str, session: Session | None = None) -> Session:
    """Open a run of calls."""
    session = session or Session()
    node.sessions.add(session)
    session.run_ids.add(run_id)
    spec = run_pb2.RunSpec(run_id=run_id, calls=run_pb2.Calls(cell_number=7))
    ranks = [0, 1]
    request = pb.Submit(mesh_id=MESH, run=spec, ranks=ranks, all_ranks=ranks, give_number=True, title="a.f()")
    node.runs.submit(session, request)
    return session


def run_of(node: NodeWithoutProcesses, run_id: str) -> Run:
    return node.state.meshes[MESH].runs[run_id]


def leave(node: NodeWithoutProcesses, session: Session) -> None:
    node.sessions.discard(session)
    node.runs.session_left(session)


class TestCalls:
    async def test_they_wait_for_nothing_and_hold_up_nothing(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "before")
        [queued] = events(call(node, "calls"), "queued")
        assert (queued.number, queued.output, list(queued.ahead)) == (2, 2, [])
        tell(node, run_pb2.RankResult(run_id="before", rank=0))
        [queued] = events(submit(node, "after"), "queued")
        assert list(queued.ahead) == ["run 1"]
        assert queued.earlier == pb.EarlierRuns(of_others=1), "nor do other nodes wait until the calls come there"
        assert [len(node.supervisor.ranks[MESH, rank].link.runs) for rank in (0, 1)] == [2, 1], "no rank gets the calls"
        assert (run_of(node, "calls").cell_number, run_of(node, "calls").started) == (7, {0, 1})

    async def test_their_client_ends_them_with_what_was_printed(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session = call(node, "calls")
        run_file(node.paths.runs(MESH), 1, 1, "out").write_text("hello\n")
        node.runs.end_calls("calls")
        results = run_of(node, "calls").results
        assert {rank: (result.outcome, result.end.stdout_bytes) for rank, result in results.items()} == {
            0: (run_pb2.OUTCOME_OK, 0),
            1: (run_pb2.OUTCOME_OK, 6),
        }
        assert sum(len(event.results) for event in events(session, "finished")) == 2
        node.runs.end_calls("calls")  # fine
        node.runs.end_calls("unknown")

    async def test_a_rank_that_dies_has_its_death_as_result(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        call(node, "calls")
        node.runs.apply(node.state.rank_died(MESH, 1, run_pb2.Death(signal=9)))
        node.runs.end_calls("calls")
        results = run_of(node, "calls").results
        assert [results[rank].outcome for rank in (0, 1)] == [run_pb2.OUTCOME_OK, run_pb2.OUTCOME_DIED]
        assert results[1].death.signal == 9

    async def test_what_was_printed_before_the_run_has_come_here_is_sent(self, node: NodeWithoutProcesses) -> None:
        """Calls come by mail, to the ranks of other nodes sooner perhaps than the run in whose name they are."""
        await spawn(node)
        printed = run_file(node.paths.runs(MESH), 1, 1, "out")
        printed.parent.mkdir(parents=True)
        printed.write_text("early\n")
        [output] = events(call(node, "calls"), "output")
        assert [(told.rank, told.items[0].stdout) for told in output.ranks] == [(1, b"early\n")]

    async def test_an_interrupt_reaches_their_ranks_and_does_not_end_them(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        call(node, "calls")
        interrupt(node, "calls")
        told = [node.supervisor.ranks[MESH, rank].link.told for rank in (0, 1)]
        assert [[request.interrupt.run_id for request in link] for link in told] == [["calls"], ["calls"]]
        assert run_of(node, "calls").results == {}

    @pytest.mark.parametrize(("who", "ends"), [("nobody", True), ("a follower", True), ("their client", False)])
    async def test_they_end_when_their_client_is_away(self, node: NodeWithoutProcesses, who: str, ends: bool) -> None:
        await spawn(node)
        leave(node, call(node, "calls"))
        assert not run_of(node, "calls").finished
        if who == "their client":
            call(node, "calls")
        elif who == "a follower":
            node.sessions.add(follower := Session())
            node.runs.follow(follower, pb.Follow(mesh_id=MESH, run_id="calls"))
        node.runs._end_unless_called("calls")
        assert run_of(node, "calls").finished is ends

    async def test_a_restarted_allocator_ends_them_unless_their_client_comes(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs_module, "CALLS_PATIENCE_S", 1000.0)
        await spawn(node)
        call(node, "calls")
        node.records.flush()
        again = make_node(node.paths.directory)
        again.records.read()
        again.state.rank_adopted(MESH, 0, "", [])
        assert run_of(again, "calls").started == {0, 1}
        again.runs.resume()
        again.runs._end_unless_called("calls")
        assert run_of(again, "calls").finished
        again.runs.close()
        again.records.database.close()
        again.watch.close()

    async def test_a_cell_does_not_take_their_files_over(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        for rank in (0, 1):
            tell(node, run_pb2.RankResult(run_id="a", rank=rank, untouched=True))
        call(node, "calls")
        assert (run_of(node, "a").output, run_of(node, "calls").output) == (1, 2)
        submit(node, "b")
        assert run_of(node, "b").output == 1
