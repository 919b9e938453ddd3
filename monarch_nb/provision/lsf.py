"""Jobs of LSF: one allocator per host, in a batch job of their own or in the job that this process is in.

LSF is asked by its commands, with fixed fields of `bjobs -o` (10.1 and later).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from monarch_nb.config import cadence, patience
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.interrupting import pause
from monarch_nb.provision import Option
from monarch_nb.provision.daemons import daemon_environment, detach
from monarch_nb.provision.helpers import Commands, last_said, whole_minutes
from monarch_nb.provision.launchers import Ask, Job, Look, Offer

START_S = patience(30.0)
"""So long allocators may take to begin in a job that is there."""
_FIELDS = (
    "jobid stat exec_host time_left runtimelimit estimated_start_time exit_code exit_reason pend_reason delimiter='|'"
)

_WAITING = {"PEND", "PROV", "WAIT", "PSUSP"}
_RUNNING = {"RUN", "USUSP", "SSUSP", "UNKWN"}
_ALLOCATOR_FAILED = re.compile(r"^the allocator of (\S+) has ended \((.+)\)$", re.MULTILINE)
_LOST_STATES = ("unavail", "unreach")
_OUR_FLAGS = {
    "-J": "a reservation is one job, and called after it",
    "-n": "say --nodes and --procs before the --",
    "-W": "say --time before the --",
    "-gpu": "say --gpus before the --",
    **dict.fromkeys(("-o", "-oo", "-e", "-eo", "-i", "-is"), "the job's output is the log of its allocators"),
    **dict.fromkeys(("-I", "-Ip", "-Is", "-K"), "the cell waits for the job, and shows how it stands"),
}
_KEPT = ("LSB_DEFAULTQUEUE", "LSB_DEFAULTPROJECT", "LSB_DEFAULT_USERGROUP", "LSB_DEFAULT_JOBGROUP")
_NOT_OF_JOBS = ("LSB_", "LS_", "LSFUSER", "CUDA_VISIBLE_DEVICES")


_LSF = Commands(
    "LSF",
    "Run the notebook where you would run bsub, with LSF's profile sourced (. /path/to/lsf/conf/profile.lsf)",
)


class LsfLauncher:
    """Hosts of an LSF cluster.

    A job is known by its number, as in "12"; allocators in a job that was there by that of the process which runs them,
    too: "12.4711@host1".
    """

    title = "LSF job"

    def options(self) -> list[Option]:
        """Return what sites want to know of most jobs."""
        _LSF.check_installed("bsub")
        return [
            Option("queue", "Queue", "text", "", "empty: the default", flag="-q"),
            Option("project", "Project", "text", "", "that pays; empty: your default", flag="-P"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return nothing: LSF tells no job that it has not. Flags that bsub does not take here are refused."""
        _check_arguments(ask.arguments)
        return Offer()

    def ask(self, ask: Ask) -> str:
        """Submit a job; or start allocators here, where this process is in a job that has what is asked for."""
        _check_arguments(ask.arguments)
        if number := _job_with(ask, os.environ):
            return _start_inside(ask, number)
        done = _run(["bsub", *options(ask), *ask.arguments], script(replace(ask, beside=())))  # LSF leaves these out
        found = re.search(r"Job <(\d+)> is submitted", done.stdout)
        if done.returncode or not found:
            raise _refusal(done.stderr or done.stdout)
        return found[1]

    def look(self, job: Job) -> Look:
        """Return what LSF says; it forgets a job about an hour after its end."""
        number, _, step = job.id.partition(".")
        row = _row(number)
        if row is None:
            return Look("ended", f"LSF job {number} has ended, and LSF does not know why any more", "it has ended")
        look = look_of(row)
        if look.state == "running" and step and not _runs_here(step, job.paths.directory):
            return Look("ended", f"the allocators in LSF job {number} have ended", "they have ended")
        if look.state == "running" and not look.trouble:
            return Look("running", look.text, _lost_hosts(row.hosts) or _failed_in(job), (), look.ends_at)
        return look

    def extend(self, job: Job, by_s: float) -> None:
        """Give the job a later limit, where the site lets its users."""
        number = job.id.partition(".")[0]
        row = _row(number)
        if row is None or not row.limit_minutes:
            raise UsageError(f"LSF job {number} has no time limit that could be extended")
        words = ["bmod", "-W", str(row.limit_minutes + whole_minutes(by_s)), number]
        done = _run(words)
        if done.returncode:
            raise UsageError(
                f"LSF does not let you extend job {number} ({last_said(done.stderr)}): ask who runs the cluster for "
                f"{shlex.join(words)}, or save your work and reserve again with a longer --time"
            )

    def end(self, job: Job) -> None:
        """Cancel the job; of one that was there before only the allocators end."""
        number, _, step = job.id.partition(".")
        if step:
            _end_inside(step, job.paths.directory)
            return
        done = _run(["bkill", number])
        gone = ("is being terminated", "already finished", "not found", "No matching job")
        if done.returncode and not any(word in done.stdout + done.stderr for word in gone):
            raise PoolError(f"LSF did not cancel job {number}: {last_said(done.stderr)}; later: bkill {number}")


