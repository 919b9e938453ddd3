"""What holds wherever nodes come from. A way's folder has a fixture `way` and a class that derives from `AnyWay`, and
from `AnyQueue` where jobs wait in a queue."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from integration.kernels import Kernel, opened
from integration.live import TIMEOUT_S, eventually
from leaks import processes_of
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import CapacityError, PoolError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.notebook.session import attached_line
from monarch_nb.provision import jobs, launchers

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * rank
dist.all_reduce(total)
total.item()
"""

LISTEN = """
import os, socket
listening = socket.create_server(("", 0))
listening.getsockname()[1]
"""

HEARS = """
import os, pathlib, signal, sys
mine = pathlib.Path(sys.argv[1], os.environ["RANK"])
def handler(number, frame):
    with mine.open("a") as file:
        file.write(f"{signal.Signals(number).name} ")
    if number == signal.SIGTERM:
        sys.exit(0)
signal.signal(signal.SIGTERM, handler)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, handler)
mine.touch()
while True:
    signal.pause()
"""
"""A script that writes down which signals it hears, each rank into a file of the folder that it is given."""


class Way(Protocol):
    """An engine with at least two nodes that are free, for the tests.

    Attributes:
        on: what stands after `--on`. flags: what its tests need after ` -- `.
        pools: where the pools of the user lie. too_many_nodes: so many it never has.
    """

    on: str
    flags: tuple[str, ...]
    pools: Path
    too_many_nodes: int

    def left(self) -> str:
        """Return what the engine still has of ours: jobs, pods, processes; empty when there is nothing."""

    def lose(self, node: str) -> None:
        """Take the node of that name away, as when its machine fails."""

    def clean_up(self, node: str) -> None:
        """Remove what a node left that had no time to do it."""


class Queue(Way, Protocol):
    """One whose jobs wait in a queue; `left` returns their numbers."""

    def full(self) -> AbstractContextManager[None]:
        """Have a job of somebody else run on all nodes."""

    def cancel(self, job: str) -> None:
        """Cancel a job, as its owner does in a terminal."""


@contextmanager
def nothing_stays(way: Way) -> Iterator[None]:
    """Have an engine on which nothing of ours is left in the end, nor a key here. What is left is ended, and said."""
    yield
    with suppress(AssertionError):  # what was cancelled just now is ending
        eventually(lambda: not way.left())
    left = way.left(), [str(path) for path in way.pools.glob("*")]
    for job in jobs.jobs():
        jobs.end(job)
    eventually(lambda: not way.left())
    assert left == ("", [])


def end_all_of(pools: str) -> None:
    """End what runs in the client's home, and remove what nodes of these pools have there."""
    home = Path(os.environ[HOME_VARIABLE])
    for process in processes_of(home):
        os.kill(process.pid, signal.SIGKILL)
    for directory in home.glob(pools):
        shutil.rmtree(directory)


def interrupted_at(text: str, ask: Callable[[Callable[[str], None]], object]) -> str:
    """Ask for nodes, and press Ctrl-C when `text` is told meanwhile; return all that was told with it."""
    interrupt, said = Interrupt(), []

    def hear(told: str) -> None:
        said.append(told)
        if text in told:
            interrupt.set()

    with interruptible(interrupt), pytest.raises(KeyboardInterrupt):
        ask(hear)
    return said[-1]


