"""Nodes that an engine is asked for. A reservation has a pool of its own, with an authority and certificates, that is
made for its job and removed with it; further jobs bring that pool more nodes. What is remembered of a job lies in a
directory in that of the pool, with what the job's nodes need, so any later process finds it by the reservation's name.

Whoever changes which jobs there are holds the lock of the directory of all pools: what is half-made there without it
was left by a process that died, and is removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from monarch_nb.config import (
    CONFIG_VARIABLE,
    DEFAULT_POOL,
    TrustPaths,
    cadence,
    default_pool,
    gap,
    patience,
    private_directory,
)
from monarch_nb.errors import (
    ATTACH_USES_IT,
    CapacityError,
    PoolError,
    ReservationConflict,
    TrustError,
    UsageError,
    say_too,
)
from monarch_nb.ground.account import own_name
from monarch_nb.ground.interrupting import pause
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Progress
from monarch_nb.provision.launchers import UNHELD_S, Ask, Job, Launcher, Look, launcher, size_of, target_of
from monarch_nb.times import duration
from monarch_nb.trust.membership import make_pool
from monarch_nb.trust.pools import (
    change_hosts,
    checked_user_name,
    make_paths,
    pools_directory,
    private_pools_directory,
    read_hosts,
)
from monarch_nb.trust.private_files import locked, read_private, write_private
from monarch_nb.trust.published import published

PUBLISHED_EVERY_S = cadence(0.2)
LOOK_EVERY_S = cadence(1.0)
AT_ONCE_S = cadence(5.0)
"""So long it is looked more often, where machines are free."""
SELDOM_S = cadence(10.0)
"""How often it is looked at a job that has waited for minutes: an engine serves others, too."""
CONNECT_S = gap(1.0)
"""A node that has not taken a connection by then is asked again later."""
START_S = patience(300.0)
"""So long allocators may take to come up once the job runs."""
LOG_SETTLES_S = cadence(0.5)
"""A log that has not grown for so long is whole: engines tell of an end before they have passed on its last lines."""
LOG_READS = 10
LOG_TAIL_LINES = 15


def wait(engine: Launcher, job: Job, longest_s: float | None, say: Progress) -> Look | None:
    """Wait until every node of a job serves; return what the engine said last, if it was asked."""
    began_s = time.monotonic()
    running_s = looked_s = 0.0
    said, look = "", None
    while len(addresses := nodes_of(job, look)) < job.nodes:
        now_s = time.monotonic()
        if not looked_s or now_s - looked_s >= _look_every_s(now_s - began_s, running_s):
            looked_s, look = now_s, _looked(engine, job, look)
            _check(engine, job, look)
            running_s = (running_s or now_s) if look.state == "running" else 0.0
            text = look.text if look.state != "running" else f"{look.text}; {_starting(job, addresses)} starting"
            if text != said:
                said = text
                say(text)
        if running_s and now_s - running_s > START_S:
            raise PoolError(
                f"{engine.title} {job.id} runs, but {_starting(job, addresses)} did not come up within "
                f"{duration(START_S)}{_log_tail(job)}"
            )
        if longest_s is not None and not running_s and now_s - began_s > longest_s:
            raise CapacityError(f"waited {duration(longest_s)}, without success: {said}", waiting_helps=True)
        pause(PUBLISHED_EVERY_S if running_s or now_s - began_s < AT_ONCE_S else LOOK_EVERY_S)
    if look and look.addresses:
        change_hosts(job.paths, lambda hosts: replace(hosts, nodes=tuple(look.addresses)))
    return look


def _look_every_s(waited_s: float, running_s: float) -> float:
    return PUBLISHED_EVERY_S if waited_s < AT_ONCE_S else LOOK_EVERY_S if running_s or waited_s < 60 else SELDOM_S


def _looked(engine: Launcher, job: Job, before: Look | None) -> Look:
    """Look at a job; when the engine does not answer now, it is what it was."""
    try:
        return engine.look(job)
    except PoolError as error:
        return replace(before or Look("waiting", ""), text=f"{engine.title} {job.id}: {error}")


def _check(engine: Launcher, job: Job, look: Look) -> None:
    """Raise what makes it futile to wait."""
    if look.state == "ended":
        kind = CapacityError if look.no_room else PoolError
        raise kind(f"{look.text}{_log_tail(job) if look.logged else ''}")
    if look.trouble and look.state == "waiting":
        raise CapacityError(f"{engine.title} {job.id} for {size_of(job)} would wait for ever: {look.trouble}")
    if look.trouble:
        raise PoolError(f"{engine.title} {job.id}: {look.trouble}{_log_tail(job)}")


def nodes_of(job: Job, look: Look | None = None) -> list[str]:
    """Return the addresses of a job's nodes that serve."""
    if look and look.addresses:
        return [address for address in look.addresses if serves(address)]
    started = [host.address for host in read_hosts(job.paths).ssh]
    return [node.address for node in published(job.paths.published) if not node.is_stale] + started


