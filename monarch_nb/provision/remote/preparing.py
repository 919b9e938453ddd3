"""Several hosts at once: what is needed is brought there and allocators are started, on all of them or on none."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from monarch_nb.config import VERSION, gap, passed_on, patience
from monarch_nb.errors import CapacityError, MonarchNbError, NodeUnreachable, PoolError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.daemons import describe, shut_down
from monarch_nb.provision.remote.command import run, ssh_command
from monarch_nb.provision.remote.environment import Environment, environment_on
from monarch_nb.provision.remote.names import node_name
from monarch_nb.provision.remote.tunnels import address_of
from monarch_nb.trust.identity import Identity
from monarch_nb.trust.pools import SshHost

START_S = patience(150.0)
LOOK_S = patience(30.0)
SHUT_DOWN_S = patience(20.0)
DIRECT_S = gap(3.0)
"""A host that has not answered by then is behind something that lets nothing through."""
AT_ONCE = 16

Say = Callable[[str, str], None]
"""Is told of a host what is being done there."""


@dataclass(frozen=True)
class Wanted:
    """What hosts are to run.

    Attributes:
        pool: whose nodes they will be. identity: who we are in it. certificate: the nodes', with its key.
        flags: of the allocator, other than where it listens and what it is called.
        gpus: that each needs at least.
        lasting: whether it is to come back after the host was started anew; else it is a job's.
        directory: ours on the hosts; empty for the usual one.
        tunnel: whether to go through ssh; None where nothing else works.
    """

    pool: str
    identity: Identity
    certificate: str
    flags: tuple[str, ...]
    gpus: int = 0
    lasting: bool = False
    directory: str = ""
    tunnel: bool | None = None


@dataclass(frozen=True)
class Prepared:
    """A host whose allocator serves.

    Attributes:
        was_there: whether nothing had to be done but to look. installed: whether Python's packages had to be.
        unit: of systemd, that runs it; empty when it runs by itself.
    """

    host: SshHost
    was_there: bool
    installed: bool
    unit: str


async def prepare(hosts: Sequence[str], wanted: Wanted, say: Say) -> list[Prepared]:
    """Have an allocator on every host; when one fails, what was started on the others is ended.

    Raises:
        PoolError: it does not work on some of them; the message says on which, and why.
    """
    ssh_command()
    at_once, started = asyncio.Semaphore(AT_ONCE), dict[str, SshHost]()

    async def prepare_one(host: str) -> Prepared:
        async with at_once:
            return await _prepare(host, [node_name(other) for other in hosts if other != host], wanted, started, say)

    try:
        results = await asyncio.gather(*map(prepare_one, hosts), return_exceptions=True)
        failures = {host: result for host, result in zip(hosts, results, strict=True) if _is_failure(result)}
        if failures:
            raise _failure_of(failures, len(hosts))
    except BaseException:
        await _undo(started.values(), wanted)
        raise
    return [result for result in results if isinstance(result, Prepared)]


def _is_failure(result: object) -> bool:
    if isinstance(result, BaseException) and not isinstance(result, MonarchNbError):
        raise result
    return isinstance(result, BaseException)


def _failure_of(failures: dict[str, Prepared | BaseException], count: int) -> PoolError | CapacityError:
    lines = "\n".join(f"{host}: {error}" for host, error in failures.items())
    kind = CapacityError if all(isinstance(error, CapacityError) for error in failures.values()) else PoolError
    if count == 1:
        return kind(lines)
    return kind(f"{len(failures)} of {counted(count, 'host')} can not be used, so nothing was started:\n{lines}")


async def _undo(started: Iterable[SshHost], wanted: Wanted) -> None:
    """End what was started; a job's allocator that can not be reached any more ends by itself."""
    await asyncio.gather(*(end(host, wanted.pool, wanted.identity) for host in started), return_exceptions=True)


async def _prepare(host: str, others: Sequence[str], wanted: Wanted, started: dict[str, SshHost], say: Say) -> Prepared:
    say(host, "connects")
    environment = await environment_on(host, wanted.directory, lambda text: say(host, text))
    node = f"{wanted.pool}.{node_name(host)}"
    directory = f"{environment.root}/nodes/{node}"
    runs = _script(environment, directory, _command(host, others, environment, directory, wanted), wanted.lasting)
    unit = _UNIT.format(pool=wanted.pool, directory=directory) if wanted.lasting else ""
    sent = {"ROOT": environment.root, "NODE": node, "CERTIFICATE": wanted.certificate, "RUN": runs, "UNIT": unit}
    started[host] = SshHost(host, "", directory=wanted.directory)
    found = await run(host, "start", sent, START_S, lambda text: say(host, text))
    if "again" in found:
        del started[host]
    was_there = "again" in found and "renewed" not in found
    published = json.loads(found["published"])
    if published["version"] != VERSION:
        raise PoolError(
            f"its allocator is of monarch_nb {published['version']}, and this is {VERSION}: release what it holds, "
            f"then monarch-nb pool remove {wanted.pool} {host}, and this again"
        )
    reached = await _reached(SshHost(host, str(published["address"]), directory=wanted.directory), wanted)
    if host in started:
        started[host] = reached
    say(host, "had it already" if was_there else "ready")
    return Prepared(reached, was_there, environment.is_new, found.get("unit", ""))


