"""Nodes that an engine is asked for: each job has a pool of its own, with an authority and certificates, that is made
for it and removed with it. What is remembered of it lies in the pool's directory, so any later process finds it by the
reservation's name.

Whoever changes which jobs there are holds the lock of the directory of all pools: what is half-made there without it
was left by a process that died, and is removed.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from monarch_nb.config import CONFIG_VARIABLE, TrustPaths
from monarch_nb.errors import CapacityError, PoolError, ReservationConflict, TrustError, UsageError
from monarch_nb.ground.interrupting import pause
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Progress
from monarch_nb.provision.launchers import Ask, Job, Launcher, Look, launcher
from monarch_nb.times import duration
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import change_hosts, checked_user_name, make_paths, pools_directory, private_pools_directory
from monarch_nb.trust.private_files import locked, read_private, write_private
from monarch_nb.trust.published import published

PUBLISHED_EVERY_S = 0.2
LOOK_EVERY_S = 1.0
AT_ONCE_S = 5.0
"""So long it is looked more often, where machines are free."""
SELDOM_S = 10.0
"""How often it is looked at a job that has waited for minutes: an engine serves others, too."""
CONNECT_S = 1.0
"""A node that has not taken a connection by then is asked again later."""
START_S = 300.0
"""So long allocators may take to come up once the job runs."""
END_S = 10.0
"""So long a job that was ended may take until it is gone; it goes on ending by itself after that."""
SOONER_S = 30.0
"""A reservation ends so long before its job is ended by force."""
LOG_TAIL_LINES = 15
_LONGEST_NAME = 32


def pool_name(name: str, reservation: str) -> str:
    """Return what the pool of a job is called: what a pool can be called, another for each reservation.

    Example:
        >>> pool_name("slurm", "dev"), pool_name("slurm", "My_run")
        ('slurm-dev', 'slurm-my-run-64cd8e')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", reservation.lower()).strip("-")
    made = f"{name}-{plain}".rstrip("-")
    if plain == reservation and len(made) <= _LONGEST_NAME:
        return made
    digits = hashlib.sha256(reservation.encode()).hexdigest()[:6]
    return f"{made[: _LONGEST_NAME - 7].rstrip('-')}-{digits}"


def jobs() -> list[Job]:
    """Return what is remembered of jobs; what can not be read is nobody's."""
    found = []
    for path in sorted(pools_directory().glob("*/job.json")):
        try:
            facts = json.loads(read_private(path))
            found.append(Job(**facts, pool=path.parent.name, paths=TrustPaths(path.parent)))
        except (OSError, ValueError, TypeError, TrustError):
            continue  # it is being removed, or somebody else's
    return found


def job_of(reservation: str) -> Job | None:
    """Return the job that a reservation of that name is in, or waits for."""
    return next((job for job in jobs() if job.reservation == reservation and job.id), None)


def job_of_pool(pool: str) -> Job | None:
    """Return the job whose nodes a pool has; None when it is a pool of another kind."""
    return next((job for job in jobs() if job.pool == pool and job.id), None)


def obtain(
    on: str, ask: Callable[[str, TrustPaths], Ask], pool: str, longest_s: float | None, say: Progress
) -> tuple[Job, bool]:
    """Have a job's nodes, those that there are already or new ones; return the job when all serve, and whether it was
    waited for.

    Ctrl-C ends the job, and so does whatever makes waiting futile.

    Args:
        on: the launcher's name.
        ask: makes what is asked, given the pool's name and paths.
        pool: that the nodes will be.
        longest_s: how long to wait; None for as long as it takes.
        say: told what the engine says.

    Raises:
        ReservationConflict: it is there with another shape.
        CapacityError: the engine never has so much, or the time was up.
        PoolError: the engine does not answer; the job ended; its allocators did not come up. The log is shown.
        UsageError: it makes no sense to the engine.
    """
    way = launcher(on)
    with locked(private_pools_directory()):
        _sweep()
        job = job_of_pool(pool) or _asked(way, on, ask, pool)
    asked = ask(pool, job.paths)
    if (job.nodes, job.procs, job.gpus) != (asked.nodes, asked.procs, asked.gpus):
        kind = counted(job.gpus or job.procs, "gpu" if job.gpus else "proc")
        raise ReservationConflict(
            f"{job.reservation!r} has {way.title} {job.id} already, with {counted(job.nodes, 'node')} × {kind}; "
            "--replace ends it first, or choose another name"
        )
    if job.served and way.look(job).state == "running":
        return job, False  # what has become of its nodes they say themselves
    try:
        _wait(way, job, longest_s, say)
        job = replace(job, served=True)
        _remember(job)
    except BaseException:
        end(job)
        raise
    return job, True


