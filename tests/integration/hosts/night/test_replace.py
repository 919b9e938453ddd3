"""A node never comes back: a free one takes its place, with new ranks of the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.hosts.elastic import SUM, free, kill, start_again
from integration.hosts.lab import Lab
from integration.kernels import Kernel
from integration.live import TIMEOUT_S, client, eventually, lives, pids_of, started
from monarch_nb import list_reservations, reserve
from monarch_nb.actor import Actor, ActorError, endpoint
from monarch_nb.cli.main import main
from monarch_nb.errors import CapacityError, NodeUnreachable, RunFailed, UsageError
from monarch_nb.trust.pools import change_hosts, make_paths


@pytest.mark.slow
def test_a_free_node_takes_the_place_of_a_lost_one(apart: Lab, project: Path) -> None:
    """Whose network swallows everything, and which hosts the store; and then it comes back."""
    lost, new = (apart.allocators[place].host for place in (0, 2))
    assert lost is not None
    assert new is not None
    ranks, others = [0, 1], [2, 3]
    dev = reserve("dev", nodes=2, procs=2, directory=project, files=project)
    newest = dev.mesh.run(f"from model import width\nkept = rank + width\n{SUM}").number
    pids = pids_of(dev.mesh)
    cut_off, _ = started(dev.mesh.select(ranks), "import time\nwhile True: time.sleep(0.01)")
    lost.swallow()
    eventually(lambda: not dev.mesh.core.is_node_up(0))
    with pytest.raises(NodeUnreachable, match="%mesh replace puts a free node in its place"):
        dev.mesh.run("1")

    [replaced] = dev.replace()

    assert str(replaced).startswith(f"{new.name} has the place of {lost.name}: ranks {ranks[0]}-{ranks[1]} are new")
    with pytest.raises(RunFailed, match=f"{new.name} has the place of its node, {lost.name}"):
        cut_off.result(TIMEOUT_S)
    run = dev.mesh.run(SUM)
    assert run.number > newest
    assert run.values == [(6, None if rank in ranks else rank + 8) for rank in range(4)], "the others keep their memory"
    assert dev.mesh.run("from model import width; width").values == [8] * 4, "the new node has the files"
    after = pids_of(dev.mesh)
    assert [after[rank] for rank in others] == [pids[rank] for rank in others]

    lost.pass_on()
    eventually(lambda: not any(lives(pids[rank]) for rank in ranks))
    eventually(lambda: sorted(free()) == [0, 0, 2])
    more = reserve("more", nodes=1, procs=2)
    assert more.mesh.run("rank").values == [0, 1], "it can be reserved again"
    assert dev.mesh.run(SUM).values[others[0]] == (6, others[0] + 8), "and is not in the way"


@pytest.mark.slow
@pytest.mark.usefixtures("three")
class TestOnThisMachine:
    """Nodes without a network between them: an allocator that is killed does not answer either."""

    def test_a_held_node_that_no_list_has_any_more_is_not_lost(
        self, three: Lab, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nor are its ranks ended by who looks for lost nodes."""
        dev = reserve("dev", nodes=2, procs=1, preload=[])
        dev.mesh.run("kept = rank + 3")
        _, second, third = (one.address for one in three.allocators)
        assert main(["pool", "remove", "lab", second]) == 1
        assert "you hold dev on host2: release that first" in capsys.readouterr().err
        try:
            assert main(["pool", "remove", "lab", second, "--force"]) == 0
            assert main(["pool", "remove", "lab", third]) == 0, "nothing is held there"
            [info] = list_reservations()
            assert (info.nodes_answering, info.absences) == (2, ())
            with pytest.raises(UsageError, match="all nodes answer"):
                dev.replace()
            with client("print(monarch_nb.attach('dev').mesh.run('kept').values)") as other:
                assert other.line() == "[3, 4]"
            dev.release()
            with pytest.raises(CapacityError, match="only 1 of 1 node"):
                reserve("dev", nodes=2, procs=1, preload=[])
        finally:
            change_hosts(make_paths("lab"), lambda hosts: hosts.added(second).added(third))

    def test_actors_of_lost_ranks_are_dead(self, three: Lab) -> None:
        class Counter(Actor):
            def __init__(self) -> None:
                self.count = 0

            @endpoint
            async def add(self) -> int:
                self.count += 1
                return self.count

        dev = reserve("dev", nodes=2, procs=1, preload=[])
        counters = dev.mesh.procs.spawn("counters", Counter)
        assert counters.add.call().get(timeout=TIMEOUT_S).values() == [1, 1]
        kill(three.allocators[1])
        dev.replace()
        with pytest.raises(ActorError, match=r"host2|rank 1"):
            counters.add.call().get(timeout=TIMEOUT_S)
        assert counters.slice(hosts=0).add.call_one().get(timeout=TIMEOUT_S) >= 2
        again = dev.mesh.procs.spawn("again", Counter)
        assert again.add.call().get(timeout=TIMEOUT_S).values() == [1, 1]


@pytest.mark.slow
def test_in_a_notebook(three: Lab, tmp_path: Path) -> None:
    """A cell runs on a node that is lost; another node takes its place; the kernel is restarted."""
    kernel = Kernel(tmp_path / "train.ipynb")
    try:
        kernel.run("%load_ext monarch_nb.notebook")
        assert "2 nodes × 1 proc" in kernel.run("%mesh reserve dev --nodes 2 --procs 1")
        kernel.run("%%mesh\nkept = rank + 3")
        lost = three.allocators[1]
        kill(lost)
        said = kernel.run("%mesh replace")
        assert "dev: replaced in " in said
        assert "host3 has the place of host2: rank 1 is new there, run the cells that define their variables" in said
        assert "[1, 1]" in kernel.run(f"%%mesh -o sums\n{SUM}") + kernel.run("[total for total, _ in sums]")
        assert "all nodes answer (host1, host3)" in kernel.run("%mesh replace")
        kernel.restart()
        assert "attached to dev: 2 nodes × 1 proc, 2 ranks alive" in kernel.run("%load_ext monarch_nb.notebook")
        assert "host1" in (status := kernel.run("%mesh status"))
        assert "host3" in status
        assert "host2" not in status
        assert "rank 0 3, rank 1 None" in kernel.run("%%mesh -o kept --no-stream\nglobals().get('kept')") + kernel.run(
            "'rank 0 {}, rank 1 {}'.format(*kept)"
        )
        start_again(three, lost)
        kernel.run("%mesh release")
    finally:
        kernel.kill()