def serves(address: str) -> bool:
    """Return whether something takes connections at `host:port`, as far as can be seen from here."""
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
        lines = _settled(job.paths.log).decode(errors="replace").splitlines()
    except OSError:
        here = job.paths.directory
        return f"; it has left no log: do its nodes see {here}? {CONFIG_VARIABLE} chooses another place"
    tail = "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:] if line.strip())
    return f"; its log ends with\n{tail}" if tail else "; its log is empty"


def _settled(log: Path) -> bytes:
    text = log.read_bytes()
    for _ in range(LOG_READS):
        pause(LOG_SETTLES_S)
        before, text = text, log.read_bytes()
        if text == before:
            break
    return text


END_S = patience(10.0)
"""So long a job that was ended may take until it is gone; it goes on ending by itself after that."""
SOONER_S = 30.0
"""A reservation ends so long before its job is ended by force."""
_LONGEST_NAME = 32


def pool_name(on: str, reservation: str) -> str:
    """Return what the pool of a job is called: what a pool can be called, another for each reservation.

    Example:
        >>> pool_name("slurm", "dev"), pool_name("ssh:lab", "dev"), pool_name("slurm", "My_run")
        ('slurm-dev', 'ssh-lab-dev', 'slurm-my-run-64cd8e')
    """
    name, plain = (re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for text in (on, reservation))
    made = f"{name}-{plain}".rstrip("-")
    if (name, plain) == (on.replace(":", "-"), reservation) and len(made) <= _LONGEST_NAME:
        return made
    digits = hashlib.sha256((reservation if name == on else f"{on} {reservation}").encode()).hexdigest()[:6]
    return f"{made[: _LONGEST_NAME - 7].rstrip('-')}-{digits}"


def jobs() -> list[Job]:
    """Return what is remembered of jobs, those of a pool in the order in which they were asked for; what can not be
    read is nobody's."""
    found = []
    for path in sorted(pools_directory().glob("*/jobs/*/job.json"), key=lambda path: (path.parents[2], _number(path))):
        try:
            facts = json.loads(read_private(path))
            facts |= {name: tuple(facts[name]) for name in ("arguments", "preload", "addresses")}
            found.append(Job(**facts, pool=path.parents[2].name, paths=TrustPaths(path.parent)))
        except (OSError, ValueError, TypeError, KeyError, TrustError):
            continue  # it is being removed, or somebody else's
    return found


def _number(path: Path) -> int:
    """Return the number of the job that has a file."""
    return int(path.parent.name) if path.parent.name.isdecimal() else 0


def job_of(reservation: str) -> Job | None:
    """Return the first job that a reservation of that name is in, or waits for."""
    return next(iter(jobs_of(reservation)), None)


def jobs_of(reservation: str) -> list[Job]:
    """Return all jobs for a reservation of that name; several engines may have some."""
    return [job for job in jobs() if job.reservation == reservation and job.id]


def jobs_of_pool(pool: str) -> list[Job]:
    """Return the jobs whose nodes a pool has; nothing when it is a pool of another kind."""
    return [job for job in jobs() if job.pool == pool and job.id]


def job_of_pool(pool: str) -> Job | None:
    """Return the first of these."""
    return next(iter(jobs_of_pool(pool)), None)


def has_gone(pool: str) -> bool:
    """Return whether a pool of a job is no longer there: the job has removed it when all its allocators had ended."""
    there = pools_directory()
    return pool != DEFAULT_POOL and there.is_dir() and not (there / pool).exists()


