"""Nodes of a real Slurm: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpus import FakeGpus
from integration.live import TIMEOUT_S, eventually
from integration.night.slurm.conftest import Slurm
from integration.night.slurm.controller import run, squeue
from integration.ways import HEARS, AnyQueue, AnyWay
from leaks import processes_of
from monarch_nb.cli.main import main
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.config import HOME_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError, UsageError
from monarch_nb.provision import jobs, launchers


def has_gone() -> None:
    eventually(lambda: not squeue())


class TestSlurm(AnyWay, AnyQueue):
    """What holds for every way holds for Slurm."""


def test_a_form_knows_the_partitions_and_what_slurm_would_do(way: Slurm) -> None:
    engine = launchers.launcher("slurm")
    before = squeue("--states=all")
    assert [value for value, _ in launchers.options_of(engine)[0].choices] == ["", "main", "short"]
    ask = launchers.Ask("dev", "slurm-dev", 2, 1, 0, 600.0, (), TrustPaths(way.pools / "slurm-dev"))
    assert launchers.offer_of(engine, ask).text == "would run on n[1-2], partition main"
    with pytest.raises(CapacityError, match="node configuration is not available"):
        launchers.offer_of(engine, replace(ask, nodes=9))
    with pytest.raises(UsageError, match="invalid partition specified: nope; there are main, short"):
        launchers.offer_of(engine, replace(ask, arguments=("--partition=nope",)))
    assert squeue("--states=all") == before, "nothing was asked for"


def test_what_stands_after_the_dashes_is_for_sbatch_and_the_wall_time_is_the_limit(way: Slurm) -> None:
    flags = ["--partition=main", "--comment=a b"]
    dev = reserve("dev", nodes=2, procs=1, preload=[], time="20m", on="slurm", on_arguments=flags)
    assert squeue("--format=%P %D %k %l") == "main 2 a b 20:00"
    assert 18 * 60 < dev.status().time_left_s < 20 * 60
    assert sorted(dev.node_names[node] for node in range(2)) == ["n1", "n2"], "as Slurm calls them"
    dev.extend("21m")
    assert squeue("--format=%l") == "41:00"
    dev.release()


def test_gpus_are_those_that_slurm_gave(way: Slurm, fake_gpus: FakeGpus) -> None:
    dev = reserve("dev", gpus=2, preload=[], on="slurm")
    code = "import os\nos.environ['CUDA_VISIBLE_DEVICES']"
    assert dev.mesh.run(code).values == ["0,1"] * 2
    dev.release()


def test_a_job_without_the_gpus_that_were_asked_for_is_ended(way: Slurm) -> None:
    """Its nodes find no GPU: Slurm counts what its configuration names."""
    with pytest.raises(CapacityError, match=r"has a GPU.*; Slurm job \d+ was asked for this, and is ended"):
        reserve("dev", gpus=4, preload=[], on="slurm")


def test_what_slurm_says_of_its_own_tasks_is_not_said_of_ranks(way: Slurm) -> None:
    dev = reserve("dev", nodes=2, procs=2, preload=[], on="slurm")
    asks = "import os\nint(os.environ.get('SLURM_PROCID', os.environ['RANK']))"
    assert dev.mesh.run(asks).values == [0, 1, 2, 3]
    of_tasks = "[name for name in os.environ if name.startswith('PMI') or name in ('SLURM_GTIDS', 'SLURM_TASK_PID')]"
    assert dev.mesh.run(of_tasks).values == [[]] * 4
    dev.release()


INSIDE = """
import os, subprocess
import monarch_nb
dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[], on="slurm")
print(dev.mesh.run("import os\\nos.environ['SLURM_JOB_ID']").values == [os.environ["SLURM_JOB_ID"]] * 2)
dev.grow(3)
print(dev.meshes["grown"].run("import os\\nos.environ['SLURM_JOB_ID']").values == [os.environ["SLURM_JOB_ID"]] * 3)
print(len(set(dev.node_names)), "nodes")
print(len(subprocess.run(["squeue", "--noheader"], capture_output=True, text=True).stdout.splitlines()))
monarch_nb.attach("dev").release()
print(subprocess.run(["squeue", "--noheader", "--steps", "--format=%j"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.slow
def test_an_allocation_that_is_there_is_used(way: Slurm) -> None:
    words = ["salloc", "--quiet", "--nodes=3", "--exclusive", sys.executable, "-c", INSIDE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False)
    assert done.stdout.split("\n")[:5] == ["True", "True", "3 nodes", "1", ""], done.stdout + done.stderr


def test_what_slurm_never_gives_is_refused_and_forgotten(way: Slurm) -> None:
    never = "would wait for ever: Partition(Config|NodeLimit)"
    for asked in ({"nodes": 9, "procs": 1}, {"nodes": 9, "procs": 2}, {"procs": 200}):
        with pytest.raises(CapacityError, match=never):
            reserve("dev", **asked, on="slurm")
    with pytest.raises(CapacityError, match="Requested node configuration is not available"):
        reserve("dev", gpus=5, on="slurm")
    with pytest.raises(CapacityError, match=r"would wait for ever: Partition(Config|TimeLimit)"):
        reserve("dev", procs=1, time="1h", on="slurm", on_arguments=["--partition=short"])
    with pytest.raises(UsageError, match="nvalid partition name specified; there are main, short"):
        reserve("dev", procs=1, on="slurm", on_arguments=["--partition=no-such"])
    with pytest.raises(UsageError, match="unrecognized option '--gibberish=4'"):
        reserve("dev", procs=1, on="slurm", on_arguments=["--gibberish=4"])


def test_a_node_that_failed_is_replaced_by_one_of_another_job(way: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "END_S", 2.0)  # a node that was lost never says that it has ended
    dev = reserve("dev", nodes=2, procs=1, preload=[], on="slurm")
    lost = dev.node_names[1]
    dev.mesh.run("kept = 42")
    way.lose(lost)
    eventually(lambda: any(f"; {lost} " in info.absence for info in dev.mesh.status()))
    with pytest.raises(NodeUnreachable, match="%mesh replace asks slurm for another in its place"):
        dev.mesh.run("1")
    [replaced] = dev.replace()
    assert (replaced.number, replaced.old, replaced.ranks) == (1, lost, (1,))
    assert replaced.new not in ("n1", "n2")
    assert squeue("--format=%D").split() == ["1", "1"], "the first job goes on without the node"
    assert dev.mesh.select([0]).run("kept").values == [42]
    assert dev.mesh.run("rank").values == [0, 1]
    dev.release()
    has_gone()
    way.clean_up(lost)


def test_a_job_that_could_not_be_ended_is_said_and_ended_by_the_next_command(
    way: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text("#!/bin/sh\necho 'scancel: error: Kill job error' >&2\nexit 1\n")
    scancel.chmod(0o755)
    reserve("dev", procs=1, preload=[], on="slurm")
    [job] = jobs.jobs()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert main(["release", "dev"]) == 1
        said = capsys.readouterr().err
        assert f"dev: its ranks have ended, but Slurm job {job.id} could not be ended (" in said
        assert "monarch-nb release dev again ends it" in said
    assert main(["release", "dev"]) == 0
    assert capsys.readouterr().out == f"dev: no node of it is held; ended Slurm job {job.id}\n"


@pytest.fixture
def hanging_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's srun does not end with its step, as was seen of it."""
    hanging = tmp_path / "srun"
    hanging.write_text(f"""\
#!{sys.executable} -IS
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
subprocess.run([{shutil.which("srun")!r}, *sys.argv[1:]])
while True:
    signal.pause()
""")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("hanging_srun")
def test_slurm_ends_an_srun_that_hangs(way: Slurm) -> None:
    """One was left behind once, when its job was cancelled."""
    home = Path(os.environ[HOME_VARIABLE])
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    assert "srun" in str(processes_of(home))
    dev.release()
    has_gone()
    eventually(lambda: not processes_of(home))


STEP = """
import monarch_nb
monarch_nb.reserve("dev", procs=1, preload=[], on="slurm").release()
"""


@pytest.mark.usefixtures("hanging_srun")
def test_an_srun_that_hangs_in_an_allocation_that_is_there_is_ended(way: Slurm) -> None:
    """There is no job of ours whose end would be its end."""
    words = ["salloc", "--quiet", "--nodes=1", "--exclusive", sys.executable, "-c", STEP]
    subprocess.run(words, timeout=3 * TIMEOUT_S, check=True)
    eventually(lambda: not processes_of(Path(os.environ[HOME_VARIABLE])))


def test_scripts_get_each_signal_of_slurm_once(way: Slurm, tmp_path: Path) -> None:
    """Slurm tells the processes that it has started; the others get the signals from the allocator."""
    heard, script = tmp_path / "heard", tmp_path / "train.py"
    heard.mkdir()
    script.write_text(HEARS)
    dev = reserve("dev", procs=1, on="slurm")
    dev.mesh.submit_script(str(script), str(heard))
    eventually((heard / "0").exists)
    [job] = jobs.jobs()
    run("scancel", "--signal=USR1", job.id)
    eventually(lambda: (heard / "0").read_text() == "SIGUSR1 ")
    run("scancel", "--batch", "--signal=USR1", job.id)  # as with --signal=B:USR1@600
    eventually(lambda: (heard / "0").read_text() == "SIGUSR1 SIGUSR1 ")
    run("scancel", job.id)
    has_gone()
    dev.release()
    assert (heard / "0").read_text() == "SIGUSR1 SIGUSR1 SIGTERM "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["scancel", "--signal=TERM"], "all nodes of the pool 'slurm-dev' have ended, and their job with them: "),
        (
            ["scontrol", "requeue"],
            r"Slurm job \d+ lost its nodes, and waits again \(.*%mesh reserve dev .* waits",
        ),
    ],
)
def test_a_job_that_is_taken_back_saves_and_says_what_became_of_it(
    way: Slurm, tmp_path: Path, how: list[str], says: str
) -> None:
    """With --signal=TERM@600, and where a preempted job has time, Slurm holds that it has ended well: nothing of it
    stays."""
    dev = reserve("dev", procs=1, on="slurm", on_arguments=["--requeue"])
    dev.mesh.autosave(tmp_path / "saves", at_end=True)
    train = "    model(torch.rand(8, 4)).sum().backward()\n    optimizer.step()\n    step += 1\n"
    make = "import torch\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    cell = dev.mesh.submit(f"{make}step = 0\nwhile True:\n{train}")
    eventually(lambda: cell.number)
    [job] = jobs.jobs()
    run(*how, job.id)
    with pytest.raises(PoolError, match=says):
        cell.result(TIMEOUT_S)
    dev.release()
    has_gone()
    assert (tmp_path / "saves" / "0001" / "save.json").exists()
