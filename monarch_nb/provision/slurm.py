"""Jobs of Slurm: one allocator per node, in a batch job of their own or in the allocation that this process is in.

Slurm is asked by its commands with fixed formats, which have been the same in all its versions; its JSON has not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from monarch_nb.config import TrustPaths, cadence, patience
from monarch_nb.errors import CapacityError, PoolError, UsageError
from monarch_nb.ground.interrupting import pause
from monarch_nb.provision import Option
from monarch_nb.provision.daemons import daemon_environment, detach
from monarch_nb.provision.helpers import Commands, last_said, whole_minutes
from monarch_nb.provision.launchers import Ask, Job, Look, Offer
from monarch_nb.times import time_of_day

STEP_S = patience(30.0)
"""So long a step may take to begin in an allocation that is there."""
STEP_END_S = patience(10.0)
"""So long its allocators may take to end, and srun after them."""
STEP_EVERY_S = cadence(0.1)
STARTS_NOW_S = 60.0
"""What starts sooner starts now: Slurm looks at its queue now and then."""
FARTHEST_START_S = 180 * 24 * 3600.0
"""A later start is no estimate: jobs that have no time limit are before it, which Slurm takes for a year each."""
_FIELDS = "%i|%T|%r|%S|%e|%N"

_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_HOPELESS = re.compile(
    r"Partition((Node|Time)Limit|Config)|BadConstraints|(Invalid|Bad)(Account|QOS)|(Account|QOS)NotAllowed"
    r"|DependencyNeverSatisfied|ReservationDeleted|(Assoc|QOS)Max\w*Per(Job|Node)\w*|QOSMin\w+"
)
_TASK_FAILED = re.compile(r"^srun: error: (\S+): tasks?[^:]*: (?!Terminated)(.+)$", re.MULTILINE)
_NODE_FAILED = re.compile(r"^srun: error: Node failure on (\S+)$", re.MULTILINE)
_TESTED = re.compile(
    r"to start at (?P<starts>\S+) using .* on (?:nodes )?(?P<nodes>\S+) in partition (?P<partition>\S+)"
)
_OUR_FLAGS = {
    "--array": "a reservation is one job",
    "-a": "a reservation is one job",
    "--wrap": "the job runs allocators",
    "--nodes": "say --nodes before the --",
    "-N": "say --nodes before the --",
    "--time": "say --time before the --",
    "-t": "say --time before the --",
    "--gpus-per-node": "say --gpus before the --",
}
_OVERRIDING = ("SBATCH_ARRAY_INX", "SBATCH_JOB_NAME", "SBATCH_NO_REQUEUE", "SBATCH_REQUEUE", "SBATCH_OPEN_MODE")
# What Slurm says of its own tasks is not true of ranks: libraries that read it would take a rank for task 0 of 2.
_NOT_OF_RANKS = (
    "NTASKS NTASKS_PER_NODE NPROCS PROCID LOCALID NODEID TASKS_PER_NODE STEP_NUM_TASKS STEP_TASKS_PER_NODE GTIDS "
    "TASK_PID"
)
_ON_NODE = (
    'node=$SLURMD_NODENAME from="$SLURM_SUBMIT_HOST $SLURM_LAUNCH_NODE_IPADDR"; '
    f"unset {' '.join(f'SLURM_{name}' for name in _NOT_OF_RANKS.split())} ${{!PMI*}}; "
    'exec "$@" --node-id "$node" --toward $from'
)


# Where Slurm tracks processes by their parents, it does not find an srun that outlives this shell, and never ends it.
_STAY = """\
told_to_end=
trap 'told_to_end=1' TERM"""
# With --signal=B:USR1@600 Slurm warns this shell alone, which the signal would end.
_WAIT = """\
step=$!
trap 'kill -USR1 $step' USR1
wait $step
while status=$?; [ $status -gt 128 ] && kill -0 $step 2> /dev/null; do wait $step; done
[ -z "$told_to_end" ] && [ $status -eq 0 ] &&"""

_SLURM = Commands(
    "Slurm",
    "Run the notebook where you would run sbatch: on a login node, or in a job",
    "scontrol ping tells which controller is asked, and whether it is up; when it is, try again, else tell whoever "
    "runs the cluster",
)


class SlurmLauncher:
    """Nodes of a Slurm cluster.

    A job is known by its number, as in "12"; a step of an allocation that was there by its own, as in "12.3".
    """

    title = "Slurm job"

    def options(self) -> list[Option]:
        """Return what sites want to know of most jobs; which partitions there are Slurm says."""
        _SLURM.check_installed("sbatch")
        if not (names := _partition_names()):
            raise PoolError("Slurm does not say which partitions it has")
        choices = (("", "the default"), *((name, name) for name in names))
        where = "where the nodes are taken from"
        return [
            Option("partition", "Partition", "choice", "", where, choices=choices, flag="--partition"),
            Option("account", "Account", "text", "", "that pays; empty: your default", flag="--account"),
            Option("qos", "QOS", "text", "", "the quality of service; empty: your default", flag="--qos"),
        ]

    def offer(self, ask: Ask) -> Offer:
        """Return where and when Slurm would start the job as things are; it refuses what it would never start."""
        _check_arguments(ask.arguments)
        if allocation := _allocation_with(ask, os.environ):
            return Offer(f"takes nodes of your allocation {allocation}")
        done = _run(["sbatch", "--test-only", *ask.arguments], script(ask))
        if done.returncode:
            raise _refusal(done.stderr)
        return Offer(parse_test(done.stderr))

    def ask(self, ask: Ask) -> str:
        """Submit a job; or start a step, where this process is in an allocation that has what is asked for."""
        _check_arguments(ask.arguments)
        if allocation := _allocation_with(ask, os.environ):
            return _start_step(ask, allocation)
        words = ["sbatch", "--parsable", *ask.arguments]
        done = _run(words, script(ask))
        if done.returncode:
            raise _refusal(done.stderr, is_further=bool(ask.beside))
        return done.stdout.strip().partition(";")[0]

    def look(self, job: Job) -> Look:
        """Return what the queue says; of a job that is no longer in it, what accounting says, where there is any."""
        number, _, step = job.id.partition(".")
        row = _row(number)
        if row is None:
            return _forgotten(job.id)
        if step and row.state in _RUNNING and not _has_step(job.id):
            return Look("ended", f"Slurm's step {job.id} has ended", "it has ended")
        look = _look_of(row)
        if look.state == "waiting" and job.served:
            text = look.text.replace(" waits", " lost its nodes, and waits again", 1)
            return replace(look, text=text, begins_anew=True)
        if look.state == "running" and not look.trouble:
            return Look("running", look.text, _failed_in(job) or _failed_nodes(row.nodes), (), look.ends_at)
        return look

    def extend(self, job: Job, by_s: float) -> None:
        """Add to the job's time limit, where the site lets its users."""
        number = job.id.partition(".")[0]
        words = ["scontrol", "update", f"JobId={number}", f"TimeLimit=+{whole_minutes(by_s)}"]
        done = _run(words)
        if done.returncode:
            raise UsageError(
                f"Slurm does not let you extend job {number} ({last_said(done.stderr)}): ask who runs the cluster for "
                f"{shlex.join(words)}, or save your work and reserve again with a longer --time"
            )

    def end(self, job: Job) -> None:
        """Cancel the job, or the step: Slurm gives a job time to end, but not a step."""
        if is_step := "." in job.id:
            _run(["scancel", "--signal=TERM", job.id])
            _within(STEP_END_S, lambda: not _has_step(job.id))
        done = _run(["scancel", job.id])
        if is_step:
            _end_srun(job.paths)
        if done.returncode and "Invalid job id" not in done.stderr:
            raise PoolError(f"Slurm did not cancel job {job.id}: {last_said(done.stderr)}; later: scancel {job.id}")