def _asked(way: Launcher, on: str, ask: Callable[[str, TrustPaths], Ask], pool: str) -> Job:
    """Make a pool, and ask for a job whose nodes it has; nothing is left when that fails."""
    paths = make_paths(pool)
    if any(paths.directory.iterdir()):
        raise UsageError(f"there is a pool {pool} already, which no job was made for: choose another name")
    try:
        asked = ask(pool, paths)
        job = Job(on, "", asked.reservation, pool, asked.nodes, asked.procs, asked.gpus, paths)
        _remember(job)
        make_pool(pool, _user())
        change_hosts(paths, lambda hosts: replace(hosts, directory=str(paths.published)))
        paths.published.mkdir(mode=0o700, exist_ok=True)
        job = replace(job, id=way.ask(asked))
        try:
            _remember(job)
        except BaseException:
            way.end(job)
            raise
    except BaseException:
        _remove(paths)
        raise
    return job


def _user() -> str:
    """Return what the user is called in the pool: nobody else is in it."""
    try:
        return checked_user_name(getpass.getuser())
    except UsageError:
        return "me"


def _remember(job: Job) -> None:
    facts = {name: value for name, value in asdict(job).items() if name not in ("pool", "paths")}
    write_private(job.paths.job, json.dumps(facts, indent=2).encode() + b"\n")


def _wait(way: Launcher, job: Job, longest_s: float | None, say: Progress) -> None:
    """Wait until every node of a job serves."""
    began_s = time.monotonic()
    running_s = looked_s = 0.0
    said, look = "", None
    while len(addresses := nodes_of(job, look)) < job.nodes:
        now_s = time.monotonic()
        if not looked_s or now_s - looked_s >= _look_every_s(now_s - began_s, running_s):
            looked_s, look = now_s, _looked(way, job, look)
            _check(way, job, look)
            running_s = (running_s or now_s) if look.state == "running" else 0.0
            text = look.text if look.state != "running" else f"{look.text}; {_starting(job, addresses)} starting"
            if text != said:
                said = text
                say(text)
        if running_s and now_s - running_s > START_S:
            raise PoolError(
                f"{way.title} {job.id} runs, but {_starting(job, addresses)} did not come up within "
                f"{duration(START_S)}{_log_tail(job)}"
            )
        if longest_s is not None and not running_s and now_s - began_s > longest_s:
            raise CapacityError(f"waited {duration(longest_s)}, in vain: {said}", waiting_helps=True)
        pause(PUBLISHED_EVERY_S if running_s or now_s - began_s < AT_ONCE_S else LOOK_EVERY_S)
    if look and look.addresses:
        change_hosts(job.paths, lambda hosts: replace(hosts, nodes=tuple(look.addresses)))


def _look_every_s(waited_s: float, running_s: float) -> float:
    return PUBLISHED_EVERY_S if waited_s < AT_ONCE_S else LOOK_EVERY_S if running_s or waited_s < 60 else SELDOM_S


def _looked(way: Launcher, job: Job, before: Look | None) -> Look:
    """Look at a job; when the engine does not answer now, it is what it was."""
    try:
        return way.look(job)
    except PoolError as error:
        return replace(before or Look("waiting", ""), text=f"{way.title} {job.id}: {error}")


