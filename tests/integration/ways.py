"""What holds wherever nodes come from. A way's folder has a fixture `way` and a class that derives from `AnyWay`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from integration.kernels import Kernel
from integration.live import eventually
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.errors import CapacityError
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


class AnyWay:
    """The tests.

    Attributes:
        is_network: its nodes are hosts, or see each other as hosts do: their ranks form a group.
        unheld_s: for a test, so long allocators stay that nobody holds.
    """

    is_network = True
    unheld_s = 5.0

    @pytest.fixture
    def open_kernel(self, tmp_path: Path) -> Iterator[Callable[[], Kernel]]:
        """Start kernels of one notebook."""
        kernels: list[Kernel] = []

        def open_one() -> Kernel:
            kernels.append(Kernel(tmp_path / "a.ipynb"))
            return kernels[-1]

        yield open_one
        for kernel in kernels:
            kernel.kill()

    @pytest.mark.slow
    def test_a_notebook_has_nodes_and_a_new_kernel_finds_them(
        self, way: Way, open_kernel: Callable[[], Kernel]
    ) -> None:
        kernel = open_kernel()
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
        assert len(dev.grow(2, into="main").joined) == 1
        [port] = dev.mesh.select([0]).run(LISTEN).values
        ask = f"import os, socket; socket.create_connection((os.environ['MASTER_ADDR'], {port})).close()"
        dev.mesh.select([1]).run(ask)  # ranks of one job reach those of the other
        assert [job.nodes for job in jobs.jobs()] == [1, 1]
        assert attach("dev").node_names == dev.node_names, "who comes later finds the nodes of both"
        again = reserve("dev", nodes=2, procs=1, on=way.on, on_arguments=way.flags)
        assert again.id == dev.id
        assert dev.shrink(1, into="main").left
        assert jobs.jobs() == [first], "the other has no node of it any more"
        dev.grow("+1", into="main")
        assert dev.mesh.run("rank").values == [0, 1]
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
