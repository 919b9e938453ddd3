"""Processes that end before their time: templates, ranks and what ranks started; who survives whom."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from integration.live import TIMEOUT_S, Gate, command_of, kill, lives, parent_of, pids_of, started
from leaks import wait_for_end
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.errors import RunFailed
from monarch_nb.provision import Node

INIT = "import torch; dist.init_process_group('gloo')\nsum_of_ranks = torch.tensor([float(rank)])"
ALL_REDUCE = "total = sum_of_ranks.clone(); dist.all_reduce(total); total.item()"


def templates_of(mesh: Mesh) -> dict[int, int]:
    """Return the pid of each rank's template; a rank that has lost it is the allocator's child."""
    parents = {rank: parent_of(pid) for rank, pid in pids_of(mesh).items()}
    return {rank: pid for rank, pid in parents.items() if "worker.template" in command_of(pid)}


class TestRestart:
    def test_one_rank_alone_and_the_others_keep_everything(self, fresh_mesh: Mesh) -> None:
        mesh = fresh_mesh
        mesh.run(f"{INIT}\nweights = 'trained'")
        assert mesh.run(ALL_REDUCE).values == [28.0] * 8
        before = pids_of(mesh)
        kill(before[3])
        mesh.restart([3])
        after = pids_of(mesh)
        assert {rank for rank in after if after[rank] != before[rank]} == {3}
        assert mesh.pull("globals().get('weights', 'nothing')") == ["trained"] * 3 + ["nothing"] + ["trained"] * 4
        mesh.select([3]).run("sum_of_ranks = __import__('torch').tensor([float(rank)])")
        mesh.run("dist.init_process_group('gloo')")
        assert mesh.run(ALL_REDUCE).values == [28.0] * 8

    def test_all_are_fresh_under_the_same_coordinates(self, mesh: Mesh) -> None:
        mesh.run("old = 1")
        before = pids_of(mesh)
        mesh.restart()
        assert not set(pids_of(mesh).values()) & set(before.values())
        code = (
            "import os\nrank, os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['NODE_RANK'], 'old' in globals()"
        )
        expected = [(rank, str(rank), str(rank % 4), str(rank // 4), False) for rank in range(8)]
        assert mesh.run(code).values == expected

    def test_a_busy_rank(self, mesh: Mesh, gate: Gate) -> None:
        run, _ = started(mesh, f"{gate.wait}\nrank")
        mesh.restart([2, 6])
        gate.open(6)
        with pytest.raises(RunFailed) as raised:
            run.result()
        assert str(raised.value) == "ranks 2,6 (node0, node1): RankRestarted: restarted while the run went on"
        assert raised.value.run.values == [0, 1, None, 3, 4, 5, None, 7]
        assert mesh.run("rank").values == list(range(8))

    def test_twice_at_once(self, mesh: Mesh) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda _: mesh.restart(), range(2)))
        assert mesh.run("rank").values == list(range(8))

    def test_right_after_a_death(self, mesh: Mesh) -> None:
        for _ in range(5):
            os.kill(pids_of(mesh)[1], signal.SIGKILL)
            mesh.restart([1])
            assert mesh.run("rank").values == list(range(8))


CHILDREN = """
import multiprocessing, os, subprocess, sys, threading
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
children = {
    "plain": subprocess.Popen(sleep).pid,
    "own session": subprocess.Popen(sleep, start_new_session=True).pid,
    "shell": subprocess.Popen("sleep 600 & wait", shell=True).pid,
    "empty environment": subprocess.Popen(sleep, env={}).pid,
}
context = multiprocessing.get_context("fork")
worker = context.Process(target=threading.Event().wait, daemon=False)
worker.start()
children["forked worker"] = worker.pid
children["daemonised"] = int(subprocess.run(
    [sys.executable, "-S", "-c", "import os, time\\n"
     "if os.fork(): os._exit(0)\\n"
     "os.setsid()\\n"
     "pid = os.fork()\\n"
     "if pid: print(pid, flush=True); os._exit(0)\\n"
     "os.close(1); time.sleep(600)"],
    stdout=subprocess.PIPE).stdout)
children
"""


class TestChildren:
    @pytest.fixture
    def children(self, mesh: Mesh) -> Iterator[dict[str, int]]:
        [pids] = mesh.select([5]).run(CHILDREN).values
        assert all(map(lives, pids.values()))
        yield pids
        mesh.restart([5])  # and with it whatever is left of them

    def assert_gone(self, children: dict[str, int]) -> None:
        for pid in children.values():
            wait_for_end(pid, TIMEOUT_S)
        assert [name for name, pid in children.items() if lives(pid)] == []

    def test_they_go_with_a_rank_that_is_killed(self, mesh: Mesh, children: dict[str, int]) -> None:
        kill(pids_of(mesh)[5])
        self.assert_gone(children)

    def test_they_go_with_a_rank_that_is_restarted_and_stay_when_others_are(
        self, mesh: Mesh, children: dict[str, int]
    ) -> None:
        mesh.restart([4, 6])
        assert all(map(lives, children.values()))
        mesh.restart([5])
        self.assert_gone(children)

    @pytest.mark.slow
    def test_they_go_when_the_reservation_is_released(self, spare_pool: list[Node]) -> None:
        reservation = reserve("short", procs=1, preload=[])
        replaced = pids_of(reservation.mesh)[0]
        os.kill(replaced, signal.SIGSTOP)  # so that it takes seconds to end
        reservation.mesh.restart()
        [pids] = reservation.mesh.run(CHILDREN).values
        reservation.release()
        assert not lives(replaced), "the slot is free when both have ended"
        self.assert_gone(pids)


class TestTemplate:
    """A template is killed: its ranks go on, the next ranks have a new one, and exit codes still come."""

    def test_ranks_go_on_and_the_next_have_a_new_one(self, fresh_mesh: Mesh, gate: Gate) -> None:
        mesh = fresh_mesh
        run, _ = started(mesh, f"{gate.wait}\nrank")
        old = templates_of(mesh)
        for pid in set(old.values()):
            kill(pid)
        gate.open(8)
        assert run.result() == list(range(8))
        with pytest.raises(RunFailed) as raised:
            mesh.run("import os\nif rank == 6: os._exit(7)")
        [failure] = raised.value.failures.values()
        assert (failure.rank, failure.exit_code) == (6, 7), "the allocator is the subreaper"
        mesh.restart([6])
        assert mesh.run("rank").values == list(range(8))
        assert set(templates_of(mesh)) == {6}
        assert templates_of(mesh)[6] not in old.values()


def test_after_all_that_only_what_belongs_there_runs(dev: Reservation, shared_pool: list[Node]) -> None:
    belongs = ("worker.template", "monarch_nb.allocator.logs.")  # readers of logs end when they have been idle

    def others() -> dict[int, str]:
        below = [child for node in shared_pool for child in psutil.Process(node.pid).children(recursive=True)]
        commands = {child.pid: command_of(child.pid) for child in below}
        return {pid: command for pid, command in commands.items() if command and not any(map(command.count, belongs))}

    for pid in others():
        wait_for_end(pid, TIMEOUT_S)  # those that the test before has killed may still be ending
    assert others() == {}
