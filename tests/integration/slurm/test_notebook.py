"""The notebook for people with a Slurm, executed where one is."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from integration.kernels import Kernel
from integration.live import Gate, eventually
from integration.notebooks import execute
from monarch_nb.provision import jobs
from slurm import run, squeue


@pytest.mark.slow
def test_a_program_runs_again_and_again_in_one_job(slurm: Path, tmp_path: Path) -> None:
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
    assert squeue() == ""


@pytest.mark.slow
def test_a_cell_whose_job_is_taken_back_goes_on_in_the_next_one(slurm: Path, tmp_path: Path, gate: Gate) -> None:
    setup = "%%mesh\nimport torch\nstep = torch.zeros(1)\nprint('made')"
    path = tmp_path / "train.ipynb"
    cells = [nbformat.v4.new_code_cell(setup, metadata={"tags": ["setup"]})]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    kernel = Kernel(path)
    try:
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
        assert f"Slurm job {first.id} was cancelled (CANCELLED): resuming" in text
        assert "[0-1] made" in text
        assert "loaded " in text
        assert "[0-1] went on at 5" in text
        assert "[0-1] 5" in kernel.run("%%mesh\nprint(int(step))")
        kernel.run("%mesh release")
    finally:
        kernel.kill()
    assert squeue() == ""
