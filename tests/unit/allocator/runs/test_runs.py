"""Runs between the state and the ranks: what is written down, acknowledged and shown again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_nb.allocator.serving.control import interrupt
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import run_pb2
from unit.allocator.idle_node import (
    MESH,
    NodeWithoutProcesses,
    events,
    fails_on_disk,
    make_node,
    spawn,
    submit,
    tell,
)


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
        node.collected(["a"])
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
            node.collected([run_id])
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
                node.values.blob_path(MESH, name)
        assert node.values.blob_path(MESH, "abc").parent == node.paths.blobs(MESH)


async def test_a_death_is_told_before_the_run_that_ends_with_it(node: NodeWithoutProcesses) -> None:
    """Else who hears of that, and runs something at once, would have it accepted for a rank that is dead."""
    await spawn(node)
    session = submit(node, "first")
    node.supervisor.explain_death = lambda *_: run_pb2.Death(signal=11)
    tell(node, run_pb2.RankResult(run_id="first", rank=0))
    node._on_death(node.supervisor.ranks[MESH, 1], 11)
    kinds = [event.WhichOneof("message") for event in session._events]
    assert [kind for kind in kinds if kind in ("rank_died", "finished")] == ["rank_died", "finished"]
