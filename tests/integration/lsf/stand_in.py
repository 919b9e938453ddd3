"""A stand-in for LSF: its commands as this project uses them, over processes of this machine as hosts h1 to h4.

It was written after IBM's documentation of LSF 10.1, not beside an LSF. Each job has its hosts for itself.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

HOSTS = ("h1", "h2", "h3", "h4")
COMMANDS = ("bsub", "bjobs", "bkill", "bmod", "bhosts", "bqueues", "blaunch")
_STATE, _HOST = "FAKE_LSF_STATE", "FAKE_LSF_HOST"


@contextmanager
def cluster(directory: Path) -> Iterator[None]:
    """Have the commands first in the PATH; what is known of jobs lies in `directory`."""
    (directory / "bin").mkdir()
    for name in COMMANDS:
        path = directory / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}")
        patch.setenv(_STATE, str(directory))
        yield


def bjobs(*, directory: Path) -> str:
    """Return the numbers of the jobs that wait or run."""
    return " ".join(path.name for path in _jobs(directory) if _state(path) in ("PEND", "RUN"))


def lose(host: str, directory: Path) -> None:
    """Take a host away, with all that runs there."""
    (directory / f"lost-{host}").touch()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{_HOST}={host}\0{_STATE}={directory}".encode() in (entry / "environ").read_bytes() + b"\0":
                os.kill(int(entry.name), signal.SIGKILL)


# ---- the commands ----


def _bsub(directory: Path, words: list[str]) -> str:
    told = dict(zip(words[::2], words[1::2], strict=False))
    if (queue := told.get("-q", "normal")) not in ("normal", "gpu"):
        sys.exit(f"{queue}: No such queue. Job not submitted.")
    per_host = re.search(r"span\[ptile=(\d+)\]", told["-R"])
    assert per_host, told
    count = int(told["-n"]) // int(per_host[1])
    if count > len(HOSTS):
        sys.exit("Too many processors requested. Job not submitted.")
    number = len(_jobs(directory)) + 1
    job = directory / "jobs" / str(number)
    (job / "tasks").mkdir(parents=True)
    (job / "told").write_text(" ".join(words))
    (job / "wanted").write_text(f"{count} {per_host[1]}")
    (job / "limit").write_text(told.get("-W", ""))
    (job / "script").write_text(sys.stdin.read())
    return f"Job <{number}> is submitted to queue <{queue}>."


def _schedule(directory: Path) -> None:
    """Begin the jobs that wait and for which there are hosts."""
    for job in _jobs(directory):
        if _state(job) != "PEND":
            continue
        taken = {host for each in _jobs(directory) if _state(each) == "RUN" for host in _hosts(each)}
        free = [host for host in HOSTS if host not in taken and not (directory / f"lost-{host}").exists()]
        count, slots = (job / "wanted").read_text().split()
        if len(free) < int(count):
            continue
        (job / "hosts").write_text(" ".join(f"{host} {slots}" for host in free[: int(count)]))
        (job / "began").write_text(str(time.time()))
        environment = os.environ | {
            "LSB_JOBID": job.name,
            "LSB_MCPU_HOSTS": (job / "hosts").read_text(),
            "LSB_SUB_HOST": "localhost",
        }
        command = [sys.executable, __file__, "job", str(job)]
        null = subprocess.DEVNULL
        with subprocess.Popen(
            [sys.executable, "-c", "import os, sys\nif os.fork() == 0: os.execv(sys.argv[1], sys.argv[1:])", *command],
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
            env=environment,
        ):
            pass


def _run_job(job: Path) -> None:
    with subprocess.Popen(["bash", job / "script"], start_new_session=True) as process:
        (job / "tasks" / str(process.pid)).touch()
        code = process.wait()
    (job / "code").write_text(str(code))


def _blaunch(directory: Path, words: list[str]) -> None:
    host, shell, *command = words
    assert shell == "-no-shell", words
    assert host in os.environ["LSB_MCPU_HOSTS"].split(), f"{host} is not in the allocation"
    environment = {_HOST: host, **{name: value for name, value in os.environ.items() if name != _HOST}}
    environment = {name: value for name, value in environment.items() if name != _STATE}
    with subprocess.Popen(
        command, start_new_session=True, env={_HOST: host, _STATE: str(directory), **environment}
    ) as process:
        signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
        job = directory / "jobs" / os.environ["LSB_JOBID"]
        if job.exists():
            (job / "tasks" / str(process.pid)).touch()
        code = process.wait()
    sys.exit(128 - code if code < 0 else code)


def _bjobs(directory: Path, words: list[str]) -> str:
    *_, fields, number = words
    assert fields.endswith("delimiter='|'"), words
    job = directory / "jobs" / number
    if not job.exists():
        sys.exit(f"Job <{number}> is not found")
    limit = (job / "limit").read_text()
    facts = {"jobid": number, "stat": _state(job), "runtimelimit": f"{limit}.0/h1" if limit else "-"}
    if facts["stat"] == "PEND":
        facts["pend_reason"] = "Job slot limit reached: 4 hosts;"
        facts["estimated_start_time"] = "Nov 23 14:02"
    elif (job / "hosts").exists():
        facts["exec_host"] = ":".join(_hosts(job))
        left_s = float((job / "began").read_text()) + 60 * int(limit or 0) - time.time()
        facts["time_left"] = f"{int(left_s // 3600)}:{int(left_s % 3600 // 60)} L" if limit else "-"
    if (job / "reason").exists():
        facts["exit_reason"] = (job / "reason").read_text()
    if (job / "code").exists() and facts["stat"] == "EXIT":
        facts["exit_code"] = (job / "code").read_text()
    return "|".join(facts.get(name, "-") for name in fields.split()[:-1])


def _bkill(directory: Path, words: list[str]) -> str:
    [number] = words
    job = directory / "jobs" / number
    if not job.exists():
        sys.exit(f"Job <{number}>: No matching job found")
    if _state(job) in ("DONE", "EXIT"):
        sys.exit(f"Job <{number}>: Job has already finished")
    (job / "reason").write_text("TERM_OWNER: job killed by owner")
    if not (job / "began").exists():
        (job / "code").write_text("0")
    for task in (job / "tasks").iterdir():
        with suppress(ProcessLookupError):
            os.killpg(int(task.name), signal.SIGTERM)
    return f"Job <{number}> is being terminated"


def _bmod(directory: Path, words: list[str]) -> str:
    flag, limit, number = words
    assert flag == "-W"
    if limit == "999":
        sys.exit(f"Job <{number}>: Cannot exceed queue's hard limit(s)")
    (directory / "jobs" / number / "limit").write_text(limit)
    return f"Parameters of job <{number}> are being changed"


def _bhosts(directory: Path, words: list[str]) -> str:
    rows = [f"{host} {'unreach' if (directory / f'lost-{host}').exists() else 'ok'} - 8 8" for host in words[1:]]
    return "\n".join(["HOST_NAME STATUS JL/U MAX NJOBS", *rows])


# ---- what is known of jobs ----


def _jobs(directory: Path) -> list[Path]:
    return sorted((directory / "jobs").glob("*"), key=lambda path: int(path.name))


def _hosts(job: Path) -> list[str]:
    return (job / "hosts").read_text().split()[::2]


def _state(job: Path) -> str:
    if (job / "code").exists():
        code = (job / "code").read_text()
        return "EXIT" if (job / "reason").exists() or code != "0" else "DONE"
    return "RUN" if (job / "began").exists() else "PEND"


def main(command: str, words: list[str]) -> None:
    if command == "job":
        _run_job(Path(words[0]))
        return
    directory = Path(os.environ[_STATE])
    if command == "blaunch":
        _blaunch(directory, words)
        return
    if command == "bqueues":
        print("QUEUE_NAME PRIO STATUS\nnormal 30 Open\ngpu 40 Open")
        return
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {"bsub": _bsub, "bjobs": _bjobs, "bkill": _bkill, "bmod": _bmod, "bhosts": _bhosts}
        said = known[command](directory, words)
        _schedule(directory)
    print(said)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