def script(ask: Ask) -> str:
    """Return the batch script: an allocator on each node, and nothing stays when all have ended as they should."""
    options = [f"--job-name=monarch-nb-{ask.reservation}", f"--nodes={ask.nodes}", "--ntasks-per-node=1"]
    options += [f"--gpus-per-node={ask.gpus}"] if ask.gpus else [f"--cpus-per-task={ask.procs}"]
    options += [f"--time={whole_minutes(ask.time_s)}"] if ask.time_s else []
    options += _exclusion(ask)
    options += ["--no-kill", "--no-requeue", f"--output={ask.paths.log}", "--open-mode=append"]
    lines = ["#!/bin/bash", *(f"#SBATCH {shlex.quote(option)}" for option in options), ""]
    lines += ["# It stays until srun has ended: Slurm then kills both, when their time is over.", _STAY]
    lines += ["# An allocator per node. One that fails leaves the others alone."]
    lines += [" \\\n    ".join(map(shlex.join, _step(ask))) + " &"]
    lines += [_WAIT]
    failed = shlex.join(["grep", "-c", "^srun: error: Node failure on ", str(ask.paths.log)])
    lines += [f'[ "$({failed})" -lt {ask.nodes} ] &&  # else what has become of them is still to be told']
    lines += [f"{{ {ask.removal()}; }}"]
    return "\n".join(lines) + "\n"


