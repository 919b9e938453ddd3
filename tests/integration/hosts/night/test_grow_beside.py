"""A reservation gets more nodes, and main stays as it is: a new mesh is over all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
from integration.live import TIMEOUT_S, client, eventually, lives, pids_of
from monarch_nb import attach, list_reservations, reserve
from monarch_nb.cli.main import main
from monarch_nb.errors import NodeUnreachable, NoSuchMesh, UsageError


@pytest.mark.slow
@pytest.mark.usefixtures("three")
class TestOnThisMachine:
    def test_main_stays_as_it_is(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.mesh.run("kept = 3")
        pids = pids_of(dev.mesh)

        grown = dev.grow(2)

        assert str(grown).splitlines() == [
            "dev has 2 nodes: host2 is new",
            "grown has 2 ranks on all of them: %%mesh --mesh grown runs a cell there; main stays as it is",
        ]
        mesh = dev.meshes["grown"]
        assert (dev.nodes, dev.mesh.extent, mesh.extent) == (2, {"hosts": 1, "procs": 1}, {"hosts": 2, "procs": 1})
        assert mesh.run("kept = rank + 5; " + WORLD).values == [(0, 2, 0, 5), (1, 2, 1, 6)]
        assert mesh.run(SUM).values == [(1, 5), (1, 6)]
        assert dev.mesh.run("kept").values == [3]
        assert pids_of(dev.mesh) == pids
        assert str(dev.grow(2)) == "dev has 2 nodes already"
        with pytest.raises(UsageError, match="dev has a mesh grown that grow has made"):
            dev.spawn_procs(name="grown").initialized.get(timeout=TIMEOUT_S)
        with pytest.raises(UsageError, match=r"dev has grown already, on 2 nodes: --into grown .*--mesh NAME makes"):
            dev.grow(3)

        assert str(dev.grow(3, into="grown")).splitlines() == [
            "dev has 3 nodes: host3 is new",
            "grown has 3 ranks, all new: run the cells that define their variables",
        ]
        assert mesh.run(WORLD).values == [(rank, 3, rank, None) for rank in range(3)], "the mesh is the same one"
        assert mesh.run(SUM).values == [(3, None)] * 3
        assert dev.mesh.run("kept").values == [3]
        mesh.run("kept = rank + 5")
        with pytest.raises(
            UsageError, match=r"host3 would .* grown has ranks there: %mesh stop grown ends them, --into grown"
        ):
            dev.shrink(2)
        assert dev.shrink(2, into="grown").left == ("host3",)
        assert mesh.run(WORLD).values == [(0, 2, 0, None), (1, 2, 1, None)]

        with pytest.raises(UsageError, match="main ends with its reservation: %mesh release dev"):
            dev.stop_mesh("main")
        dev.stop_mesh("grown")
        with pytest.raises(NoSuchMesh, match="no mesh 'grown' in dev: it has main"):
            dev.meshes["grown"]
        assert attach("dev").node_names == ["host1", "host2"], "one without ranks is held all the same"
        assert dev.mesh.run("kept").values == [3]
        assert dev.grow(2).joined == (), "the mesh alone is missing"
        assert dev.meshes["grown"].run("rank").values == [0, 1]
        dev.stop_mesh("grown")
        assert str(dev.shrink(1)) == "dev has 1 node: host2 is given back"
        assert dev.mesh.run("kept").values == [3]
        assert pids_of(dev.mesh) == pids
        dev.release()
        eventually(lambda: sorted(free()) == [1, 1, 1])
        assert not lives(pids[0])

    def test_main_starts_anew_on_all_nodes_that_are_held(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.mesh.run("kept = 3")
        dev.grow(2)
        grown = dev.meshes["grown"]
        grown.run("kept = rank + 5")
        assert str(dev.grow(2, into="main")).splitlines() == [
            "dev has 2 nodes",
            "main has 2 ranks, all new: run the cells that define their variables",
        ]
        assert dev.mesh.run(WORLD).values == [(0, 2, 0, None), (1, 2, 1, None)]
        assert dev.mesh.run(SUM).values == [(1, None)] * 2
        assert grown.run("kept").values == [5, 6], "others stay as they are"
        assert str(dev.grow(2, into="main")) == "dev has 2 nodes already"
        dev.stop_mesh("grown")
        dev.shrink(1, into="main")
        dev.grow(2)
        dev.mesh.run("kept = 3")
        assert dev.grow(3, into="main").joined == ("host3",), "host2 gets ranks of it as well"
        assert dev.mesh.run(SUM).values == [(3, None)] * 3
        assert attach("dev").meshes["grown"].run("rank").values == [0, 1]
        dev.stop_mesh("grown")
        dev.shrink(2, into="main")
        dev.grow(3)
        dev.stop_mesh("grown")
        assert dev.shrink(node=["host1", "host2"], into="main").left == ("host1", "host2")
        assert dev.mesh.run(SUM).values == [(0, None)], "on the node that had none of its ranks"
        assert attach("dev").mesh.run(WORLD).values == [(0, 1, 0, None)]

    @pytest.mark.parametrize("stops", [stops_before, stops_after])
    def test_a_client_dies_while_main_starts_anew(self, three: Lab, stops: Callable[[str, str], str]) -> None:
        """All nodes have learnt what they are to start, or none has."""
        dev = reserve("dev", nodes=1, procs=1)
        dev.grow(2)
        dev.stop_mesh("grown")
        dev.mesh.run("kept = 3")
        first, before = three.allocators[0], times_told(three.allocators[0], "host3")
        with client(stops("ChangeMembers", "grow(3, into='main')")) as other:
            assert other.line() == "there"
            if stops is stops_after:
                eventually(lambda: times_told(first, "host3") > before)
            other.process.kill()
        if stops is stops_before:
            eventually(lambda: sorted(free()) == [0, 0, 1])
            assert dev.mesh.run(WORLD).values == [(0, 1, 0, 3)]
            dev.grow(3, into="main")
        else:
            for one in three.allocators:
                kill(one)
                start_again(three, one)
            eventually(lambda: attach("dev").mesh.extent == {"hosts": 3, "procs": 1})
        eventually(lambda: all_are_new(attach("dev")))
        assert attach("dev").mesh.run(SUM).values == [(3, None)] * 3

    def test_what_is_left_of_a_mesh_leaves_its_name_to_another(self, three: Lab) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.grow(2)
        dev.grow(3, mesh="all")
        dev.stop_mesh("all")
        _, second, third = three.allocators
        kill(second)
        kill(third)
        assert dev.shrink(1).left == ("host2", "host3"), "nobody says which of them had a part of grown"
        start_again(three, second)
        eventually(lambda: sorted(free()) == [0, 1])
        assert dev.grow(2).is_new_mesh
        assert list(dev.meshes) == ["main", "grown"]
        assert attach("dev").meshes["grown"].run(SUM).values == [(1, None)] * 2

    def test_from_a_terminal(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        script = tmp_path / "hello.py"
        script.write_text("print('hello')\n")
        reserve("dev", nodes=1, procs=1)

        def says(*words: str, status: int = 0) -> str:
            assert main([*words]) == status
            return capfd.readouterr().out

        assert "monarch-nb run --mesh grown SCRIPT runs a script there" in says("grow", "dev", "--nodes", "2")
        assert "main, grown" in (listed := says("list"))
        assert "dev: host2: held, no ranks of main" in listed
        assert says("run", "dev", "--mesh", "grown", str(script)).splitlines() == ["[0-1] hello"]
        assert "[0-1] hello" in says("logs", "dev", "--mesh", "grown")
        assert "hello" not in says("logs", "dev")
        assert says("stop", "grown", "--of", "dev") == "grown of dev has ended\n"
        assert "dev: host2: held, no ranks\n" in says("list")

    def test_a_new_client_finds_it(self) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        with client("""