class AnyWay:
    """The tests.

    Attributes:
        is_network: its nodes are hosts, or see each other as hosts do: their ranks form a group.
        unheld_s: for a test, so long allocators stay that nobody holds.
    """

    is_network = True
    unheld_s = 5.0

    @pytest.fixture
    def kernel(self, tmp_path: Path) -> Iterator[Kernel]:
        """One of a notebook that holds nothing."""
        with opened(tmp_path / "a.ipynb") as kernel:
            yield kernel

    @pytest.mark.slow
    def test_a_notebook_has_nodes_and_a_new_kernel_finds_them(self, way: Way, kernel: Kernel) -> None:
        kernel.run("%load_ext monarch_nb")
        cell, preload = (ALL_REDUCE, "") if self.is_network else ("float(rank or 1)", " --preload json")
        flags = "".join(f" {flag}" for flag in ("--", *way.flags)) if way.flags else ""
        flags = preload + flags
        shown = kernel.run(f"%mesh reserve dev --nodes 2 --procs 1 --on {way.on}{flags}")
        assert shown.startswith("dev: 2 nodes × 1 proc, 2 ranks ready in "), shown
        assert kernel.run(f"%%mesh\n{cell}") == "Out[0-1]: 1.0"
        kernel.run("%%mesh\nkept = rank")
        kernel.restart()
        assert kernel.run("%load_ext monarch_nb").startswith("attached to dev: 2 nodes × 1 proc, 2 ranks alive")
        assert "0" in kernel.run("%%mesh -t 0\nkept")
        again = kernel.run(f"%mesh reserve dev --nodes 2 --procs 1 --on {way.on}{flags}")
        assert again.startswith("dev: already held, 2 ranks alive"), again
        other = kernel.run(f"%mesh reserve dev --nodes 1 --procs 1 --on {way.on}{flags}")
        assert "already, with 2 nodes × 1 proc" in other
        assert "2 nodes" in kernel.run("%mesh list")
        assert "released 2 nodes × 1 proc" in kernel.run("%mesh release dev")
        eventually(lambda: not way.left())
        assert list(way.pools.iterdir()) == []

    @pytest.mark.slow
    def test_a_node_that_fails_is_named_and_the_other_goes_on(self, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "END_S", 2.0)  # a node that was lost never says that it has ended
        dev = reserve("dev", nodes=2, procs=1, preload=[], on=way.on, on_arguments=way.flags)
        lost = dev.node_names[1]
        assert lost != dev.node_names[0]
        dev.mesh.run("kept = 42")
        way.lose(lost)
        eventually(lambda: any(f"; {lost} " in info.absence for info in dev.mesh.status()))
        assert "; " + lost in attached_line(attach(dev.name))
        assert dev.mesh.select([0]).run("kept").values == [42]
        dev.release()
        eventually(lambda: not way.left())
        assert list(way.pools.iterdir()) == []
        way.clean_up(lost)

    @pytest.mark.slow
    def test_it_grows_by_another_job_which_ends_with_its_last_node(self, way: Way) -> None:
        dev = reserve("dev", nodes=1, procs=1, preload=[], on=way.on, on_arguments=way.flags)
        [first] = jobs.jobs()
        assert len(dev.grow(2).joined) == 1
        grown = dev.meshes["grown"]
        [port] = grown.select([0]).run(LISTEN).values
        ask = f"import os, socket; socket.create_connection((os.environ['MASTER_ADDR'], {port})).close()"
        grown.select([1]).run(ask)  # ranks of one job reach those of the other
        assert [job.nodes for job in jobs.jobs()] == [1, 1]
        assert attach("dev").node_names == dev.node_names, "who comes later finds the nodes of both"
        again = reserve("dev", nodes=2, procs=1, on=way.on, on_arguments=way.flags)
        assert again.id == dev.id
        dev.stop_mesh("grown")
        assert dev.shrink(1).left
        assert jobs.jobs() == [first], "the other has no node of it any more"
        dev.grow("+1")
        assert dev.meshes["grown"].run("rank").values == [0, 1]
        dev.release()
        eventually(lambda: not way.left())
        assert list(way.pools.iterdir()) == []

    def test_what_there_never_is_is_refused_and_forgotten(self, way: Way) -> None:
        with pytest.raises(CapacityError):
            reserve("dev", nodes=way.too_many_nodes, procs=1, on=way.on, on_arguments=way.flags)
        assert list(way.pools.iterdir()) == []
        assert way.left() == ""

    def test_a_job_whose_client_is_gone_ends_by_itself(self, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launchers, "UNHELD_S", self.unheld_s)
        ask = lambda pool, paths: launchers.Ask("dev", pool, 2, 1, 0, 0.0, way.flags, paths, preload=())  # noqa: E731
        job, is_new = jobs.obtain(way.on, ask, jobs.pool_name(way.on, "dev"), None, lambda _: None)
        assert is_new
        eventually(lambda: not way.left())
        jobs.sweep()
        assert not job.paths.directory.exists(), "nor do its keys stay"


class AnyQueue:
    """More tests, where jobs wait in a queue and are scripts that start this process's Python."""

    def test_a_job_that_is_cancelled_says_so(self, way: Queue) -> None:
        dev = reserve("dev", procs=1, preload=[], on=way.on)
        [job] = jobs.jobs()
        cell = dev.mesh.submit("import threading\nthreading.Event().wait()")
        eventually(lambda: cell.number)
        way.cancel(job.id)
        said = rf"job {job.id} has ended \(.+\): %mesh reserve dev --on {way.on}"
        with pytest.raises(PoolError, match=said):
            cell.result(TIMEOUT_S)  # it waits for no node that never comes back
        eventually(lambda: not way.left())
        for ask in (dev.status, dev.mesh.status, lambda: list(dev.mesh.logs()), lambda: attach("dev")):
            with pytest.raises(PoolError, match=said):
                ask()
        [(_, why)] = dev.mesh.stacks().groups
        assert re.search(said, why), why
        dev.release()

    def test_ctrl_c_in_the_queue_cancels_the_job(self, way: Queue) -> None:
        with way.full():
            before = way.left()
            said = interrupted_at("starts at about ", lambda hear: reserve("dev", procs=1, on=way.on, progress=hear))
            assert way.left() == before, "only the other job is in the queue"
        assert re.search(r"waits \(\w.*\), starts at about ", said), said
        assert list(way.pools.iterdir()) == []

    def test_a_job_whose_allocator_dies_shows_its_log(
        self, way: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        python = tmp_path / "python"
        python.write_text("#!/bin/sh\necho the module is not here\nexit 3\n")
        python.chmod(0o755)
        monkeypatch.setattr(launchers.sys, "executable", str(python))
        with pytest.raises(PoolError, match=r"(?s) job \d+.*its log ends with\n.*the module is not here"):
            reserve("dev", procs=1, on=way.on)
        assert list(way.pools.iterdir()) == []
