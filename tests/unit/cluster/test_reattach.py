"""Allocators and clients that die while cells run: the ranks go on, and everything of the cells arrives, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch_nb.allocator.memory import records
from monarch_nb.client.connections.events import Notice, Text
from monarch_nb.errors import NodeUnreachable, RunFailed
from unit.cluster.conftest import MakeCluster


class Recorder:
    """What a run's listener is told."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.notices: dict[str, str] = {}

    def __call__(self, event: Any) -> None:
        if isinstance(event, Text):
            self.texts[event.rank] = self.texts.get(event.rank, "") + event.text
        elif isinstance(event, Notice):
            self.notices[event.key] = event.text


CELL = "print('before', rank)\nawait sleep(60)\nprint('after', rank)\nkept = rank + 3\nrank * 2"
WHOLE = {rank: f"before {rank}\nafter {rank}\n" for rank in range(4)}


class TestAllocator:
    def test_a_cell_that_ends_in_the_gap(self, make: MakeCluster) -> None:
        cluster = make(2, 2)
        mesh = cluster.client().reserve(nodes=2, procs=2).mesh
        recorder = Recorder()
        run = mesh.submit(CELL, listener=recorder)
        cluster.sleep(5)
        for node in cluster.nodes:
            node.kill()
        cluster.sleep(600)
        assert not run.done
        for node in cluster.nodes:
            node.start()
        assert run.result() == [0, 2, 4, 6]
        assert recorder.texts == WHOLE
        assert [record.text for record in mesh.logs(ranks=[3], run=run)] == ["before 3\n", "after 3\n"]
        assert mesh.run("kept").values == [3, 4, 5, 6]

    def test_killed_when_it_has_just_started_a_cell(self, make: MakeCluster) -> None:
        """It had no time to write the run down. The run is executed once, and nothing of it is lost."""
        cluster = make(2)
        mesh = cluster.client().reserve(nodes=2).mesh
        mesh.run("count = 0")
        recorder = Recorder()
        run = mesh.submit("count += 1\nprint(count)\ncount", listener=recorder)
        cluster.until(lambda: any(rank.told or rank.runs_on["count"] for rank in cluster.nodes[0].alive))
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        assert run.result() == [1, 1]
        assert recorder.texts == {0: "1\n", 1: "1\n"}

    def test_a_cell_is_refused_while_one_is_down(self, make: MakeCluster) -> None:
        cluster = make(2)
        mesh = cluster.client().reserve(nodes=2).mesh
        cluster.nodes[1].kill()
        cluster.sleep(10)
        uses: list[Callable[[], object]] = [
            lambda: mesh.submit("rank"),
            lambda: mesh.push({"x": 1}),
            lambda: mesh.pull("rank"),
        ]
        for use in uses:
            with pytest.raises(NodeUnreachable, match="node1") as raised:
                use()
            assert raised.value.node == "node1"
        assert mesh.select([0]).run("rank").values == [0], "the other node serves"
        cluster.nodes[1].start()
        assert mesh.run("rank").values == [0, 1], "at once, although the session may not be open yet"

    def test_an_interrupt_leaves_what_can_not_be_reached(self, make: MakeCluster) -> None:
        cluster = make(2)
        mesh = cluster.client().reserve(nodes=2).mesh
        run = mesh.submit("await sleep(60)", listener=(recorder := Recorder()))
        cluster.sleep(1)
        cluster.nodes[1].kill()
        cluster.until(lambda: "unreachable" in recorder.notices.get("link node1", ""))
        said = "interrupted rank 0; rank 1 can not be reached and goes on: node1 does not answer"
        assert str(run.interrupt()).startswith(said)
        assert str(mesh.interrupt()).startswith("rank 1 can not be reached"), "it returns"
        cluster.nodes[1].start()
        run.wait()
        assert {rank: result.outcome for rank, result in run.results.items()} == {0: "interrupted", 1: "ok"}

    def test_logs_know_the_runs_that_the_one_before_had_forgotten(self, make: MakeCluster) -> None:
        cluster = make(2)
        mesh = cluster.client().reserve(nodes=2).mesh
        mesh.run("pass")
        run = mesh.run("print('after a silent run')")  # in the files that the silent one left untouched
        for silent in range(2):
            mesh.run(f"{silent}")
        before = [rank.pid for node in cluster.nodes for rank in node.alive]
        for node in cluster.nodes:
            node.kill()
            node.start()
        assert {record.run for record in mesh.logs() if "silent" in record.text} == {run.number}
        assert mesh.run("pass").number == run.number + 3, "numbers go on by one"
        mesh.restart([1])
        assert mesh.run("rank").values == [0, 1]
        after = [rank.pid for node in cluster.nodes for rank in node.alive]
        assert (after[0] == before[0], after[1] == before[1]) == (True, False)

    def test_a_cell_in_a_short_gap_is_executed(self, make: MakeCluster) -> None:
        cluster = make(2)
        ann = cluster.client()
        mesh = ann.reserve(nodes=2).mesh
        for node in cluster.nodes:
            node.kill()
        work = ann.does(mesh.run, "rank")
        cluster.sleep(1)
        for node in cluster.nodes:
            node.start()
        assert work.result().values == [0, 1]

    def test_all_that_is_held_is_known_to_the_next_one(self, make: MakeCluster) -> None:
        cluster = make(2)
        ann, bob = cluster.client("ann"), cluster.client("bob")
        ann.reserve("anns", time="1h").mesh.run("kept = 'anns'")
        bob.reserve("bobs").mesh.run("kept = 'bobs'")
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        assert ann.list() == ["anns", "bobs"]
        assert cluster.client("ann").attach("anns").mesh.pull("kept") == ["anns"]
        assert cluster.client("bob").attach("bobs").mesh.pull("kept") == ["bobs"]
        assert 3500 < (ann.attach("anns").status().time_left_s or 0) <= 3600