dev = monarch_nb.attach("dev")
print(dev.mesh.run("rank").values)
input()
print(dev.meshes["all"].run("rank").values, dev.mesh.run("rank").values, dev.node_names)
""") as other:
            assert other.line() == "[0]"
            dev.grow(3, mesh="all")
            dev.meshes["all"].run("kept = rank")
            other.tell()
            assert other.line() == "[0, 1, 2] [0] ['host1', 'host2', 'host3']"
        again = attach("dev")
        assert again.meshes["all"].run("kept").values == [0, 1, 2]
        [held] = list_reservations()
        assert (held.nodes, held.alive_of_all) == (3, "1 of 1")
        assert [each.name for each in again.actor_infos()] == []
        assert again.doctor().node_names == ("host1", "host2", "host3")
        again.release()
        eventually(lambda: sorted(free()) == [1, 1, 1])

    def test_a_node_without_main_is_lost_and_replaced(self, three: Lab) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.mesh.run("kept = 3")
        dev.grow(2)
        mesh = dev.meshes["grown"]
        mesh.run("kept = rank + 5")
        _, second, _ = three.allocators
        kill(second)
        assert attach("dev").mesh.run("kept").values == [3], "main does not need it"
        with pytest.raises(NodeUnreachable):
            dev.meshes["grown"].run("1")
        assert [info.state for info in dev.meshes["grown"].status()] == ["idle", "unreachable"]
        [replaced] = dev.replace()
        assert str(replaced).startswith("host3 has the place of host2: rank 1 of grown is new there")
        assert mesh.run(SUM).values == [(1, 5), (1, None)]
        assert dev.mesh.run("kept").values == [3]
        start_again(three, second)
        eventually(lambda: sorted(free()) == [0, 0, 1])

    def test_a_mesh_that_is_stopped_ends_on_a_node_that_was_away(self, three: Lab) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.grow(2)
        pids = pids_of(dev.meshes["grown"])
        _, second, _ = three.allocators
        kill(second)
        assert dev.stop_mesh("grown") == ["host2"]
        assert lives(pids[1])
        start_again(three, second)
        eventually(lambda: not lives(pids[1]))
        assert list(attach("dev").meshes) == ["main"]
        assert dev.shrink(1).left == ("host2",)

    def test_a_node_with_parts_of_both_is_replaced(self, three: Lab) -> None:
        dev = reserve("dev", nodes=1, procs=1)
        dev.grow(2)
        dev.mesh.run("kept = 3")
        mesh = dev.meshes["grown"]
        mesh.run("kept = rank + 5")
        [replaced] = dev.replace("host1")
        assert str(replaced).startswith("host3 has the place of host1: rank 0, rank 0 of grown are new there")
        assert mesh.run(SUM).values == [(1, None), (1, 6)]
        assert dev.mesh.run(WORLD).values == [(0, 1, 0, None)]
        eventually(lambda: sorted(free()) == [0, 0, 1])


@pytest.mark.slow
def test_nodes_without_main_get_the_files(apart: Lab, project: Path) -> None:
    second = apart.allocators[1]
    dev = reserve("dev", nodes=1, procs=1, preload=[], directory=project, files=project)
    dev.mesh.run("from model import width")
    dev.grow(2)
    mesh = dev.meshes["grown"]
    assert mesh.run("from model import width; width").values == [8, 8]
    (project / "model.py").write_text("width = 9\n")
    assert attach("dev").meshes["grown"].run("from model import width; width").values == [9, 9]
    mesh.select(1).run("open('last.pt', 'w').write('x')")
    assert [info.path for info in dev.list_files(rank=1)] == ["last.pt", "model.py"]
    dev.stop_mesh("grown")
    [kept] = dev.shrink(1).kept
    assert (kept.node, kept.files) == (second.node_id, 1)
    shutil.rmtree(second.paths.directory / "kept")
    assert dev.mesh.run("from model import width; width").values == [9]


@pytest.mark.slow
@pytest.mark.usefixtures("three")
def test_in_a_notebook(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path / "train.ipynb")
    try:
        kernel.run("%load_ext monarch_nb.notebook")
        kernel.run("%mesh reserve dev --nodes 1 --procs 1")
        kernel.run("%%mesh\nkept = rank + 3")
        said = kernel.run("%mesh grow --nodes 2")
        assert "%%mesh --mesh grown runs a cell there; main stays as it is" in said
        assert "dev has 2 nodes already" in kernel.run("%mesh grow --nodes 2")
        kernel.run(f"%%mesh --mesh grown -o sums\n{SUM}")
        assert kernel.run("sums") == "[(1, None), (1, None)]"
        assert kernel.run("%mesh pull kept") == "[3]"
        assert "grown: 2 ranks more" in kernel.run("%mesh status")
        assert "host2" in kernel.run("%mesh status --mesh grown")
        assert "1 of 1" in kernel.run("%mesh list")
        assert "train.ipynb" not in kernel.run("%mesh ls --node 1")
        kernel.restart()
        said = kernel.run("%load_ext monarch_nb.notebook")
        assert "attached to dev: 2 nodes × 1 proc, 1 rank alive" in said
        assert "and beside main grown" in said
        assert kernel.run("%mesh pull rank --mesh grown") == "[0, 1]"
        assert "grown has ranks there: %mesh stop grown ends them" in kernel.run("%mesh shrink --nodes 1")
        assert "grown of dev has ended" in kernel.run("%mesh stop grown --of dev")
        assert "host2 is given back" in kernel.run("%mesh shrink --nodes 1")
        assert kernel.run("%mesh pull kept") == "[3]"
        kernel.run("%mesh release")
    finally:
        kernel.kill()
