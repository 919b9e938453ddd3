"""One cell on more and more ranks: what it sees, what is shown of it, and that everything is as before afterwards."""

from __future__ import annotations

import re

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S
from monarch_nb.client.meshes.mesh import Mesh
from monarch_nb.client.meshes.scaling_report import ScalingReport
from pages import ROOT, blocks

pytestmark = pytest.mark.shape(nodes=2, procs=2)

PAGE = ROOT / "docs" / "scaling.md"
WORLD = "import os\n(rank, world_size, *(int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE')))"
WHOLE = [(0, 4, 0, 4, 2), (1, 4, 1, 4, 2), (2, 4, 2, 4, 2), (3, 4, 3, 4, 2)]
MEET = "dist.init_process_group('gloo')\nwhole = dist.get_world_size()\ndist.barrier()"


def printed(mesh: Mesh, run: int) -> list[str]:
    return sorted(record.text.strip() for record in mesh.logs(run=run))


def failures(report: ScalingReport) -> list[str]:
    return [row.failure for row in report.rows]


class TestWorlds:
    def test_each_size_is_a_world_and_afterwards_the_mesh_is(self, mesh: Mesh) -> None:
        code = f"{WORLD.replace('(rank', 'seen = (rank')}\nprint(seen)\n{{'tokens': 100 * (rank + 1)}}"
        report = mesh.scale(code, [4, 1, 3, 2, 2], per="tokens")
        assert [row.ranks for row in report.rows] == [1, 2, 3, 4]
        amounts = [(row.throughput or 0.0) * (row.time_s or 0.0) for row in report.rows]
        assert amounts == pytest.approx([100, 300, 600, 1000])
        assert printed(mesh, report.rows[2].run) == ["(0, 3, 0, 3, 2)", "(1, 3, 1, 3, 2)", "(2, 3, 2, 3, 1)"]
        assert mesh.run(WORLD).values == WHOLE
        assert mesh.pull("seen[1]") == [4, 4, 4, 4]  # variables are those of the last run

    def test_a_part_of_the_mesh_is_where_ranks_are_taken_from(self, mesh: Mesh) -> None:
        report = mesh.slice(hosts=1).scale(f"print({WORLD.splitlines()[1]})", [2])
        assert printed(mesh, report.rows[0].run) == ["(0, 2, 0, 2, 2)", "(1, 2, 1, 2, 2)"]
        assert mesh.run(WORLD).values == WHOLE

    def test_a_failure_and_a_time_that_is_up_are_rows(self, mesh: Mesh) -> None:
        code = """
            import threading
            if world_size == 2:
                1 / (1 - rank) and threading.Event().wait()
            if world_size == 3:
                threading.Event().wait()
        """
        report = mesh.scale(code, [1, 2, 3, 4], timeout_s=5.0)
        assert [row.time_s is not None for row in report.rows] == [True, False, False, True]
        assert failures(report)[1].startswith("rank 1 failed: ZeroDivisionError: division by zero")
        assert failures(report)[2] == "not finished after 5 s: interrupted"
        assert report.rows[3].efficiency is not None
        assert mesh.run(WORLD).values == WHOLE


class TestGroups:
    def test_each_run_has_a_group_of_its_own_and_the_mesh_one_afterwards(self, mesh: Mesh) -> None:
        mesh.run(f"import torch\nimport torch.distributed as dist\n{MEET}")
        code = f"there = dist.is_initialized()\n{MEET}\nprint(there, whole)"
        report = mesh.scale(code, [1, 2, 4], timeout_s=TIMEOUT_S)
        assert failures(report) == ["", "", ""]
        for row in report.rows:
            assert printed(mesh, row.run) == [f"False {row.ranks}"] * row.ranks
        assert report.notes[0].startswith("the process group of 4 ranks was ended for this")
        assert mesh.run("dist.is_initialized()").values == [False] * 4
        assert mesh.run(f"{MEET}\nwhole").values == [4] * 4

    def test_a_collective_that_a_failure_leaves_hanging(self, mesh: Mesh) -> None:
        code = f"{MEET}\nif world_size == 2 and rank: raise OSError('no')\nif world_size > 1: dist.barrier()"
        report = mesh.scale(code, [1, 2, 4], timeout_s=TIMEOUT_S)
        assert [row.time_s is not None for row in report.rows] == [True, False, True]
        assert failures(report)[1].startswith("rank 1 failed: OSError: no")
        assert mesh.run(f"{MEET}\nwhole").values == [4] * 4

    def test_a_group_that_its_client_has_left(self, mesh: Mesh) -> None:
        """As after the end of a kernel in the middle of a series: the next cell is of the whole mesh."""
        mesh.select([0, 1]).submit(MEET, own_world=True).result(60)
        assert mesh.run(f"{MEET}\nwhole").values == [4] * 4


class TestNotebook:
    def test_the_example_of_the_docs(self, mesh: Mesh, attached: Kernel) -> None:
        mesh.end_groups()  # else it says that it did
        cell, shown = blocks(PAGE)[:2]
        got = attached.run(cell.text, headless=True)
        assert without_figures(got) == without_figures(shown.text)

    def test_what_failed_is_shown_and_what_succeeded_is_not(self, attached: Kernel) -> None:
        shown = attached.run("%%mesh --scale 1-2,4 -o report\nprint('on', world_size)\nif world_size == 2: 1 / 0")
        assert "[0-1] on 2" in shown
        assert "on 1\n" not in shown
        assert "ZeroDivisionError" in shown
        assert "2 runs measured" in shown
        assert attached.run("[row.ranks for row in report.rows if not row.failure]") == "[1, 4]"
        assert attached.run("report").startswith("on 1, 2, 4 ranks\n")


def without_figures(shown: str) -> str:
    """Return the form of a table: what differs from run to run left out."""
    lines = [re.sub(r"[█░]+", "█", line).rstrip() for line in shown.strip().splitlines()]
    return "\n".join(re.sub(r"\s+", " ", re.sub(r"\d[\d.,]* ?(ms|s|%)|\d[\d,.]*", "N", line)) for line in lines)