def where_of(pool: str) -> str:
    """Return what has `%mesh reserve` take nodes of a pool, or of the engine that its nodes came from: "--pool lab" or
    "--on slurm"; empty for what it takes anyway."""
    if job := job_of_pool(pool):
        return f"--on {job.on}"
    return "" if pool == default_pool() else f"--pool {pool}"


def title_of(job: Job) -> str:
    """Return what people call a job, also one whose engine is not installed any more: "Slurm job 12"."""
    try:
        return f"{launcher(job.on).title} {job.id}"
    except (PoolError, UsageError):
        return f"{job.on} {job.id}"


def title_of_pool(pool: str) -> str:
    """Return what people call the jobs whose nodes a pool has; empty when it is a pool of another kind."""
    return ", ".join(map(title_of, jobs_of_pool(pool)))


def obtain(
    on: str, ask: Callable[[str, TrustPaths], Ask], pool: str, longest_s: float | None, say: Progress
) -> tuple[Job, bool]:
    """Have a job's nodes, those that there are already or new ones; return the job when all serve, and whether it was
    waited for.

    Ctrl-C ends the job, and so does whatever makes waiting futile.

    Args:
        on: the launcher, and what it means by its target: "ssh:lab".
        ask: makes what is asked, but for the target, given the pool's name and paths.
        pool: that the nodes will be.
        longest_s: how long to wait; None for as long as it takes.
        say: told what the engine says.

    Raises:
        ReservationConflict: it is there with another shape.
        CapacityError: the engine never has so much, or the time was up.
        PoolError: the engine does not answer; the job ended; its allocators did not come up. The log is shown.
        UsageError: it makes no sense to the engine.
    """
    engine = launcher(on)
    with locked(private_pools_directory()):
        _sweep()
        there = jobs_of_pool(pool)
        job = next((job for job in there if len(there) == 1 or launcher(job.on).look(job).state != "ended"), None)
        job = job or _asked(engine, on, ask, pool)
    asked = ask(pool, job.paths)
    is_other = (job.on, job.nodes, job.procs, job.gpus) != (on, asked.nodes, asked.procs, asked.gpus)
    if is_other and len(there) < 2:  # what is in several jobs says itself how large it is
        usable = f": {ATTACH_USES_IT.format(job.reservation)}" if job.served else ""
        raise ReservationConflict(
            f"{job.reservation!r} has {engine.title} {job.id} already, with {size_of(job)}{usable}; "
            "--replace ends it first, or choose another name"
        )
    if job.served and engine.look(job).state == "running":
        if job.unwanted:
            remember(job := replace(job, unwanted=False))
        return job, False  # what has become of its nodes they say themselves
    return _served(engine, job, longest_s, say), True


def add(like: Job, nodes: int, time_s: float, longest_s: float | None, say: Progress) -> Job:
    """Have a further job, whose nodes come into the pool of one that is there; return it when all serve. One whose
    client died while it waited is waited for, when it has as many nodes.

    Ctrl-C ends it, and so does whatever makes waiting futile.

    Args:
        like: what is asked is as for this one, but for
        nodes, time_s: as in `Ask`.
        longest_s, say: as in `obtain`.

    Raises:
        CapacityError, PoolError, UsageError: as `obtain`.
    """
    engine = launcher(like.on)

    def ask(pool: str, paths: TrustPaths) -> Ask:
        others = jobs_of_pool(pool)
        there = [node for job in others for node in published(job.paths.published)]
        return Ask(
            like.reservation,
            pool,
            nodes,
            like.procs,
            like.gpus,
            time_s,
            like.arguments,
            paths,
            preload=like.preload,
            beside=tuple(dict.fromkeys(node.node_id for node in there)),
            further_to=tuple(job.id for job in others),
        )

    for job in jobs_of_pool(like.pool):
        if not job.served and job.nodes != nodes:
            end(job, say)
    with locked(private_pools_directory()):
        waiting = [job for job in jobs_of_pool(like.pool) if not job.served and engine.look(job).state != "ended"]
        job = waiting[0] if waiting else _asked(engine, like.on, ask, like.pool)
    return _served(engine, job, longest_s, say)