class TestClient:
    def test_a_run_that_ended_meanwhile(self, make: MakeCluster) -> None:
        cluster = make(2, 2)
        ann = cluster.client()
        ann.reserve(nodes=2, procs=2).mesh.submit(CELL)
        cluster.sleep(5)
        ann.kill()
        cluster.sleep(3600)
        mesh = cluster.client().attach().mesh
        [info] = [info for info in mesh.runs() if info.done]
        recorder = Recorder()
        assert mesh.attach_run(info.run_id, from_start=True, listener=recorder).result() == [0, 2, 4, 6]
        assert recorder.texts == WHOLE

    def test_interrupting_what_another_one_started(self, make: MakeCluster) -> None:
        cluster = make(2)
        ann = cluster.client()
        run = ann.reserve(nodes=2).mesh.submit("await sleep(3600)")
        cluster.sleep(1)
        mesh = cluster.client().attach().mesh
        [going_on] = mesh.running()
        going_on.interrupt()
        with pytest.raises(RunFailed, match="KeyboardInterrupt"):
            run.result()
        assert mesh.run("rank").values == [0, 1]

    def test_cells_of_two_queue_in_one_order_on_all_ranks(self, make: MakeCluster) -> None:
        for seed in range(5):
            cluster = make(2, seed=seed, shuffled=True)
            one, other = cluster.client(), cluster.client()
            meshes = one.reserve(nodes=2).mesh, other.attach().mesh
            meshes[0].run("order = []")
            runs = [mesh.submit(f"order.append({number})") for number in range(8) for mesh in meshes]
            for run in runs:
                run.result()
            first, second = meshes[0].pull("order")
            assert first == second
            assert sorted(first) == sorted(2 * list(range(8)))

    @pytest.mark.parametrize("moment", ["Reserve is done", "HostStore", "Spawn", "Spawn is done", "Confirm"])
    def test_one_that_dies_while_it_reserves_leaves_nothing(self, make: MakeCluster, moment: str) -> None:
        cluster = make(2)
        ann = cluster.client()
        ann.dies_at(moment)
        ann.does(ann.reserve, nodes=2)
        cluster.sleep(60)
        after = cluster.client()
        assert after.list() == []
        assert not any(node.alive for node in cluster.nodes)
        assert after.reserve(nodes=2).mesh.run("rank").values == [0, 1]

    @pytest.mark.parametrize("rank_dies", [False, True], ids=["all live", "a rank too"])
    def test_killed_together_with_all_allocators(
        self, make: MakeCluster, monkeypatch: pytest.MonkeyPatch, rank_dies: bool
    ) -> None:
        """A run that was accepted is known, also before it is in a database; the one behind it too."""
        monkeypatch.setattr(records, "FLUSH_DELAY_S", 3600.0)
        cluster = make(2, 2)
        ann = cluster.client()
        mesh = ann.reserve(nodes=2, procs=2).mesh
        mesh.run("executed = []")
        runs = [mesh.submit(f"executed.append(1)\n{CELL}"), mesh.submit("executed.append(2)\nexecuted")]
        cluster.sleep(1)
        ann.kill()
        for node in cluster.nodes:
            node.kill()
        if rank_dies:
            cluster.nodes[1].alive[0].end(9)
        cluster.sleep(70)
        for node in cluster.nodes:
            node.start()
        after = cluster.client().attach().mesh
        first, second = (after.attach_run(run.id, from_start=True, listener=Recorder()) for run in runs)
        lost = {2} if rank_dies else set()
        first.wait()
        assert first.kept_values == [None if rank in lost else rank * 2 for rank in range(4)]
        second.wait()
        assert second.kept_values == [None if rank in lost else [1, 2] for rank in range(4)], (
            "each once, in their order"
        )
        for rank in set(range(4)) - lost:
            logged = "".join(record.text for record in after.logs(ranks=[rank], run=first.number))
            assert logged == WHOLE[rank]
