"""Runs between the state and the ranks: what is written down, acknowledged and shown again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb.allocator.api.control import interrupt
from monarch_nb.allocator.runs import runs as runs_module
from monarch_nb.allocator.runs.sessions import Session
from monarch_nb.allocator.state.runs import Run
from monarch_nb.config import run_file
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import run_pb2
from unit.allocator.idle_node import MESH, NodeWithoutProcesses, events, fails_on_disk, make_node, spawn, submit, tell


class TestRuns:
    def result(self, run_id: str, rank: int = 0) -> run_pb2.RankResult:
        return run_pb2.RankResult(run_id=run_id, rank=rank, outcome=run_pb2.OUTCOME_OK)

    async def test_a_result_is_acknowledged_when_it_is_stored(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        submit(node, "b")
        link, database = node.supervisor.ranks[MESH, 0].link, node.records.database._connection
        tell(node, self.result("a"))
        assert link.forgotten == []
        node.records.flush()
        assert link.forgotten == ["a"]
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")  # the disk is full
        large = self.result("b")
        large.bundle_json = "x" * 1_000_000
        tell(node, large)
        node.records.flush()
        assert link.forgotten == ["a"]
        database.execute("PRAGMA max_page_count = 1000000")
        node.records.flush()
        assert link.forgotten == ["a", "b"]

    async def test_a_full_disk_stops_no_run(self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
        await spawn(node)
        monkeypatch.setattr(Path, "mkdir", fails_on_disk)
        session = submit(node, "a")
        assert len(node.supervisor.ranks[MESH, 0].link.runs) == 1
        assert events(session, "refused") == []

    async def test_an_interrupt_is_told_to_ranks_that_run_it_and_no_other(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        session = submit(node, "a")
        submit(node, "b", session)
        tell(node, self.result("a", rank=1))  # which goes on with the next
        for run_id, told in (("b", [[], ["b"]]), ("a", [["a"], ["b"]]), ("unknown", [["a"], ["b"]])):
            interrupt(node, run_id)
            links = [node.supervisor.ranks[MESH, rank].link for rank in (0, 1)]
            assert [[request.interrupt.run_id for request in link.told] for link in links] == told
        assert node.state.meshes[MESH].runs["b"].results[0].outcome == run_pb2.OUTCOME_CANCELLED

    async def test_what_a_small_result_showed_can_be_shown_again(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        submit(node, "a")
        for rank, bundle in ((0, "small"), (1, "x" * 10_000)):
            result = self.result("a", rank=rank)
            result.bundle_json, result.value_inline = bundle, b"value"
            tell(node, result)
        node.runs.collected(["a"])
        results = node.state.meshes[MESH].runs["a"].results
        assert [(result.bundle_json, result.value_inline) for _, result in sorted(results.items())] == [
            ("small", b""),
            ("", b""),
        ]

    async def test_the_newest_run_is_remembered_though_collected(self, node: NodeWithoutProcesses) -> None:
        """So that after a restart the next one, which comes after it, does not wait for it."""
        await spawn(node)
        for number in (1, 2):
            run_id = f"run{number}"
            submit(node, run_id, number=number)
            for rank in (0, 1):
                tell(node, self.result(run_id, rank))
            node.runs.collected([run_id])
            node.records.flush()
        again = make_node(node.paths.directory)
        again.records.read()
        assert again.state.meshes[MESH].numbers == {2}
        again.records.database.close()
        again.watch.close()

    @pytest.mark.parametrize(("trouble", "newest"), [("", 3), ("no file", 1003), ("no room", 1003)])
    async def test_run_numbers_never_come_twice(
        self, node: NodeWithoutProcesses, monkeypatch: pytest.MonkeyPatch, trouble: str, newest: int
    ) -> None:
        await spawn(node)
        for number in range(1, 4):
            submit(node, f"run{number}")
            if trouble == "no room" and number == 2:
                monkeypatch.setattr(os, "pwrite", lambda *_: os.write(-1, b""))
        if trouble == "no file":
            node.paths.newest_run(MESH).unlink()
        node.records.database.flush()  # the runs themselves are not written yet
        again = make_node(node.paths.directory)
        again.records.read()
        assert again.state.meshes[MESH].last_number == newest
        again.records.database.close()
        again.watch.close()

    async def test_a_blob_can_not_leave_its_directory(self, node: NodeWithoutProcesses) -> None:
        await spawn(node)
        for name in ("", ".", "..", "a/b", "/etc/passwd", ".hidden", "../../state.sqlite"):
            with pytest.raises(MonarchNbError, match="bad blob name"):
                node.runs.blob_path(MESH, name)
        assert node.runs.blob_path(MESH, "abc").parent == node.paths.blobs(MESH)


async def test_a_death_is_told_before_the_run_that_ends_with_it(node: NodeWithoutProcesses) -> None:
    """Else who hears of that, and runs something at once, would have it accepted for a rank that is dead."""
    await spawn(node)
    session = submit(node, "first")
    node.supervisor.explain_death = lambda *_: run_pb2.Death(signal=11)
    tell(node, run_pb2.RankResult(run_id="first", rank=0))
    node.on_death(node.supervisor.ranks[MESH, 1], 11)
    kinds = [event.WhichOneof("message") for event in session._events]
    assert [kind for kind in kinds if kind in ("rank_died", "finished")] == ["rank_died", "finished"]


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
