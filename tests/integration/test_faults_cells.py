"""What a cell can do wrong: each fault is told clearly, costs nothing else, and the next cell runs."""

from __future__ import annotations

import signal

import pytest

from integration.live import Gate, Recorder, kill, pids_of, started
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.errors import PickleError, RankDead, RankFailure, RunFailed


class TestErrors:
    def test_good_ranks_keep_their_results(self, mesh: Mesh) -> None:
        with pytest.raises(RunFailed) as raised:
            mesh.run("if rank in (2, 5): raise KeyError(rank % 3)\nrank * 10")
        assert [(ranks, f.name, f.message) for ranks, f in raised.value.groups()] == [([2, 5], "KeyError", "2")]
        assert raised.value.run.values == [0, 10, None, 30, 40, None, 60, 70]
        assert mesh.run("rank").values == list(range(8))


class TestDeaths:
    def assert_only_rank_3_died(self, mesh: Mesh, raised: RunFailed) -> RankFailure:
        [failure] = raised.failures.values()
        assert (failure.rank, failure.kind, failure.host) == (3, "died", "node0")
        assert raised.run.values == [0, 1, 2, None, 4, 5, 6, 7]
        with pytest.raises(RankDead, match=r"rank 3 \(node0\) is dead") as dead:
            mesh.run("rank")
        assert dead.value.ranks == [3]
        assert mesh.select([0, 7]).run("rank").values == [0, 7]
        [info] = [info for info in mesh.status() if info.state == "dead"]
        assert info.rank == 3
        mesh.restart([3])
        assert mesh.run("rank").values == list(range(8))
        return failure

    def test_os_exit(self, mesh: Mesh) -> None:
        with pytest.raises(RunFailed) as raised:
            mesh.run("import os, sys\nif rank == 3:\n    print('last words', file=sys.stderr)\n    os._exit(3)\nrank")
        failure = self.assert_only_rank_3_died(mesh, raised.value)
        assert (failure.exit_code, failure.signal, failure.stderr_tail) == (3, None, ("last words",))
        assert "exited with code 3" in failure.message
        assert "%mesh restart -t 3 starts it again" in raised.value._render_traceback_()

    def test_a_segfault_shows_where(self, mesh: Mesh) -> None:
        with pytest.raises(RunFailed) as raised:
            mesh.run("import ctypes\nif rank == 3: ctypes.string_at(0)\nrank", cell_number=9)
        failure = self.assert_only_rank_3_died(mesh, raised.value)
        assert (failure.exit_code, failure.signal) == (None, signal.SIGSEGV)
        assert "segmentation fault" in failure.message
        first, *frames, last = failure.stderr_tail
        assert first.startswith("Fatal Python error")
        assert any("string_at" in line for line in frames), frames
        assert last.strip() == "Cell In[9], line 2 in <module>"

    def test_signals(self, mesh: Mesh, gate: Gate) -> None:
        number = signal.SIGRTMIN + 3  # which has no name
        run, _ = started(mesh, f"{gate.wait}\nrank")
        kill(pids_of(mesh)[3], number)
        gate.open(7)
        with pytest.raises(RunFailed) as raised:
            run.result()
        failure = self.assert_only_rank_3_died(mesh, raised.value)
        assert failure.signal == number
        assert f"killed by signal {int(number)}" in failure.message


class TestValues:
    def test_an_unpicklable_push_is_named_and_changes_nothing(self, mesh: Mesh) -> None:
        mesh.run("good = 'as it was'")
        with pytest.raises(PickleError, match=r"^lines \(generator\) can not be pickled: .*generator") as raised:
            mesh.push({"good": "changed", "lines": (line for line in [])})
        assert raised.value.name == "lines"
        assert mesh.pull("good") == ["as it was"] * 8

    def test_a_class_that_can_not_be_unpickled_here(self, mesh: Mesh) -> None:
        code = "class Trap:\n    def __reduce__(self): return (int, ('no number',))\nTrap()"
        run = mesh.select([2]).run(code)
        with pytest.raises(PickleError, match="rank 2 can not be unpickled here: ValueError"):
            _ = run.values


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


class TestOutput:
    def test_every_line_belongs_to_the_run_that_printed_it(self, mesh: Mesh) -> None:
        """Silent runs share files; what is printed is attributed all the same."""
        mesh.run("pass")
        first = mesh.select([0, 4]).run("print('first')")
        mesh.select([1]).run("pass")
        second = mesh.select([1, 5]).run("print('second')")
        third = mesh.run("print('third')")
        numbers = {"first\n": first.number, "second\n": second.number, "third\n": third.number}
        records = sorted((record for record in mesh.logs(lines=2) if record.text in numbers), key=lambda one: one.run)
        assert len(records) == 12
        assert [record.run for record in records] == [numbers[record.text] for record in records]
        assert {record.rank for record in mesh.logs(run=second)} == {1, 5}
        assert [record.text for record in mesh.logs(ranks=[5], lines=2)] == ["second\n", "third\n"]
        assert first.number < second.number < third.number
