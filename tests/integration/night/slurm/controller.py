"""A real Slurm on this machine: nodes n1 to n4, each a daemon of its own, without systemd. Needs root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

NODES = ("n1", "n2", "n3", "n4")
START_S = 60.0


@cache
def why_no_slurm() -> str:
    """Return why this machine can not have a Slurm; empty when it can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    for command in ("munged", "slurmctld", "slurmd", "srun", "salloc"):
        if shutil.which(command) is None:
            return f"there is no {command} (apt install slurm-wlm munge)"
    return ""


def squeue(*words: str) -> str:
    """Return what the queue says of living jobs."""
    return subprocess.run(["squeue", "--noheader", *words], capture_output=True, text=True, check=True).stdout.strip()


def run(*words: str) -> str:
    """Run one of Slurm's commands."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def cluster(directory: Path) -> Iterator[None]:
    """Have a Slurm of four nodes of 4 CPUs and 4 GPUs, which this process's commands use; partitions `main` and `short`
    (2 nodes, 10 minutes)."""
    for name in ("dev", "state", "spool"):
        (directory / name).mkdir()
    for number in range(4):
        os.mknod(directory / "dev" / f"nvidia{number}", 0o600 | 0o020000, os.makedev(1, 3))
    key = directory / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    conf = directory / "slurm.conf"
    conf.write_text(_conf(directory))
    (directory / "gres.conf").write_text(f"AutoDetect=off\nNodeName=n[1-4] Name=gpu File={directory}/dev/nvidia[0-3]\n")
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={directory}/munge.sock"]
    munge += [f"--{name}-file={directory}/munged.{name}" for name in ("pid", "log", "seed")]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as daemons:
        patch.setenv("SLURM_CONF", str(conf))
        daemons.enter_context(_daemon(munge, directory))
        _until(lambda: (directory / "munge.sock").exists(), directory)
        daemons.enter_context(_daemon(["slurmctld", "-D", "-f", str(conf)], directory))
        for node in NODES:
            daemons.enter_context(_daemon(["slurmd", "-D", "-N", node, "-f", str(conf)], directory))
        _until(lambda: _idle_nodes() == len(NODES), directory)
        yield
        subprocess.run(["scancel", "--user=root"], check=True)
        _until(lambda: not squeue(), directory)


def _conf(directory: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    first, *others = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:4"
        for node, port in zip(NODES, others, strict=True)
    )
    return f"""\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_min_interval=0
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
MpiDefault=none
GresTypes=gpu
{nodes}
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n[1-2] MaxTime=10 MaxNodes=2 State=UP
"""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def _daemon(words: list[str], directory: Path) -> Iterator[None]:
    """Run a daemon in the foreground; it and no other is ended."""
    with (directory / "daemons.log").open("ab") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle_nodes() -> int:
    said = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=main", "--states=idle"],
        capture_output=True,
        text=True,
        check=False,
    )
    return len(said.stdout.splitlines())


def _until(is_so: Callable[[], bool], directory: Path) -> None:
    """Wait until something is so; Slurm tells nobody."""
    deadline = time.monotonic() + START_S
    while not is_so():
        assert time.monotonic() < deadline, (directory / "daemons.log").read_text()[-4000:]
        time.sleep(0.05)
