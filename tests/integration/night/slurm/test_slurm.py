"""Nodes of a real Slurm: asked for, waited for, used, found again, lost, and given back without a trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpus import FakeGpus
from integration.live import TIMEOUT_S, eventually
from integration.night.slurm.conftest import Slurm
from integration.night.slurm.controller import run, squeue
from integration.ways import AnyWay
from leaks import processes_of
from monarch_nb.cli.main import main
from monarch_nb.client.reservations.known.lists import list_everywhere
from monarch_nb.client.reservations.reserve import attach, reserve
from monarch_nb.client.reservations.reserving.jobs import end_job_of
from monarch_nb.config import HOME_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, NodeUnreachable, PoolError, UsageError
from monarch_nb.ground.interrupting import Interrupt, interruptible
from monarch_nb.provision import jobs, launchers


def has_gone() -> None:
    eventually(lambda: not squeue())


class TestSlurm(AnyWay):
    """What holds for every way holds for Slurm."""


def test_a_form_knows_the_partitions_and_what_slurm_would_do(slurm: Path) -> None:
    way = launchers.launcher("slurm")
    before = squeue("--states=all")
    assert [value for value, _ in launchers.options_of(way)[0].choices] == ["", "main", "short"]
    ask = launchers.Ask("dev", "slurm-dev", 2, 1, 0, 600.0, (), TrustPaths(slurm / "pools" / "slurm-dev"))
    assert launchers.offer_of(way, ask).text == "would run on n[1-2], partition main"
    with pytest.raises(CapacityError, match="node configuration is not available"):
        launchers.offer_of(way, replace(ask, nodes=9))
    with pytest.raises(UsageError, match="invalid partition specified: nope; there are main, short"):
        launchers.offer_of(way, replace(ask, arguments=("--partition=nope",)))
    assert squeue("--states=all") == before, "nothing was asked for"


def test_what_stands_after_the_dashes_is_for_sbatch_and_the_wall_time_is_the_limit(slurm: Path) -> None:
    flags = ["--partition=main", "--comment=a b"]
    dev = reserve("dev", nodes=2, procs=1, preload=[], time="20m", on="slurm", on_arguments=flags)
    assert squeue("--format=%P %D %k %l") == "main 2 a b 20:00"
    assert 18 * 60 < dev.status().time_left_s < 20 * 60
    assert sorted(dev.node_names[node] for node in range(2)) == ["n1", "n2"], "as Slurm calls them"
    dev.extend("21m")
    assert squeue("--format=%l") == "41:00"
    dev.release()
    has_gone()


def test_a_job_that_is_cancelled_says_so(slurm: Path) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    [job] = jobs.jobs()
    cell = dev.mesh.submit("import threading\nthreading.Event().wait()")
    eventually(lambda: cell.number)
    run("scancel", job.id)
    said = rf"Slurm job {job.id} was cancelled \(CANCELLED\): %mesh reserve dev --on slurm"
    with pytest.raises(PoolError, match=said):
        cell.result(TIMEOUT_S)  # it waits for no node that never comes back
    has_gone()
    with pytest.raises(PoolError, match=said):
        dev.mesh.run("rank")
    for ask in (dev.status, dev.mesh.status, lambda: list(dev.mesh.logs())):
        with pytest.raises(PoolError, match=said):
            ask()
    [(_, why)] = dev.mesh.stacks().groups
    assert re.match(said, why), why
    with pytest.raises(PoolError, match="was cancelled"):
        attach("dev")
    dev.release()


def test_gpus_are_those_that_slurm_gave(slurm: Path, fake_gpus: FakeGpus) -> None:
    dev = reserve("dev", gpus=2, preload=[], on="slurm")
    code = "import os\nos.environ['CUDA_VISIBLE_DEVICES']"
    assert dev.mesh.run(code).values == ["0,1"] * 2
    dev.release()
    has_gone()


def test_a_job_without_the_gpus_that_were_asked_for_is_ended(slurm: Path) -> None:
    """Its nodes find no GPU: Slurm counts what its configuration names."""
    with pytest.raises(CapacityError, match=r"has a GPU.*; Slurm job \d+ was asked for this, and is ended"):
        reserve("dev", gpus=4, preload=[], on="slurm")
    has_gone()
    assert list((slurm / "pools").iterdir()) == []


INSIDE = """
import os, subprocess
import monarch_nb
dev = monarch_nb.reserve("dev", nodes=2, procs=1, preload=[], on="slurm")
print(dev.mesh.run("import os\\nos.environ['SLURM_JOB_ID']").values == [os.environ["SLURM_JOB_ID"]] * 2)
dev.grow(3, into="main")
print(dev.mesh.run("import os\\nos.environ['SLURM_JOB_ID']").values == [os.environ["SLURM_JOB_ID"]] * 3)
print(len(set(dev.node_names)), "nodes")
print(len(subprocess.run(["squeue", "--noheader"], capture_output=True, text=True).stdout.splitlines()))
monarch_nb.attach("dev").release()
print(subprocess.run(["squeue", "--noheader", "--steps", "--format=%j"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.slow
def test_an_allocation_that_is_there_is_used(slurm: Path) -> None:
    words = ["salloc", "--quiet", "--nodes=3", "--exclusive", sys.executable, "-c", INSIDE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3 * TIMEOUT_S, check=False)
    assert done.stdout.split("\n")[:5] == ["True", "True", "3 nodes", "1", ""], done.stdout + done.stderr
    has_gone()


def test_a_job_that_waits_is_listed(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has died in the queue."""
    run("sbatch", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 600")
    eventually(lambda: squeue("--format=%t") == "R")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "end", lambda *_: None)
        with pytest.raises(CapacityError, match="without success"):
            reserve("dev", procs=1, on="slurm", wait=0.1)
    [line] = list_everywhere().unheld
    assert re.fullmatch(
        r"dev: Slurm job \d+ waits \(.*; the same %mesh reserve waits for it, %mesh release .*", line
    ), line
    assert end_job_of("dev", None, print)
    assert squeue("--format=%j") == "wrap"
    run("scancel", "--user=root")
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
    config = "PartitionConfig: the partition does not give so many nodes, so much of each, or so much time"
    never = f"would wait for ever: ({config}|PartitionNodeLimit: the partition has not so many)"
    for asked in ({"nodes": 9, "procs": 1}, {"nodes": 9, "procs": 2}, {"procs": 200}):
        with pytest.raises(CapacityError, match=never):
            reserve("dev", **asked, on="slurm")
    with pytest.raises(CapacityError, match="Requested node configuration is not available"):
        reserve("dev", gpus=5, on="slurm")
    with pytest.raises(CapacityError, match=f"{config}|PartitionTimeLimit: the partition does not give so much time"):
        reserve("dev", procs=1, time="1h", on="slurm", on_arguments=["--partition=short"])
    with pytest.raises(UsageError, match="nvalid partition name specified; there are main, short"):
        reserve("dev", procs=1, on="slurm", on_arguments=["--partition=no-such"])
    with pytest.raises(UsageError, match="unrecognized option '--gibberish=4'"):
        reserve("dev", procs=1, on="slurm", on_arguments=["--gibberish=4"])
    assert list((slurm / "pools").iterdir()) == []


def test_a_job_whose_allocator_dies_shows_its_log(slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho the module is not here\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(launchers.sys, "executable", str(python))
    with pytest.raises(PoolError, match=r"(?s)Slurm job \d+.*its log ends with\n.*the module is not here"):
        reserve("dev", procs=1, on="slurm")
    assert list((slurm / "pools").iterdir()) == []


def test_a_node_that_failed_is_replaced_by_one_of_another_job(
    slurm: Path, way: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_why_a_node_without_ranks_of_main_was_lost_is_said(slurm: Path, way: Slurm) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    dev.grow(2)
    lost, [_, second] = dev.node_names[1], jobs.jobs()
    way.lose(lost)
    eventually(lambda: any(lost in absence for absence in dev.status(memory=False).absences))
    said = rf"^{lost} unreachable.*; Slurm job {second.id} ended: a node failed \(NODE_FAIL, .*%mesh replace dev asks"
    [absence] = dev.status(memory=False).absences
    assert re.match(said, absence), absence
    [away] = (info.absence for info in dev.meshes["grown"].status() if info.absence)
    assert re.match(said, away), away
    dev.release()
    has_gone()


def test_when_one_of_two_jobs_is_cancelled_the_nodes_of_the_other_go_on(slurm: Path) -> None:
    """Here the first, for which the pool was made."""
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    dev.grow(2, into="main")
    dev.mesh.run("kept = rank")
    first, second = jobs.jobs()
    run("scancel", first.id)
    said = f"; Slurm job {first.id} was cancelled (CANCELLED): %mesh replace dev asks for another"
    eventually(lambda: any(said in info.absence for info in dev.mesh.status()))
    with pytest.raises(NodeUnreachable, match=re.escape(said)):
        dev.mesh.run("kept")
    assert dev.mesh.select([1]).run("kept").values == [1]
    again = attach("dev")
    assert again.mesh.select([1]).run("kept").values == [1]
    assert [replaced.ranks for replaced in again.replace()] == [(0,)]
    assert again.mesh.run("rank").values == [0, 1]
    assert [job.id == second.id for job in jobs.jobs()] == [True, False], "the first is forgotten"
    again.release()
    has_gone()


def test_ctrl_c_while_more_nodes_are_waited_for_leaves_all_as_it_was(slurm: Path) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    dev.mesh.run("kept = 42")
    run("sbatch", "--nodes=3", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 600")
    eventually(lambda: squeue("--format=%t").split() == ["R", "R"])
    interrupt, said, ended = Interrupt(), [], []

    def hear(text: str) -> None:
        said.append(text)
        if "waits (" in text:
            interrupt.set()

    def ask() -> None:
        with interruptible(interrupt):
            try:
                dev.grow(2, into="main", progress=hear)
            except KeyboardInterrupt:
                ended.append(squeue("--format=%j"))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(TIMEOUT_S)
    assert [sorted(left.split()) for left in ended] == [["monarch-nb-dev", "wrap"]], "the new job is gone"
    assert dev.mesh.run("kept").values == [42]
    dev.release()
    run("scancel", "--user=root")
    has_gone()


def test_a_job_for_more_nodes_whose_client_died_is_listed_and_ends_with_the_others(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    run("sbatch", "--nodes=3", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 600")
    eventually(lambda: squeue("--format=%t").split() == ["R", "R"])
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "end", lambda *_: None)
        with pytest.raises(CapacityError, match="without success"):
            dev.grow(2, into="main", wait=0.1)
    [line] = list_everywhere().unheld
    assert re.fullmatch(r"dev: Slurm job \d+ waits \(.*; the same %mesh grow or replace waits for it, .*", line), line
    run("scancel", "--name=wrap")
    assert len(dev.grow(2, into="main").joined) == 1
    assert len(squeue().splitlines()) == 2, "it was not asked for once more"
    dev.release()
    has_gone()


def test_nodes_that_came_when_their_client_was_gone_go_by_themselves_and_the_others_stay(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    [first] = jobs.jobs()
    monkeypatch.setattr(launchers, "UNHELD_S", 10.0)
    jobs.add(first, 1, 0.0, None, lambda _: None)
    eventually(lambda: squeue("--format=%i") == first.id)
    eventually(lambda: jobs.jobs() == [first])
    assert attach("dev").mesh.run("40 + 2").values == [42]
    dev.release()
    has_gone()


def test_jobs_that_could_not_be_ended_are_said_and_ended_by_the_next_command(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text("#!/bin/sh\necho 'scancel: error: Kill job error' >&2\nexit 1\n")
    scancel.chmod(0o755)
    dev = reserve("dev", procs=1, preload=[], on="slurm")
    dev.grow(2)
    dev.stop_mesh("grown")
    first, second = jobs.jobs()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        said = str(dev.shrink(1))
        assert f"Slurm job {second.id} could not be ended (Slurm did not cancel job {second.id}: Kill job error" in said
        [line] = list_everywhere().unheld
        assert line.endswith("%mesh shrink dev --nodes 1 ends it")
    dev.shrink(1)
    assert jobs.jobs() == [first]
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert main(["release", "dev"]) == 1
        said = capsys.readouterr().err
        assert f"dev: its ranks have ended, but Slurm job {first.id} could not be ended (" in said
        assert "monarch-nb release dev again ends it" in said
    assert main(["release", "dev"]) == 0
    assert capsys.readouterr().out == f"dev: no node of it is held; ended Slurm job {first.id}\n"
    has_gone()


def test_the_time_is_that_of_the_job_which_ends_first(slurm: Path) -> None:
    dev = reserve("dev", procs=1, preload=[], time="40m", on="slurm")
    assert not dev.grow(2, into="main").ends_first
    assert sorted(squeue("--format=%l").split()) == ["40:00", "40:00"]
    said = dev.grow(3, into="main", time="20m").ends_first
    last = dev.node_names[2]
    assert re.match(rf"Slurm job \d+ with {last} ends first: dev is held for \d+ min .* now, until ", said), said
    assert f"%mesh shrink dev --node {last} --into main goes on without" in said
    assert dev.status().time_left_s < 20 * 60
    dev.extend("5m")
    assert sorted(squeue("--format=%l").split()) == ["25:00", "40:00", "40:00"], "the others end late enough"
    dev.shrink(node=[last], into="main")
    assert 30 * 60 < dev.status().time_left_s < 40 * 60, "as long as before"
    dev.release()
    has_gone()


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
def test_slurm_ends_an_srun_that_hangs(slurm: Path) -> None:
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
def test_an_srun_that_hangs_in_an_allocation_that_is_there_is_ended(slurm: Path) -> None:
    """There is no job of ours whose end would be its end."""
    words = ["salloc", "--quiet", "--nodes=1", "--exclusive", sys.executable, "-c", STEP]
    subprocess.run(words, timeout=3 * TIMEOUT_S, check=True)
    eventually(lambda: not processes_of(Path(os.environ[HOME_VARIABLE])))
    has_gone()


def test_scripts_get_each_signal_of_slurm_once(slurm: Path, tmp_path: Path) -> None:
    """Slurm tells the processes that it has started; the others get the signals from the allocator."""
    heard = tmp_path / "heard"
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, signal, sys\n"
        "heard = pathlib.Path(sys.argv[1])\n"
        "def handler(number, frame):\n"
        "    with heard.open('a') as file:\n"
        "        file.write(f'{signal.Signals(number).name} ')\n"
        "    if number == signal.SIGTERM:\n"
        "        sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, handler)\n"
        "signal.signal(signal.SIGUSR1, handler)\n"
        "heard.touch()\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    dev = reserve("dev", procs=1, on="slurm")
    dev.mesh.submit_script(str(script), str(heard))
    eventually(heard.exists)
    [job] = jobs.jobs()
    run("scancel", "--signal=USR1", job.id)
    eventually(lambda: heard.read_text() == "SIGUSR1 ")
    run("scancel", "--batch", "--signal=USR1", job.id)  # as with --signal=B:USR1@600
    eventually(lambda: heard.read_text() == "SIGUSR1 SIGUSR1 ")
    run("scancel", job.id)
    has_gone()
    dev.release()
    assert heard.read_text() == "SIGUSR1 SIGUSR1 SIGTERM "


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
    slurm: Path, tmp_path: Path, how: list[str], says: str
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
