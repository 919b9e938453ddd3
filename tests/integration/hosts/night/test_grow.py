"""A reservation gets more nodes, and gives some back: the ranks of its main mesh start anew, as many as there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from integration.hosts.elastic import (
    SUM,
    WORLD,
    all_are_new,
    free,
    kill,
    start_again,
    stops_after,
    stops_before,
    times_told,
)
from integration.hosts.lab import Lab
from integration.kernels import Kernel
from integration.live import TIMEOUT_S, client, eventually, lives, pids_of, started
from monarch_nb import attach, list_reservations, reserve
from monarch_nb.client.connections import tree
from monarch_nb.client.connections.bridge import call
from monarch_nb.errors import CapacityError, NodeUnreachable, ReservationConflict, RunFailed, UsageError

GROWS = "grow(3, into='main')"
ANEW = (
    r"restarted while the run went on: (\w+ let main of dev|its mesh)( start| started) anew, on \d nodes; run the cells"
)


@pytest.mark.slow
@pytest.mark.usefixtures("three")
class TestOnThisMachine:
    """Nodes without a network between them: an allocator that is killed does not answer either."""

    def test_there_and_back(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        mesh, newest = dev.mesh, dev.mesh.run("kept = 3").number
        [old] = pids_of(mesh).values()

        grown = dev.grow(3, into="main")

        assert str(grown).splitlines() == [
            "dev has 3 nodes: host2, host3 are new",
            "main has 3 ranks, all new: run the cells that define their variables",
        ]
        assert (dev.nodes, dev.node_names, mesh.extent) == (3, ["host1", "host2", "host3"], {"hosts": 3, "procs": 1})
        eventually(lambda: not lives(old))
        run = mesh.run(WORLD)
        assert run.values == [(rank, 3, rank, None) for rank in range(3)], "the mesh is the same one"
        assert run.number > newest
        assert mesh.run(SUM).values == [(3, None)] * 3
        assert str(dev.grow(3, into="main")) == str(dev.grow(3)) == "dev has 3 nodes already"
        assert [info.host for info in mesh.status()] == ["host1", "host2", "host3"]
        with pytest.raises(ReservationConflict, match=r"3 nodes × 1 proc .%mesh shrink dev --nodes 1 changes that"):
            reserve("dev", nodes=1, procs=1)

        shrunk = dev.shrink(node=["host1"], into="main")

        assert str(shrunk).startswith("dev has 2 nodes: host1 is given back\nmain has 2 ranks")
        assert mesh.run(WORLD).values == [(0, 2, 0, None), (1, 2, 1, None)]
        assert mesh.run(SUM).values == [(1, None)] * 2, "also without the node that had the store"
        assert dev.node_names == ["host2", "host3"]
        eventually(lambda: sorted(free()) == [0, 0, 1])
        assert dev.shrink(1, into="main").left == ("host3",)
        assert mesh.run(WORLD).values == [(0, 1, 0, None)]
        assert dev.grow("+1", into="main").joined == ("host1",), "a node may come again"
        assert mesh.run(SUM).values == [(1, None)] * 2

    @pytest.mark.parametrize("direct_nodes", [8, 1])
    def test_what_runs_ends_also_where_nodes_follow_nodes(
        self, monkeypatch: pytest.MonkeyPatch, direct_nodes: int
    ) -> None:
        """As with many nodes, where runs are followed through the first of them."""
        monkeypatch.setattr(tree, "DIRECT_NODES", direct_nodes)
        dev = reserve("dev", nodes=2, procs=1)
        dev.mesh.run("print('before')")
        running, _ = started(dev.mesh, "import time\nwhile True: time.sleep(0.01)")
        dev.grow(3, into="main")
        assert (dev.mesh.core.tree is None) == (direct_nodes == 8)
        with pytest.raises((RunFailed, NodeUnreachable), match=ANEW):
            running.result(TIMEOUT_S)
        running, _ = started(dev.mesh, "import time\nwhile True: time.sleep(0.01)")
        dev.shrink(node=[0], into="main")
        with pytest.raises((RunFailed, NodeUnreachable), match=ANEW):
            running.result(TIMEOUT_S)
        assert dev.mesh.run(WORLD).values == [(0, 2, 0, None), (1, 2, 1, None)]
        dev.grow(3, into="main")
        assert dev.mesh.run(SUM).values == [(3, None)] * 3

    def test_logs_of_nodes_that_keep_their_number_stay(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        before = dev.mesh.run("print('before')").number
        dev.grow(2, into="main")
        dev.mesh.run("print('after')")
        assert [record.text for record in dev.mesh.logs(run=before)] == ["before\n"]
        dev.shrink(1, into="main")
        assert [record.text for record in dev.mesh.logs(ranks=0)] == ["before\n", "after\n"]

    def test_what_runs_ends_and_meshes_beside_go_on(self) -> None:
        dev = reserve("dev", nodes=2, procs=1)
        beside = dev.spawn_procs({"procs": 1}, name="beside")
        beside.initialized.get(timeout=TIMEOUT_S)
        _, more = call(dev.all_meshes())
        more.run("kept = rank + 5")
        running, _ = started(dev.mesh, "import time\nwhile True: time.sleep(0.01)")
        dev.grow(3, into="main")
        with pytest.raises(RunFailed, match=ANEW):
            running.result(TIMEOUT_S)
        assert dev.mesh.run(SUM).values == [(3, None)] * 3
        assert more.run("kept").values == [5, 6]
        with pytest.raises(UsageError, match=r"host2 would .* beside has ranks there: %mesh stop beside ends them"):
            dev.shrink(node=["host2"], into="main")
        assert dev.mesh.run(SUM).values == [(3, None)] * 3
        with pytest.raises(UsageError, match=r"host3 would .* rank 2 of main is there: --into main"):
            dev.shrink(2)
        dev.shrink(2, into="main")
        assert more.run("kept").values == [5, 6]
        beside.stop().get(timeout=TIMEOUT_S)
        dev.shrink(node=["host1"], into="main")
        assert dev.mesh.run(SUM).values == [(0, None)]

    def test_nothing_is_free(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.mesh.run("kept = 3")
        with client("""