def _command(host: str, others: Sequence[str], environment: Environment, directory: str, wanted: Wanted) -> list[str]:
    words = [environment.python, "-m", "monarch_nb.allocator", "--node-id", node_name(host), *wanted.flags]
    words += ["--certificate", f"{directory}/node.pem", "--publish", f"{directory}/nodes"]
    return [*words, "--toward", *filter(None, [environment.came_from]), *others, socket.gethostname()]


def _script(environment: Environment, directory: str, command: Sequence[str], lasting: bool) -> str:
    """Return what runs an allocator; a job's leaves nothing when it ends."""
    lines = ["#!/bin/sh"]
    if environment.code:
        lines.append(f"export PYTHONPATH={shlex.quote(environment.code)}${{PYTHONPATH:+:$PYTHONPATH}}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in passed_on().items()]
    place = shlex.quote(directory)
    if lasting:
        lines += [f"echo $$ >{place}/pid", f"exec {shlex.join(command)}"]
    else:
        lines += [f"{shlex.join(command)} &", f"echo $! >{place}/pid", "wait", f"rm -rf {place}"]
    return "\n".join(lines) + "\n"


_UNIT = """\
[Unit]
Description=monarch_nb: a node of the pool {pool}
StartLimitIntervalSec=0

[Service]
ExecStart=/bin/sh {directory}/run
StandardOutput=append:{directory}/log
StandardError=inherit
Restart=on-failure
RestartSec=1
KillMode=process
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


async def _reached(host: SshHost, wanted: Wanted) -> SshHost:
    """Return how an allocator is reached: as itself, or through ssh where that does not work.

    Raises:
        PoolError: neither works, or it has not what is needed.
    """
    direct = replace(host, tunnel=False)
    if wanted.tunnel is not True:
        try:
            _check(await _described(direct, wanted, DIRECT_S), wanted)
            return direct
        except NodeUnreachable as error:
            if wanted.tunnel is False:
                raise PoolError(f"it is not reached at {host.address} without ssh: {error}") from None
    through = replace(host, tunnel=True)
    _check(await _described(through, wanted, patience(30.0)), wanted)
    return through


async def _described(host: SshHost, wanted: Wanted, timeout_s: float) -> pb.DescribeReply:
    address = address_of(host)
    return await asyncio.to_thread(describe, address, timeout_s, wanted.identity)


def _check(reply: pb.DescribeReply, wanted: Wanted) -> None:
    if len(reply.gpus) < wanted.gpus:
        raise CapacityError(f"it has {counted(len(reply.gpus), 'GPU')}, not {wanted.gpus}")


async def look(host: SshHost, pool: str) -> str:
    """Return what has become of an allocator, said of its host; empty when it lives.

    Raises:
        NodeUnreachable: the host can not be reached. PoolError: ssh is not let in.
    """
    found = await run(host.destination, "look", _names(host, pool), LOOK_S)
    if found.get("state") == "alive":
        return ""
    return f"has no allocator any more{': ' + found['log'] if found.get('log') else ''}"


async def end(host: SshHost, pool: str, identity: Identity) -> None:
    """End an allocator with its ranks, and remove what is left of it and its key; again is as once.

    Raises:
        NodeUnreachable: the host can not be reached. PoolError: ssh is not let in.
    """
    if host.address:  # one that stays would leave its ranks to the next when it is told by a signal
        await asyncio.to_thread(shut_down, address_of(host), SHUT_DOWN_S, identity)
    await stop(host.destination, host.directory, pool)


async def stop(host: str, directory: str, pool: str) -> None:
    """End an allocator by a signal, and remove what is left of it and its key; again is as once.

    Raises:
        NodeUnreachable: the host can not be reached. PoolError: ssh is not let in.
    """
    await run(host, "stop", _names(SshHost(host, "", directory=directory), pool), patience(60.0))


def _names(host: SshHost, pool: str) -> dict[str, str]:
    return {"ROOT": host.directory, "NODE": f"{pool}.{host.name}"}