def _served(engine: Launcher, job: Job, longest_s: float | None, say: Progress) -> Job:
    """Wait until every node of a job serves, and remember it; whatever raises ends it."""
    if job.unwanted:
        remember(job := replace(job, unwanted=False))
    try:
        look = wait(engine, job, longest_s, say)
        price = look.price_per_hour if look else job.price_per_hour
        addresses = tuple(nodes_of(job, look))
        job = replace(job, served=True, addresses=addresses, price_per_hour=price)
        remember(job)
    except BaseException as error:
        had_to_wait = isinstance(error, KeyboardInterrupt) or (isinstance(error, CapacityError) and error.waiting_helps)
        say_too(error, why_not_ended(job) or (f"{title_of(job)} was cancelled" if had_to_wait else ""))
        raise
    return job


def _asked(engine: Launcher, on: str, ask: Callable[[str, TrustPaths], Ask], pool: str) -> Job:
    """Ask for a job whose nodes a pool has, which is made if it is missing; nothing new is left when that fails."""
    of_pool = make_paths(pool)
    if not of_pool.jobs.exists() and any(of_pool.directory.iterdir()):
        raise UsageError(f"there is a pool {pool} already, which no job was made for: choose another name")
    number = 1 + max((_number(job.paths.job) for job in jobs() if job.pool == pool), default=0)
    for directory in (of_pool.jobs, of_pool.jobs / str(number)):
        private_directory(directory, CONFIG_VARIABLE)
    paths = TrustPaths(of_pool.jobs / str(number))
    try:
        asked = replace(ask(pool, paths), target=target_of(on))
        facts = asked.reservation, pool, asked.nodes, asked.procs, asked.gpus, paths
        job = Job(on, "", *facts, arguments=asked.arguments, preload=asked.preload)
        remember(job)
        make_pool(pool, _user())
        for of_all, own in ((of_pool.identity, paths.identity), (of_pool.node, paths.node)):
            write_private(own, read_private(of_all))
        paths.published.mkdir(mode=0o700, exist_ok=True)
        job = replace(job, id=_asked_of(engine, asked))
        try:
            remember(job)
        except BaseException:
            engine.end(job)
            raise
    except BaseException:
        _remove(paths)
        raise
    return job


def _asked_of(engine: Launcher, asked: Ask) -> str:
    """Ask an engine; return how it calls the job. What it never has is named when nobody has: a further job."""
    try:
        return engine.ask(asked)
    except CapacityError as error:
        if not asked.beside:
            raise
        what = f"no {size_of(asked)} beside {', '.join(asked.beside)}"
        raise CapacityError(f"{what}: {error}", waiting_helps=error.waiting_helps) from None


def _user() -> str:
    """Return what the user is called in the pool: nobody else is in it."""
    try:
        return checked_user_name(own_name())
    except UsageError:
        return "me"


def remember(job: Job) -> None:
    """Remember what is known of a job, in the place of what was."""
    facts = {name: value for name, value in asdict(job).items() if name not in ("pool", "paths")}
    write_private(job.paths.job, json.dumps(facts, indent=2).encode() + b"\n")


def time_left_s(pool: str) -> float:
    """Return how long a reservation in a pool's jobs can last, until the first of them ends; 0 when none does."""
    first = ends_first(jobs_of_pool(pool))
    return first[1] if first else 0.0


def ends_first(some: Iterable[Job]) -> tuple[Job, float] | None:
    """Return which of some jobs ends first, and how long a reservation in it can last; None when none ends. What they
    cost is remembered: the engine may not have known while they were waited for."""
    left = []
    for each in some:
        job, look = each, launcher(each.on).look(each)
        if look.price_per_hour != job.price_per_hour:
            remember(job := replace(job, price_per_hour=look.price_per_hour))
        if look.ends_at and look.state != "ended":
            left_s = look.ends_at - time.time()
            left.append((job, max(1.0, left_s - min(SOONER_S, left_s / 10))))
    return min(left, key=lambda each: each[1], default=None)


def extend(pool: str, by_s: float, left_s: float) -> None:
    """Let jobs run for longer, so that a reservation in them can.

    Args:
        by_s: by how much.
        left_s: what is left of the reservation's time before: jobs that end late enough stay as they are.

    Raises:
        UsageError: the engine does not let this user. PoolError: it does not answer.
    """
    for job in jobs_of_pool(pool):
        engine = launcher(job.on)
        look = engine.look(job)
        if look.state != "ended" and look.ends_at and look.ends_at - time.time() - SOONER_S < left_s + by_s:
            engine.extend(job, by_s)