def options(ask: Ask) -> list[str]:
    """Return what bsub is told: one slot per host with GPUs, else one for each rank."""
    slots = 1 if ask.gpus else ask.procs
    others = f"select[{' && '.join(f'hname!={host}' for host in ask.beside)}] " if ask.beside else ""
    words = ["-J", f"monarch-nb-{ask.reservation}", "-n", str(ask.nodes * slots), "-R", f"{others}span[ptile={slots}]"]
    words += ["-gpu", f"num={ask.gpus}"] if ask.gpus else []
    words += ["-W", str(whole_minutes(ask.time_s))] if ask.time_s else []
    return [*words, "-o", "/dev/null"]  # else LSF collects the output, and has a report of its own at the log's end


def script(ask: Ask, toward: str = '"$LSB_SUB_HOST"') -> str:
    """Return the batch script: an allocator on each host, and nothing stays when all have ended as they should.

    Args:
        toward: the host to which they are to be reachable, as a word of the shell.
    """
    lines = ["#!/bin/bash", f"exec >> {shlex.quote(str(ask.paths.log))} 2>&1", ""]
    lines += ["# An allocator per host. One that fails leaves the others alone.", "on_host() {"]
    lines += ['    blaunch "$1" -no-shell \\', f"        {shlex.join(ask.allocator())} \\"]
    lines += [f'        --node-id "$1" --toward {toward} ||']
    lines += ['        { echo "the allocator of $1 has ended (exit code $?)"; false; }', "}"]
    lines += ["set -- $LSB_MCPU_HOSTS  # host1 4 host2 4", "started=()"]
    lines += [f"while [ $# -gt 1 ] && [ ${{#started[@]}} -lt {ask.nodes} ]; do"]
    if ask.beside:
        lines += [f'    case "$1" in {"|".join(map(shlex.quote, ask.beside))}) shift 2; continue ;; esac']
    lines += ['    on_host "$1" &', "    started+=($!)", "    shift 2", "done", "failed=0"]
    lines += ['for each in "${started[@]}"; do wait "$each" || failed=1; done']
    lines += [f"[ $failed = 0 ] && {{ {ask.removal()}; }}"]
    return "\n".join(lines) + "\n"


def _check_arguments(arguments: Sequence[str]) -> None:
    for before, word in zip(("", *arguments), arguments, strict=False):
        if word in _OUR_FLAGS:
            raise UsageError(f"{word} is not for bsub here: {_OUR_FLAGS[word]}")
        if not word.startswith("-") and not before.startswith("-"):
            raise UsageError(f"{word!r} is no flag of bsub: put flags after the --, as in -- -q gpu -P lab")


# ---- a job that is there ----