other = monarch_nb.reserve("other", nodes=1, procs=1)
print("taken")
input()
other.release()
""") as other:
            assert other.line() == "taken"
            with pytest.raises(
                CapacityError, match=r"(?s)no free node for dev to have 3 nodes: .*other .* holds 1 proc"
            ):
                dev.grow(3, into="main")
            assert dev.mesh.run("kept").values == [3]
            assert sorted(free()) == [0, 0, 1]
            told: list[str] = []

            def say(text: str) -> None:
                if "in line" in text and not told:
                    other.tell()
                    told.append(text)

            dev.grow(3, into="main", wait=True, progress=say)
        assert dev.mesh.run(SUM).values == [(3, None)] * 3
        with pytest.raises(CapacityError, match=r"no free node for dev to have 4 nodes: the pool .* has no other"):
            dev.grow(4, into="main")
        with pytest.raises(UsageError, match=r"dev has 3 nodes already, .*%mesh shrink dev --nodes 2 leaves 2"):
            dev.grow(2)

    def test_other_clients_go_on_with_all_nodes(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        with client("""
dev = monarch_nb.attach("dev")
mesh = dev.mesh
print(mesh.run("rank").values)
for _ in range(2):
    input()
    print(mesh.run("rank").values, dev.node_names, dev.nodes)