def trouble(pool: str) -> str:
    """Return what has become of jobs whose nodes do not answer; empty when the pool is of no job, or all is well."""
    return what_became(pool)[0]


def what_became(pool: str) -> tuple[str, bool]:
    """Return the same, and whether all of its jobs have ended, or begin anew: no node comes back then."""
    looks, lines, others = [], list[str](), jobs_of_pool(pool)
    if has_gone(pool):
        return (
            f"all nodes of the pool {pool!r} have ended, and their job with them: %mesh reserve asks for another",
            True,
        )
    for job in others:
        try:
            looks.append((job, launcher(job.on).look(job)))
        except (PoolError, UsageError) as error:
            lines.append(str(error))
    over = [look for _, look in looks if look.state == "ended" or look.begins_anew]
    if over and len(over) == len(others):
        job, _ = looks[0]
        said = "; ".join(look.text for look in over)
        next_ = "waits for it" if any(look.begins_anew for look in over) else "asks for another"
        return f"{said}: %mesh reserve {job.reservation} --on {job.on} {next_}", True
    for job, look in looks:
        again = f"{look.text}: %mesh replace {job.reservation} asks for another"
        lines += [again if look in over else look.trouble]
    return "; ".join(dict.fromkeys(filter(None, lines))), False


def unheld(held: Mapping[tuple[str, str], int], silent: Collection[str] = ()) -> list[str]:
    """Return what there is to say of jobs that wait, that were to be ended, or whose nodes nobody holds.

    Args:
        held: how many nodes reservations have, by their pools and names.
        silent: pools whose nodes do not say what is held.
    """
    lines, said = [], set[str]()
    for job in jobs():
        is_held = (job.pool, job.reservation) in held
        is_known = job.served and not job.unwanted
        if not job.id or (is_known and (is_held or job.pool in silent or job.pool in said)):
            continue
        try:
            look = launcher(job.on).look(job)
        except (PoolError, UsageError) as error:
            lines.append(f"{job.reservation}: {title_of(job)}: {error}")
            continue
        if look.state == "ended":
            continue
        if job.served:
            said.add(job.pool)
        name = job.reservation
        asks = "grow or replace" if is_held else "reserve"
        does = "has its nodes, which nobody holds" if look.state == "running" else "waits for it"
        ends = f"shrink {name} --nodes {held[job.pool, name]}" if is_held and job.unwanted else f"release {name}"
        lines.append(f"{name}: {look.text}; the same %mesh {asks} {does}, %mesh {ends} ends it")
    return lines


def end_all(pool: str, say: Progress | None = None) -> list[str]:
    """End all jobs of a pool, and remove it; again is as once. Return the nodes that could not be told.

    Raises:
        PoolError: an engine does not answer: what is remembered stays, so that it can be done again.
    """
    failed, why, untold = list[Job](), list[str](), list[str]()
    for job in reversed(jobs_of_pool(pool)):
        try:
            untold += end(job, say)
        except (PoolError, UsageError) as error:
            failed.append(job)
            why.append(str(error))
    if failed:
        it = "it" if len(failed) == 1 else "them"
        raise PoolError(
            f"{', '.join(map(title_of, failed))} could not be ended ({'; '.join(dict.fromkeys(why))}): %mesh release "
            f"{failed[0].reservation} again ends {it}; allocators that hold nothing end after {duration(UNHELD_S)}"
        )
    return untold


def has_ended(job: Job) -> bool:
    """Return whether the engine says that a job has ended."""
    try:
        return launcher(job.on).look(job).state == "ended"
    except (PoolError, UsageError):
        return False


def price_per_hour(pool: str, reservation: str, ended: Collection[str] = ()) -> float:
    """Return what a reservation costs in US dollars; 0 when it is in no job, or the engine does not know.

    Args:
        ended: the ids of jobs that cost nothing any more, as `ended_in` has them.
    """
    of_pool = [job for job in jobs_of_pool(pool) if job.reservation == reservation]
    return sum(job.price_per_hour for job in of_pool if job.id not in ended)