def _step(ask: Ask, *flags: str) -> list[list[str]]:
    """Return the command, in parts, that runs an allocator on every node, each with all that the job has there."""
    words = ["srun", *flags, f"--nodes={ask.nodes}", f"--ntasks={ask.nodes}", "--ntasks-per-node=1", "--export=ALL"]
    words += ["--no-kill", "--kill-on-bad-exit=0", "--cpu-bind=none"]
    words += [f"--gpus-per-node={ask.gpus}", "--gpu-bind=none"] if ask.gpus else []
    words += _exclusion(ask) if "--overlap" in flags else []
    return [words, ["bash", "-c", _ON_NODE, "allocator"], ask.allocator()]


def _exclusion(ask: Ask) -> list[str]:
    return [f"--exclude={','.join(ask.beside)}"] if ask.beside else []


def _check_arguments(arguments: Sequence[str]) -> None:
    for before, word in zip(("", *arguments), arguments, strict=False):
        flag = word.partition("=")[0]
        if flag in _OUR_FLAGS:
            raise UsageError(f"{flag} is not for sbatch here: {_OUR_FLAGS[flag]}")
        if not word.startswith("-") and (not before.startswith("-") or "=" in before):
            raise UsageError(f"{word!r} is no flag of sbatch: put flags after the --, as in -- --partition=a100")


# ---- an allocation that is there ----


def _allocation_with(ask: Ask, environment: Mapping[str, str]) -> str:
    """Return the number of the allocation that this process is in, when it has what is asked for and nothing is said
    to sbatch; else an empty text: a notebook in a small job asks for a large one."""
    number = environment.get("SLURM_JOB_ID", "")
    if not number.isdecimal() or ask.arguments:
        return ""
    nodes, gpus = (environment.get(f"SLURM_{name}", "") for name in ("JOB_NUM_NODES", "GPUS_ON_NODE"))
    has_nodes = not nodes.isdecimal() or int(nodes) >= ask.nodes + len(ask.beside)
    return number if has_nodes and (not gpus.isdecimal() or int(gpus) >= ask.gpus) else ""


def _start_step(ask: Ask, number: str) -> str:
    """Start a step beside the others of an allocation; return what Slurm calls it."""
    name = f"monarch-nb-{ask.pool}-{ask.paths.directory.name}"
    _SLURM.check_installed("srun")
    with ask.paths.log.open("ab") as log:
        _, *srun = chain.from_iterable(_step(ask, f"--jobid={number}", "--overlap", f"--job-name={name}"))
        detach([shutil.which("srun") or "srun", *srun], ask.paths.directory, _environment(number), log)
    deadline_s = time.monotonic() + STEP_S
    while time.monotonic() < deadline_s:
        said = _run(["squeue", "--noheader", "--steps", f"--jobs={number}", "--format=%i|%j"]).stdout
        for line in said.splitlines():
            step, _, called = line.strip().partition("|")
            if called == name:
                return step
        if b"srun: error" in (printed := ask.paths.log.read_bytes()):
            raise PoolError(
                f"no step can be started in your allocation {number}: {last_said(printed.decode(errors='replace'))}"
            )
        pause(STEP_EVERY_S)
    raise PoolError(f"no step began in your allocation {number} within {STEP_S:g} s; scancel --name={name} ends it")


