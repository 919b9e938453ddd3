"""Waits for the nodes of a job: until every one serves, or it is futile to wait."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

from monarch_nb.config import CONFIG_VARIABLE, cadence, gap, patience
from monarch_nb.errors import CapacityError, PoolError
from monarch_nb.ground.interrupting import pause
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Progress
from monarch_nb.provision.launchers import Job, Launcher, Look, size_of
from monarch_nb.times import duration
from monarch_nb.trust.pools import change_hosts, read_hosts
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
        lines = job.paths.log.read_bytes().decode(errors="replace").splitlines()
    except OSError:
        here = job.paths.directory
        return f"; it has left no log: do its nodes see {here}? {CONFIG_VARIABLE} chooses another place"
    tail = "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:] if line.strip())
    return f"; its log ends with\n{tail}" if tail else "; its log is empty"