def _check(way: Launcher, job: Job, look: Look) -> None:
    """Raise what makes it futile to wait."""
    if look.state == "ended":
        raise PoolError(f"{look.text}{_log_tail(job)}")
    if look.trouble and look.state == "waiting":
        raise CapacityError(f"{way.title} {job.id} would wait for ever: {look.trouble}")
    if look.trouble:
        raise PoolError(f"{way.title} {job.id}: {look.trouble}{_log_tail(job)}")


def nodes_of(job: Job, look: Look | None = None) -> list[str]:
    """Return the addresses of a job's nodes that serve."""
    if look and look.addresses:
        return [address for address in look.addresses if _serves(address)]
    return [node.address for node in published(job.paths.published) if not node.is_stale]


def _serves(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError:
        return False
    return True


def _starting(job: Job, addresses: list[str]) -> str:
    return f"{job.nodes - len(addresses)} of {counted(job.nodes, 'allocator')}"


def _log_tail(job: Job) -> str:
    try:
        lines = job.paths.log.read_bytes().decode(errors="replace").splitlines()
    except OSError:
        here = job.paths.directory
        return f"; it has left no log: do its nodes see {here}? {CONFIG_VARIABLE} chooses another place"
    tail = "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:] if line.strip())
    return f"; its log ends with\n{tail}" if tail else "; its log is empty"


def time_left_s(job: Job) -> float:
    """Return how long a reservation in a job can last; 0 when there is no end."""
    ends_at = launcher(job.launcher).look(job).ends_at
    if not ends_at:
        return 0.0
    left_s = ends_at - time.time()
    return max(1.0, left_s - min(SOONER_S, left_s / 10))


def extend(job: Job, by_s: float) -> None:
    """Let a job run for longer.

    Raises:
        UsageError: the engine does not let this user. PoolError: it does not answer.
    """
    way = launcher(job.launcher)
    if way.look(job).ends_at:
        way.extend(job, by_s)


def trouble(pool: str) -> str:
    """Return what has become of a job whose nodes do not answer; empty when the pool is of no job, or all is well."""
    if (job := job_of_pool(pool)) is None:
        return ""
    try:
        look = launcher(job.launcher).look(job)
    except (PoolError, UsageError) as error:
        return str(error)
    if look.state == "ended":
        return f"{look.text}: %mesh reserve {job.reservation} --on {job.launcher} asks for another"
    return look.trouble


def end(job: Job, say: Progress | None = None) -> None:
    """End a job, and remove its pool with its keys; again is as once.

    Raises:
        PoolError: the engine does not answer: what is remembered stays, so that it can be done again.
    """
    way = launcher(job.launcher)
    if say:
        say(f"ending {way.title} {job.id}")
    with locked(private_pools_directory()):
        if (known := job_of_pool(job.pool)) is None or known.id != job.id:
            return
        if way.look(job).state != "ended":
            way.end(job)
            _wait_for_end(way, job)
        _remove(job.paths)


def _wait_for_end(way: Launcher, job: Job) -> None:
    """Wait until a job is gone, and every allocator has removed its files and said so."""
    deadline_s = time.monotonic() + END_S
    while (nodes_of(job) or way.look(job).state != "ended") and time.monotonic() < deadline_s:
        pause(PUBLISHED_EVERY_S)


def sweep() -> None:
    """Remove the pools of jobs that have ended, or were never asked for."""
    with locked(private_pools_directory()):
        _sweep()


def _sweep() -> None:
    """The same; the lock is held."""
    for job in jobs():
        try:
            if not job.id or launcher(job.launcher).look(job).state == "ended":
                _remove(job.paths)
        except (PoolError, UsageError):
            continue  # its engine does not answer, or its launcher is not installed


def _remove(paths: TrustPaths) -> None:
    """Remove a job's pool, what says that it is one last."""
    for path in sorted(paths.directory.iterdir(), key=lambda path: path == paths.job):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(paths.directory, ignore_errors=True)