def _end_srun(paths: TrustPaths) -> None:
    """End the srun of a step that has ended: one can hang, and Slurm does not know of it."""
    if not _within(STEP_END_S, lambda: not _sruns(paths)):
        for pid in _sruns(paths):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)


def _sruns(paths: TrustPaths) -> list[int]:
    """Return the processes of this machine that are the srun of a step."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(entry, "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if b"--overlap" in words and os.fsencode(paths.node) in words:
                found.append(int(entry.name))
    return found


def _within(timeout_s: float, is_so: Callable[[], bool]) -> bool:
    """Wait until something is so, of which nobody tells; return whether it is in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (so := is_so()) and time.monotonic() < deadline_s:
        pause(STEP_EVERY_S)
    return so


def _has_step(step: str) -> bool:
    return bool(_run(["squeue", "--noheader", f"--steps={step}", "--format=%i"]).stdout.strip())


# ---- what Slurm says ----


@dataclass(frozen=True)
class Row:
    """What the queue says of a job, in Slurm's words. Times are seconds since the epoch, 0 when there is none."""

    number: str
    state: str
    reason: str
    starts_at: float
    ends_at: float
    nodes: str


def parse_row(line: str) -> Row:
    """Read a line of the queue.

    Example:
        >>> parse_row("12|PENDING|Priority|N/A|N/A|").reason
        'Priority'
    """
    number, state, reason, starts, ends, nodes = line.strip().split("|")
    return Row(number, state, reason, _seconds(starts), _seconds(ends), nodes)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def _row(number: str) -> Row | None:
    done = _run(["squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={_FIELDS}"])
    if done.returncode and "Invalid job id" not in done.stderr:
        raise _SLURM.no_answer(last_said(done.stderr))
    lines = done.stdout.splitlines()
    return parse_row(lines[0]) if lines else None


def _look_of(row: Row) -> Look:
    """Return what a line of the queue means."""
    name = f"Slurm job {row.number}"
    reason = row.reason if row.reason != "None" else row.state
    if row.state in _WAITING:
        trouble = reason if _HOPELESS.fullmatch(reason) else ""
        starts = (
            f", starts at about {time_of_day(row.starts_at)}"
            if row.starts_at and not _is_unknown(row.starts_at)
            else ""
        )
        return Look("waiting", f"{name} waits ({reason}){starts}", trouble)
    if row.state in _RUNNING:
        trouble = f"is suspended ({reason})" if row.state in ("SUSPENDED", "STOPPED") else ""
        return Look("running", f"{name} runs on {row.nodes}", trouble, ends_at=row.ends_at)
    return _end(row.number, row.state, row.reason, row.nodes)


def _end(number: str, state: str, reason: str, nodes: str) -> Look:
    words = [state] if state != "COMPLETED" else []
    words += [reason] if reason not in ("None", "") else []
    words += [failed] if nodes and (failed := _failed_nodes(nodes)) else []
    why = f"has ended ({', '.join(words)})" if words else "has ended"
    return Look("ended", f"Slurm job {number} {why}", why)


def _forgotten(number: str) -> Look:
    """Return what accounting says of a job that the queue has forgotten."""
    done = _run(["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", "--format=State,NodeList"])
    state, _, nodes = done.stdout.partition("\n")[0].partition("|")
    if done.returncode or not state:
        return Look("ended", f"Slurm job {number} has ended, and Slurm does not know why any more", "it has ended")
    return _end(number, state.split()[0], "", nodes)