""") as other:
            assert other.line() == "[0]"
            with client(f"print(monarch_nb.attach('dev').{GROWS})") as third:
                assert third.line() == "dev has 3 nodes: host2, host3 are new"
            eventually(lambda: dev.node_names == ["host1", "host2", "host3"])
            assert dev.mesh.run(SUM).values == [(3, None)] * 3
            other.tell()
            assert other.line() == "[0, 1, 2] ['host1', 'host2', 'host3'] 3"
            dev.shrink(2, into="main")
            other.tell()
            assert other.line() == "[0, 1] ['host1', 'host2'] 2"

    @pytest.mark.parametrize("method", ["Spawn", "ChangeMembers"])
    def test_a_client_dies_before_it_is_so(self, method: str) -> None:
        """In the middle of the new nodes' start, and just before the others are told."""
        dev = reserve("dev", nodes=1, procs=1)
        dev.mesh.run("kept = rank + 3")
        with client(stops_before(method, GROWS)) as other:
            assert other.line() == "there"
            assert sorted(free()) == [0, 0, 0]
            other.process.kill()
        eventually(lambda: sorted(free()) == [0, 1, 1])
        assert dev.mesh.run(WORLD).values == [(0, 1, 0, 3)]
        assert dev.node_names == attach("dev").node_names == ["host1"]
        dev.grow(3, into="main")
        assert dev.mesh.run(SUM).values == [(3, None)] * 3

    def test_a_client_dies_when_it_is_so(self, three: Lab) -> None:
        """The nodes tell each other, also those that are restarted."""
        reserve("dev", nodes=2, procs=1).mesh.run("kept = rank + 3")
        first, before = three.allocators[0], times_told(three.allocators[0], "host3")
        with client(stops_after("ChangeMembers", GROWS)) as other:
            assert other.line() == "there"
            eventually(lambda: times_told(first, "host3") > before)
            other.process.kill()
        for one in three.allocators:
            kill(one)
            start_again(three, one)
        eventually(lambda: attach("dev").mesh.extent == {"hosts": 3, "procs": 1})
        eventually(lambda: all_are_new(attach("dev")))
        assert attach("dev").mesh.run(SUM).values == [(3, None)] * 3
        assert [one.name for one in list_reservations()] == ["dev"]

    def test_a_node_that_is_away_when_it_is_so_learns_it_later(self, three: Lab) -> None:
        reserve("dev", nodes=2, procs=1).mesh.run("kept = rank + 3")
        _, second, _ = three.allocators
        with client(stops_before("ChangeMembers", GROWS, waits="await asyncio.to_thread(input)")) as other:
            assert other.line() == "there"
            kill(second)
            for _ in range(3):
                other.tell()
            while (line := other.line()) == "there":
                pass
            assert line == "done"
        dev = attach("dev")
        with pytest.raises(NodeUnreachable):
            dev.mesh.run("1")
        with pytest.raises(NodeUnreachable, match=r"host2 does not answer.*%mesh replace dev .*%mesh shrink dev"):
            dev.shrink(node=["host3"], into="main")
        start_again(three, second)
        eventually(lambda: dev.mesh.core.is_node_up(1))
        eventually(lambda: all_are_new(dev))
        assert dev.mesh.run(SUM).values == [(3, None)] * 3

    def test_a_node_that_is_lost_later_is_replaced_or_left_out(self, three: Lab) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.grow(2, into="main")
        dev.mesh.run("kept = rank + 3")
        first, second, _ = three.allocators
        kill(second)
        [replaced] = dev.replace()
        assert (replaced.old, replaced.new, replaced.ranks) == ("host2", "host3", (1,))
        assert dev.mesh.run(SUM).values == [(1, 3), (1, None)]
        kill(first)
        assert dev.shrink(1, into="main").left == ("host1",), "those that do not answer go first"
        assert dev.mesh.run(WORLD).values == [(0, 1, 0, None)]
        for one in (first, second):
            start_again(three, one)
        eventually(lambda: sorted(free()) == [0, 1, 1])
        assert attach("dev").node_names == ["host3"]


@pytest.mark.slow
def test_nodes_that_join_get_the_files_and_those_that_leave_keep_what_ranks_wrote(apart: Lab, project: Path) -> None:
    last = apart.allocators[2]
    dev = reserve("dev", nodes=2, procs=2, directory=project, files=project)
    dev.mesh.run("from model import width")
    dev.grow(3, into="main")
    assert dev.mesh.run("from model import width; width").values == [8] * 6
    assert dev.mesh.run(SUM).values == [(15, None)] * 6
    (project / "model.py").write_text("width = 9\n")
    assert dev.mesh.run("from model import width; width").values == [9] * 6
    dev.mesh.select(5).run("open('last.pt', 'w').write('x')")
    [kept] = dev.shrink(2, into="main").kept
    assert (kept.node, kept.files) == (last.node_id, 1)
    shutil.rmtree(last.paths.directory / "kept")
    assert dev.mesh.run("from model import width; width").values == [9] * 4
    assert dev.mesh.run(SUM).values == [(6, None)] * 4


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_in_a_notebook(tmp_path: Path) -> None:
    """A reservation grows, the kernel is restarted, and it shrinks again."""
    kernel = Kernel(tmp_path / "train.ipynb")
    try:
        kernel.run("%load_ext monarch_nb.notebook")
        kernel.run("%mesh reserve dev --nodes 1 --procs 1")
        kernel.run("%%mesh\nkept = rank + 3")
        grow = "%mesh grow dev --nodes 3 --into main"
        said = kernel.run(grow)
        assert "dev has 3 nodes: host2, host3 are new" in said
        assert "main has 3 ranks, all new" in said
        assert "dev has 3 nodes already" in kernel.run(grow)
        assert "[3, 3, 3]" in kernel.run(f"%%mesh -o sums\n{SUM}") + kernel.run("[total for total, _ in sums]")
        kernel.restart()
        assert "attached to dev: 3 nodes × 1 proc, 3 ranks alive" in kernel.run("%load_ext monarch_nb.notebook")
        assert "host2 is given back" in kernel.run("%mesh shrink --node host2 --into main")
        assert "[0, 1]" in kernel.run("%%mesh -o ranks --no-stream\nrank") + kernel.run("ranks")
        kernel.run("%mesh release")
    finally:
        kernel.kill()
