"""Cells on a mesh beside the main one: in a real kernel, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.kernels import Kernel
from integration.live import TIMEOUT_S, Gate, eventually, started
from monarch_nb import reserve
from monarch_nb.errors import NoSuchMesh, RunFailed
from monarch_nb.provision import Node

WORLD = """
import os, torch, torch.distributed as dist
if not dist.is_initialized(): dist.init_process_group("gloo")
total = torch.tensor([rank])
dist.all_reduce(total)
(rank, dist.get_world_size(), total.item(), os.environ.get("ROLE"))
"""
SPAWN = """
import monarch_nb
judges = monarch_nb.attach("dev").spawn_procs({"gpus": 2}, name="judges", env={"ROLE": "judge"})
judges.initialized.get(timeout=60)
"""


@pytest.fixture
def judging(prompt: Kernel) -> Kernel:
    """A kernel that holds "dev": 1 node × 1 proc, and a mesh "judges" of 2 beside that."""
    prompt.run("%load_ext monarch_nb\n%mesh reserve dev --nodes 1 --procs 1")
    prompt.run(SPAWN)
    return prompt


def test_cells_run_there(judging: Kernel) -> None:
    judging.run("%%mesh\nkept = 'of main'")
    judging.run(f"%%mesh --mesh judges -o worlds\n{WORLD}")
    assert judging.run("worlds") == "[(0, 2, 1, 'judge'), (1, 2, 1, 'judge')]", "a world and a store of its own"
    assert "name 'kept' is not defined" in judging.run("%%mesh --mesh judges\nkept")
    assert judging.run("%mesh pull kept") == "['of main']"
    assert "no mesh 'juges'" in judging.run("%%mesh --mesh juges\n1")
    assert "[1] judging" in judging.run("%%mesh --mesh judges -t 1\nprint('judging')")
    assert "[1] judging" in judging.run("%mesh logs --mesh judges -t 1")
    assert "judging" not in judging.run("%mesh logs")
    assert "judges: 2 ranks more" in judging.run("%mesh status")
    assert "dev/judges · 2 of 2 ranks alive" in judging.run("%mesh status --mesh judges")
    judging.run("%%mesh --mesh judges\nscores = [rank]")
    eventually(lambda: judging.complete("%%mesh --mesh judges\nscor") == ["scores"])  # a busy rank is not waited for
    assert judging.complete("%%mesh --mesh j") == ["judges"]
    assert "rank 1 restarted" in judging.run("%mesh restart --mesh judges -t 1")
    assert judging.run("%mesh pull 'scores' in globals() --mesh judges") == "[True, False]"
    assert judging.run("%mesh pull kept") == "['of main']"


def test_a_mesh_that_is_just_being_made_is_waited_for(judging: Kernel) -> None:
    """As when a notebook's cells run one after the other."""
    made = "monarch_nb.attach('dev').spawn_procs({'procs': 1}, name='late', env={'ROLE': '%s'})"
    for role in ("first", "second"):  # then in the place of the one before
        judging.run(f"late = {made % role}")
        assert f"[0] {role}" in judging.run("%%mesh --mesh late\nimport os; print(os.environ['ROLE'])")
    assert "late of dev has ended" in judging.run("%mesh stop late")


def test_an_interrupt_is_for_that_mesh_alone(judging: Kernel, gate: Gate) -> None:
    judging.run(f"%%mesh --noblock\n{gate.wait}")
    cell = judging.start("%%mesh --mesh judges\nprint('there', flush=True)\nimport time\nwhile True: time.sleep(0.01)")
    judging.wait(cell, "there")
    judging.interrupt()
    assert "ranks 0-1" in judging.wait(cell)
    gate.open(1)
    assert judging.run("%mesh pull rank") == "[0]"
    assert judging.run("%mesh pull rank --mesh judges") == "[0, 1]"


@pytest.mark.slow
def test_files_go_to_the_nodes_of_that_mesh(isolated_pool: list[Node], project: Path) -> None:
    """Its nodes have other numbers than in the reservation: the mesh is on the second of two alone."""
    (project / "model.py").write_text("width = 8\n")
    dev = reserve("dev", nodes=2, procs=1, preload=[], directory=project, files=project)
    try:
        second = dev.hosts.slice(hosts=1).spawn_procs({"procs": 1}, name="second")
        second.initialized.get(timeout=TIMEOUT_S)
        mesh = dev.meshes["second"]
        assert mesh.run("from model import width; width").values == [8]
        (project / "model.py").write_text("width = 9\n")
        assert mesh.run("from model import width; width").values == [9]
        assert list(dev.meshes) == ["main", "second"]
        running, _ = started(mesh, "import time\nwhile True: time.sleep(0.01)")
        mesh.interrupt()
        with pytest.raises(RunFailed):
            running.result(TIMEOUT_S)
        second.stop().get(timeout=TIMEOUT_S)
        with pytest.raises(NoSuchMesh, match="no mesh 'second'"):
            dev.meshes["second"]
    finally:
        dev.release()