def ended_in(pool: str) -> frozenset[str]:
    """Return the ids of a pool's jobs that have ended. Engines are asked, which may take a while: only where a node is
    lost can there be such jobs, which are remembered until it is replaced."""
    return frozenset(job.id for job in jobs_of_pool(pool) if has_ended(job))


def nodes_in(job: Job, named: Mapping[str, str]) -> list[str]:
    """Return which of some nodes a job has brought, also those that do not answer.

    Args:
        named: what they are called, by address.
    """
    known = read_hosts(job.paths)
    of_job = {*job.addresses, *known.nodes, *(host.address for host in known.ssh)}
    of_job |= {node.address for node in published(job.paths.published)}
    return [name for address, name in named.items() if address in of_job]


def why_not_ended(job: Job, say: Progress | None = None) -> str:
    """End a job; return what there is to say when that can not be done now, nothing when it has ended."""
    try:
        end(job, say)
    except (PoolError, UsageError) as error:
        why = str(error)
    except KeyboardInterrupt:
        why = "interrupted"
    else:
        return ""
    ends = "%mesh list says what ends it" if jobs_of_pool(job.pool)[1:] else f"%mesh release {job.reservation} ends it"
    return f"{title_of(job)} could not be ended ({why}): {ends}"


def end(job: Job, say: Progress | None = None) -> Sequence[str]:
    """End a job; remove what is remembered of it, and with the last of a pool that, with its keys. Again is as once.
    Return the nodes that could not be told.

    Raises:
        PoolError: the engine does not answer: what is remembered stays, so that it can be done again.
    """
    engine = launcher(job.on)
    if say:
        say(f"ending {engine.title} {job.id}")
    with locked(private_pools_directory()):
        if all((known.paths, known.id) != (job.paths, job.id) for known in jobs_of_pool(job.pool)):
            return ()
        untold: Sequence[str] = ()
        try:
            if engine.look(job).state != "ended":
                untold = engine.end(job) or ()
                _wait_for_end(engine, job)
        except (PoolError, KeyboardInterrupt):
            remember(replace(job, unwanted=True))
            raise
        _remove(job.paths)
    return untold


def _wait_for_end(engine: Launcher, job: Job) -> None:
    """Wait until a job is gone, and every allocator has removed its files and said so."""
    deadline_s = time.monotonic() + END_S
    while (nodes_of(job) or engine.look(job).state != "ended") and time.monotonic() < deadline_s:
        pause(PUBLISHED_EVERY_S)


def sweep() -> None:
    """Remove the pools of jobs that have ended, or were never asked for."""
    with locked(private_pools_directory()):
        _sweep()


def _sweep() -> None:
    """The same; the lock is held. A job that has ended is remembered while others bring nodes to its pool: so it can be
    said what has become of its own."""
    remembered = jobs()
    for job in remembered:
        if not job.id:
            _remove(job.paths)
    for paths in _half_made():
        _remove(paths)
    for pool in dict.fromkeys(job.pool for job in remembered if job.id):
        of_pool = [job for job in remembered if job.pool == pool and job.id]
        try:
            if all(launcher(job.on).look(job).state == "ended" for job in of_pool):
                for job in of_pool:
                    _remove(job.paths)
        except (PoolError, UsageError):
            continue  # its engine does not answer, or its package is not installed


def _half_made() -> list[TrustPaths]:
    """Return what a process has left that was killed before it had written down what it asks for, or while it removed a
    job. The lock is held: nobody else is at it."""
    of_jobs = list(pools_directory().glob("*/jobs"))
    some = [directory for of_pool in of_jobs for directory in ([*of_pool.glob("*")] or [of_pool / "1"])]
    return [paths for paths in map(TrustPaths, some) if not paths.job.exists()]


def _remove(paths: TrustPaths) -> None:
    """Remove what is remembered of a job, and its pool with the last one; what says that it is a job last."""
    of_pool = paths.directory.parents[1]
    if not any(path.parent != paths.directory for path in of_pool.glob("jobs/*/job.json")):
        _clear(of_pool, paths.directory.parent)
    _clear(paths.directory, paths.job)
    shutil.rmtree(paths.directory, ignore_errors=True)
    if not any(paths.directory.parent.glob("*")):
        shutil.rmtree(of_pool, ignore_errors=True)


def _clear(directory: Path, but: Path) -> None:
    for path in directory.glob("*"):
        if path == but:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
