"""The notebook for people with a Slurm, executed where one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.notebooks import execute
from slurm import squeue


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
