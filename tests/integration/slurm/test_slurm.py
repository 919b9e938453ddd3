"""Nodes of a real Slurm: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpus import FakeGpus
from integration.kernels import Kernel
from integration.live import TIMEOUT_S, eventually
from leaks import processes_of
from monarch_nb.client.reservations.reservation import attach, reserve
from monarch_nb.config import HOME_VARIABLE
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.notebook.session import attached_line
from monarch_nb.provision import jobs, launchers
from slurm import run, squeue

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * rank
dist.all_reduce(total)
total.item()
"""


def has_gone() -> None:
    eventually(lambda: not squeue())


@pytest.mark.slow
@pytest.mark.quick
def test_a_notebook_has_nodes_and_a_new_kernel_finds_them(slurm: Path, open_kernel: Callable[[], Kernel]) -> None:
    kernel = open_kernel()
    kernel.run("%load_ext monarch_nb")
    shown = kernel.run(
        "%mesh reserve dev --nodes 2 --procs 1 --on slurm --time 20m -- --partition=main --comment='a b'"
    )
    assert shown.startswith("dev: 2 nodes × 1 proc, 2 ranks ready in "), shown
    assert "19 min" in shown, "the wall time is the reservation's limit"
    assert squeue("--format=%P %D %k %l") == "main 2 a b 20:00"
    assert kernel.run(f"%%mesh\n{ALL_REDUCE}") == "Out[0-1]: 1.0"
    kernel.run("%%mesh\nkept = rank")
    kernel.restart()
    assert kernel.run("%load_ext monarch_nb").startswith("attached to dev: 2 nodes × 1 proc, 2 ranks alive")
    assert "0" in kernel.run("%%mesh -t 0\nkept")
    assert "21 min more" in kernel.run("%mesh extend 21m")
    assert squeue("--format=%l") == "41:00"
    again = kernel.run("%mesh reserve dev --nodes 2 --procs 1 --on slurm")
    assert again.startswith("dev: already held, 2 ranks alive"), again
    assert "already, with 2 nodes × 1 proc" in kernel.run("%mesh reserve dev --nodes 3 --procs 1 --on slurm")
    assert "2 nodes" in kernel.run("%mesh list")
    assert "released 2 nodes × 1 proc" in kernel.run("%mesh release dev")
    has_gone()
    assert list((slurm / "pools").iterdir()) == []


@pytest.mark.slow
def test_a_node_that_fails_is_named_and_the_other_goes_on(slurm: Path) -> None:
    dev = reserve("dev", nodes=2, procs=1, preload=[], on="slurm")
    names = [dev._connections[node].name for node in range(2)]
    assert sorted(names) == ["n1", "n2"], "nodes are called what Slurm calls them"
    lost = names[1]
    dev.mesh.run("kept = 42")
    run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=fire")
    eventually(lambda: any(f"; {lost} " in info.absence for info in dev.mesh.status()))
    assert "; " + lost in attached_line(attach(dev.name))
    assert dev.mesh.select([0]).run("kept").values == [42]
    dev.release()
    has_gone()
    # Slurm gave the node no time to clean up; and without cgroups it loses processes whose parent has died.
    home = Path(os.environ[HOME_VARIABLE])
    for process in processes_of(home):
        os.kill(process.pid, signal.SIGKILL)
    shutil.rmtree(home / "slurm-dev")


def test_a_job_that_is_cancelled_says_so(slurm: Path) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    [job] = jobs.jobs()
    run("scancel", job.id)
    has_gone()
    with pytest.raises(
        PoolError, match=rf"Slurm job {job.id} was cancelled \(CANCELLED\): %mesh reserve dev --on slurm"
    ):
        dev.status()
    with pytest.raises(PoolError, match="was cancelled"):
        attach("dev")
    dev.release()


def test_gpus_are_those_that_slurm_gave(slurm: Path, fake_gpus: FakeGpus) -> None:
    dev = reserve("dev", gpus=2, preload=[], on="slurm")
    code = "import os\nos.environ['CUDA_VISIBLE_DEVICES']"
    assert dev.mesh.run(code).values == ["0,1"] * 2
    dev.release()
    has_gone()


INSIDE = """
import os, subprocess
import monarch_nb
dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[], on="slurm")
print(dev.mesh.run("import os\\nos.environ['SLURM_JOB_ID']").values == [os.environ["SLURM_JOB_ID"]] * 2)
print(len(subprocess.run(["squeue", "--noheader"], capture_output=True, text=True).stdout.splitlines()))
monarch_nb.attach("dev").release()
print(subprocess.run(["squeue", "--noheader", "--steps", "--format=%j"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.slow
def test_an_allocation_that_is_there_is_used(slurm: Path) -> None:
    words = ["salloc", "--quiet", "--nodes=2", "--exclusive", sys.executable, "-c", INSIDE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False)
    assert done.stdout.split("\n")[:3] == ["True", "1", ""], done.stdout + done.stderr
    has_gone()


def test_ctrl_c_in_the_queue_cancels_the_job(slurm: Path) -> None:
    run("sbatch", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 600")
    eventually(lambda: squeue("--format=%t") == "R")
    interrupt, said, ended = Interrupt(), [], []

    def hear(text: str) -> None:
        said.append(text)
        if "starts at about" in text:
            interrupt.set()

    def ask() -> None:
        with interruptible(interrupt):
            try:
                reserve("dev", procs=1, on="slurm", progress=hear)
            except KeyboardInterrupt:
                ended.append(squeue("--format=%j"))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(TIMEOUT_S)
    assert ended == ["wrap"], "only the other job is in the queue"
    assert re.search(r"waits \((Resources|Priority): .*\), starts at about ", said[-1]), said
    assert list((slurm / "pools").iterdir()) == []
    run("scancel", "--user=root")
    has_gone()


def test_what_slurm_never_gives_is_refused_and_forgotten(slurm: Path) -> None:
    with pytest.raises(CapacityError, match=r"would wait for ever: PartitionNodeLimit: the partition has not so many"):
        reserve("dev", nodes=9, procs=1, on="slurm")
    with pytest.raises(CapacityError, match="Requested node configuration is not available"):
        reserve("dev", gpus=5, on="slurm")
    with pytest.raises(CapacityError, match="PartitionTimeLimit: the partition does not give so much time"):
        reserve("dev", procs=1, time="1h", on="slurm", on_arguments=["--partition=short"])
    with pytest.raises(UsageError, match="nvalid partition name specified; there are main, short"):
        reserve("dev", procs=1, on="slurm", on_arguments=["--partition=no-such"])
    assert list((slurm / "pools").iterdir()) == []


def test_a_job_whose_allocator_dies_shows_its_log(slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho the module is not here\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(launchers.sys, "executable", str(python))
    with pytest.raises(PoolError, match=r"(?s)Slurm job \d+.*its log ends with\n.*the module is not here"):
        reserve("dev", procs=1, on="slurm")
    assert list((slurm / "pools").iterdir()) == []


def test_a_job_whose_client_is_gone_ends_by_itself(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "UNHELD_S", 2.0)
    ask = lambda pool, paths: launchers.Ask("dev", pool, 2, 1, 0, 0.0, (), paths)  # noqa: E731
    job, is_new = jobs.obtain("slurm", ask, "slurm-dev", None, lambda _: None)
    assert is_new
    has_gone()
    assert not job.paths.directory.exists(), "the job has removed its keys"