def _job_with(ask: Ask, environment: Mapping[str, str]) -> str:
    """Return the number of the job that this process is in, when it has what is asked for and nothing is said to bsub;
    else an empty text."""
    number, hosts = environment.get("LSB_JOBID", ""), environment.get("LSB_MCPU_HOSTS", "").split()[::2]
    if not number.isdecimal() or ask.arguments or len({*hosts}.difference(ask.beside)) < ask.nodes:
        return ""
    gpus = [gpu for gpu in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return number if len(gpus) >= ask.gpus else ""


def _start_inside(ask: Ask, number: str) -> str:
    """Start allocators beside what else runs in this job; return how they are known."""
    _LSF.check_installed("blaunch")
    path, started = ask.paths.directory / "allocators.sh", ask.paths.directory / "allocators.pid"
    here = socket.gethostname()
    path.write_text(f"echo $$ > {shlex.quote(str(started))}\n{script(ask, shlex.quote(here))}")
    with ask.paths.log.open("ab") as log:
        detach([shutil.which("bash") or "/bin/bash", str(path)], ask.paths.directory, _environment(inside=True), log)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if started.exists() and (pid := started.read_text().strip()):
            return f"{number}.{pid}@{here}"
        pause(cadence(0.1))
    raise PoolError(f"no allocator began in your LSF job {number} within {START_S:g} s")


def _process_here(step: str, directory: Path) -> int:
    """Return the process that runs allocators in a job that was there; 0 when it has ended, or is on another host."""
    pid, _, host = step.partition("@")
    if host != socket.gethostname():
        return 0
    try:
        is_it = str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return 0
    return int(pid) if is_it else 0


def _runs_here(step: str, directory: Path) -> bool:
    """Return whether allocators still run; on another host that can not be seen, and is believed."""
    return step.partition("@")[2] != socket.gethostname() or bool(_process_here(step, directory))


def _end_inside(step: str, directory: Path) -> None:
    if pid := _process_here(step, directory):
        os.killpg(os.getpgid(pid), signal.SIGTERM)
    elif _runs_here(step, directory):
        pid_text, _, host = step.partition("@")
        raise PoolError(f"the allocators run below process {pid_text} of {host}: release the reservation from there")


# ---- what LSF says ----


@dataclass(frozen=True)
class Row:
    """What LSF says of a job, in its words.

    Attributes:
        left_s: until its limit; 0 when it has none, or has not begun.
        limit_minutes: its limit; 0 when it has none.
    """

    number: str
    state: str
    hosts: tuple[str, ...]
    left_s: float
    limit_minutes: int
    starts: str
    exit_code: str
    exit_reason: str
    pending_reason: str


def parse_row(line: str) -> Row:
    """Read a line of bjobs. What is not known is "-".

    Example:
        >>> parse_row("12|RUN|4*h1:4*h2|0:19 L|20.0/h1|-|-|-|-").hosts
        ('h1', 'h2')
    """
    fields = ("" if each.strip() == "-" else each.strip() for each in line.split("|", 8))
    number, state, hosts, left, limit, starts, code, reason, pending = fields
    names = dict.fromkeys(each.rpartition("*")[2] for each in hosts.split(":") if each)
    found, minutes = re.match(r"(\d+):(\d+)\s+L", left), re.match(r"\d+", limit)
    left_s = 60.0 * (60 * int(found[1]) + int(found[2])) if found else 0.0
    return Row(
        number,
        state,
        tuple(names),
        left_s,
        int(minutes[0]) if minutes else 0,
        starts,
        code,
        reason,
        pending.rstrip("; "),
    )


def look_of(row: Row) -> Look:
    """Return what a line of bjobs means."""
    name = f"LSF job {row.number}"
    if row.state in _WAITING:
        starts = f", starts at about {row.starts}" if row.starts else ""
        return Look("waiting", f"{name} waits ({row.pending_reason or row.state}){starts}")
    if row.state in _RUNNING:
        ends_at = time.time() + row.left_s if row.left_s else 0.0
        trouble = f"is {row.state}, as LSF says" if row.state != "RUN" else ""
        return Look("running", f"{name} runs on {', '.join(row.hosts)}", trouble, ends_at=ends_at)
    known = row.exit_reason or (f"exit code {row.exit_code}" if row.state != "DONE" and row.exit_code else "")
    why = f"has ended ({known})" if known else "has ended"
    return Look("ended", f"{name} {why}", why)


def _row(number: str) -> Row | None:
    done = _run(["bjobs", "-a", "-noheader", "-o", _FIELDS, number])
    if "not found" in done.stderr:
        return None
    lines = [line for line in done.stdout.splitlines() if line.count("|") >= 8]
    if not lines:
        raise _LSF.no_answer(last_said(done.stderr or done.stdout))
    return parse_row(lines[0])


def _failed_in(job: Job) -> str:
    """Return which allocators have ended, as the batch script says in the log."""
    try:
        found = _ALLOCATOR_FAILED.findall(job.paths.log.read_text(errors="replace"))
    except OSError:
        return ""
    return "; ".join(f"the allocator of {host} has ended ({why})" for host, why in found)


def _lost_hosts(hosts: Sequence[str]) -> str:
    """Return which of some hosts LSF has lost."""
    return parse_lost(_run(["bhosts", "-w", *hosts]).stdout) if hosts else ""


def parse_lost(said: str) -> str:
    """Read what bhosts says of hosts.

    Example:
        >>> parse_lost("HOST_NAME STATUS JL/U\\nh1 ok -\\nh2 unreach -\\n")
        'h2 is unreach, as LSF says'
    """
    rows = (line.split() for line in said.splitlines()[1:])
    lost = [(row[0], row[1]) for row in rows if len(row) > 1 and row[1].startswith(_LOST_STATES)]
    return "; ".join(f"{host} is {state}, as LSF says" for host, state in lost)


# ---- commands ----


def _run(words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return _LSF.run(words, _environment(), text)


def _environment(*, inside: bool = False) -> dict[str, str]:
    """Return the environment of LSF's commands and of jobs, without what is true of this process's own job alone; that
    is for what runs inside of it."""
    environment = daemon_environment()
    if inside:
        return environment
    return {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_NOT_OF_JOBS)}


def _refusal(said: str) -> UsageError | CapacityError | PoolError:
    """Return the error for what bsub said when it refused."""
    text = f"LSF refused the job: {last_said(said)}"
    if re.search(r"Too many (processors|tasks|slots)|[Cc]annot exceed queue|no suitable host|Resource limit", said):
        return CapacityError(f"{text}. Ask for less, or name a queue that has it: ... -- -q NAME{_queues()}")
    if "No such queue" in said or "cannot use the queue" in said:
        return UsageError(f"{text}{_queues()}")
    if re.search(r"LIM is down|[Cc]annot connect|Failed in an LSF library call|not responding|Please wait", said):
        return _LSF.no_answer(last_said(said))
    return UsageError(text)


def _queues() -> str:
    names = [line.split()[0] for line in _run(["bqueues"]).stdout.splitlines()[1:] if line.strip()]
    return f"; there are {', '.join(sorted(names))}" if names else ""