def _failed_in(job: Job) -> str:
    """Return which nodes have failed, and which allocators have ended, as srun says in the log: the queue forgets a
    node that a job has lost."""
    try:
        log = job.paths.log.read_text(errors="replace")
    except OSError:
        return ""
    lost = dict.fromkeys(_NODE_FAILED.findall(log))
    if lost:
        return _failed_nodes(",".join(lost)) or f"{', '.join(lost)} failed, as Slurm says, and left the job"
    found = _TASK_FAILED.search(log)
    return f"the allocator of {found[1]} has ended ({found[2]})" if found else ""


def _failed_nodes(nodes: str) -> str:
    """Return which of some nodes do not work, and why."""
    if not nodes:
        return ""
    said = _run(["sinfo", "--noheader", "--Node", "--all", f"--nodes={nodes}", "--format=%N|%T|%E"]).stdout
    return parse_failed(said)


def parse_failed(said: str) -> str:
    """Read what sinfo says of nodes; a node is named once, also when it is in several partitions.

    Example:
        >>> parse_failed("n1|mixed|none\\nn2|down*|Not responding\\n")
        'n2 is down (Not responding)'
    """
    failed = {}
    for line in said.splitlines():
        node, state, reason = (f"{line}||".split("|"))[:3]
        word = state.rstrip("*~#!%$@^-+")
        if word.startswith(("down", "fail", "error", "unknown")) or "*" in state:
            failed[node] = f"{node} is {word if '*' not in state or word == 'down' else 'not responding'} ({reason})"
    return "; ".join(failed.values())


# ---- commands ----


def _run(words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    keeps_environment = words[0] == "sbatch" and "--test-only" not in words
    return _SLURM.run(words, _environment() | ({} if keeps_environment else {"SLURM_TIME_FORMAT": "%s"}), text)


def _environment(allocation: str = "") -> dict[str, str]:
    """Return the environment of Slurm's commands and of jobs: without what is true of this process's own job, or would
    change what they say and do."""
    kept = {
        name: value
        for name, value in daemon_environment().items()
        if not name.startswith(("SQUEUE_", "SINFO_", "SACCT_", "SRUN_"))
        and name not in (*_OVERRIDING, "CUDA_VISIBLE_DEVICES")
    }
    return kept | ({"SLURM_JOB_ID": allocation} if allocation else {})


def _refusal(said: str, *, is_further: bool = False) -> UsageError | CapacityError | PoolError:
    """Return the error for what sbatch said when it refused.

    Args:
        is_further: whether it was asked for more of what it had given before, with the same flags.
    """
    text = f"Slurm refused the job: {last_said(said)}"
    if "Requested node configuration" in said or "time limit" in said.lower() or "More processors" in said:
        other = "" if is_further else f", or name a partition that has it: ... -- --partition=NAME{_partitions()}"
        return CapacityError(f"{text}. Ask for less{other}")
    if "partition" in said:
        return UsageError(f"{text}{_partitions()}")
    if "Unable to contact" in said or "Zero Bytes" in said or "Connection" in said:
        return _SLURM.no_answer(last_said(said))
    return UsageError(text)


def _partitions() -> str:
    names = _partition_names()
    return f"; there are {', '.join(names)}" if names else ""


def _partition_names() -> list[str]:
    return sorted(set(_run(["sinfo", "--noheader", "--format=%R"]).stdout.split()))


def parse_test(said: str) -> str:
    """Read what sbatch says of a job that is only tested; empty when it is something else.

    Example:
        >>> parse_test("sbatch: Job 7 to start at N/A using 8 processors on nodes n[1-2] in partition main")
        'would run on n[1-2], partition main'
    """
    found = _TESTED.search(said)
    if found is None:
        return ""
    starts_at = _seconds(found["starts"])
    when = f"start at about {time_of_day(starts_at)}" if starts_at > time.time() + STARTS_NOW_S else "run"
    if _is_unknown(starts_at):
        when = "wait for jobs that have no time limit, and run"
    return f"would {when} on {found['nodes']}, partition {found['partition']}"


def _is_unknown(starts_at: float) -> bool:
    return starts_at > time.time() + FARTHEST_START_S
