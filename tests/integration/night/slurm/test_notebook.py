"""The notebook for people with a Slurm, executed where one is."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from integration.kernels import opened
from integration.live import TIMEOUT_S, Gate, eventually, leave
from integration.night.slurm.conftest import Slurm
from integration.night.slurm.controller import run, squeue
from integration.notebooks import execute
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.provision import jobs
from monarch_nb.worker.saving.manifest import Manifest, damage


@pytest.mark.slow
def test_a_program_runs_again_and_again_in_one_job(way: Slurm, tmp_path: Path) -> None:
    notebook = execute("slurm", tmp_path, nodes=2)  # on 4 it does nothing else, for twice as long
    assert "dev: 2 nodes × 2 procs, 4 ranks ready in " in notebook.text("--on slurm")
    assert notebook.text("!squeue").count("monarch-") == 1
    assert "rank 0 of 4: loss" in notebook.text("srun --jobid")
    for place in range(2):
        assert "rank 0 of 4: loss" in notebook.text("%mesh run train.py", place)
    assert "Out[0-3]: 4" in notebook.text("init_process_group()\nmodel = Dist")
    assert "Out[0-3]: " in notebook.text("parameter.grad")
    assert "dev: 15 min more, 4" in notebook.text("%mesh extend")
    assert "4 of 4 ranks alive" in notebook.text("%mesh status")
    assert "released 2 nodes" in notebook.text("%mesh release")
    assert "monarch-" not in notebook.text("!squeue", 1)


def notebook_that_begins_with(setup: str, folder: Path) -> Path:
    """Write a notebook whose only cell sets ranks up, also those of the next job."""
    cells = [nbformat.v4.new_code_cell(setup, metadata={"tags": ["setup"]})]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "train.ipynb")
    return folder / "train.ipynb"


@pytest.mark.slow
def test_a_cell_whose_job_is_taken_back_goes_on_in_the_next_one(way: Slurm, tmp_path: Path, gate: Gate) -> None:
    setup = "%%mesh\nimport torch\nstep = torch.zeros(1)\nprint('made')"
    with opened(notebook_that_begins_with(setup, tmp_path)) as kernel:
        kernel.run("%load_ext monarch_nb")
        ask = f"%mesh reserve dev --procs 2 --on slurm --resume --save {tmp_path}/saves"
        assert "no cell of train.ipynb has the tag 'other'" in kernel.run(f"{ask} --setup other")
        assert not jobs.jobs(), "nothing was asked for"
        assert "dev: 1 node × 2 procs, 2 ranks ready in " in kernel.run(f"{ask} --setup setup")
        kernel.run(setup)
        kernel.run("%%mesh\nstep += 5")
        kernel.run(f"%mesh save {tmp_path}/saves")
        kernel.run("%%mesh\nstep += 7  # not saved")
        cell = kernel.start(f"%%mesh\nprint('begins')\n{gate.wait}\nprint('went on at', int(step))")
        kernel.wait(cell, "[0-1] begins")
        [first] = jobs.jobs()
        run("scancel", first.id)
        eventually(lambda: [job.id for job in jobs.jobs() if job.served] not in ([], [first.id]), 120)
        gate.open(2)
        text = kernel.wait(cell)
        assert f"Slurm job {first.id} has ended (CANCELLED): resuming" in text
        assert "[0-1] made" in text
        assert "loaded " in text
        assert "[0-1] went on at 5" in text
        assert "[0-1] 5" in kernel.run("%%mesh\nprint(int(step))")
        kernel.run("%mesh release")


@pytest.mark.slow
def test_a_cell_whose_time_is_up_goes_on_in_the_next_job(way: Slurm, tmp_path: Path) -> None:
    """The ranks save before the end; then the old job is given back, and nobody asks its nodes any more."""
    setup = """%%mesh
import os, torch
step, net = torch.zeros(1), torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"""
    stop = tmp_path / "stop"
    train = f"""%%mesh
began = int(step)
print("begins at", began)
while not os.path.exists({str(stop)!r}):
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    step += 1
print("went on after", began > 0)"""
    with opened(notebook_that_begins_with(setup, tmp_path)) as kernel:
        kernel.run("%load_ext monarch_nb")
        ask = f"%mesh reserve dev --procs 2 --on slurm --time 10m --resume --save {tmp_path}/saves --setup setup"
        assert "dev: 1 node × 2 procs, 2 ranks ready in " in kernel.run(ask)
        kernel.run(setup)
        cell = kernel.start(train)
        kernel.wait(cell, "[0-1] begins at 0")
        [first] = jobs.jobs()
        dev = attach("dev", pool=first.pool)
        passed_s = 600.0 - (dev.status().time_left_s or 0.0)
        leave(dev, 0.9 * passed_s)  # less than half of its time: ranks save now, however slow the machine is
        eventually(lambda: list((tmp_path / "saves").glob("*/save.json")))
        leave(dev, 1.0)
        eventually(lambda: [job.id for job in jobs.jobs() if job.served] not in ([], [first.id]), 120)
        assert first.id not in squeue("--format=%i").split(), "the old job was given back"
        kernel.wait(cell, "loaded ")
        stop.touch()
        text = kernel.wait(cell)
        assert "its time of " in text
        assert ": resuming" in text
        assert "loaded " in text
        assert "[0-1] went on after True" in text
        kernel.run("%mesh release")


HANDLES = """
import os, pathlib, signal, sys, threading
heard = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: heard.set())
pathlib.Path("{directory}/ready-" + os.environ["RANK"]).touch()
while not heard.wait(0.1):
    pass
"""
"""A script that saves by itself when Slurm warns, as Lightning's trainer does."""


@pytest.mark.slow
def test_ranks_save_when_slurm_warns_and_go_on(way: Slurm, tmp_path: Path) -> None:
    """No client asks: the allocator does. That they save when the job is cancelled, too, is told in test_slurm.py."""
    (tmp_path / "train.py").write_text(HANDLES.format(directory=str(tmp_path)))
    dev = reserve("dev", procs=2, on="slurm")
    dev.mesh.run("import torch\nstep = torch.full((1,), 12.0)")
    dev.mesh.autosave(tmp_path / "saves", at_end=True)
    [job] = jobs.jobs()
    script = dev.mesh.submit_script(str(tmp_path / "train.py"))
    eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    run("scancel", "--signal=USR1", job.id)
    save = tmp_path / "saves" / "0001"
    eventually((save / "save.json").exists)
    manifest = Manifest.read(save)
    assert damage(save, manifest) == {}
    assert "step" in {part.name for part in manifest.parts}
    script.result(TIMEOUT_S)  # its handlers have heard it, as Lightning's would
    assert dev.mesh.run("int(step)").values == [12, 12], "a warning ends nothing"
    dev.release()
