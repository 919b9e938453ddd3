"""A process of this machine that prepares the hosts of a job, so that a kernel can go meanwhile; it holds a lock as
long as it is at it, and what it does stands in a file beside.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from monarch_nb.config import VERSION, TrustPaths, cadence, config_directory, gap, passed_on, patience
from monarch_nb.errors import CapacityError, MonarchNbError, NodeUnreachable, PoolError
from monarch_nb.ground.interrupting import pause
from monarch_nb.ground.printing import put
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.daemons import daemon_environment, describe, detach, shut_down
from monarch_nb.provision.launchers import Ask, Job, Look
from monarch_nb.provision.remote.command import node_name, run, ssh_command, waited_for
from monarch_nb.provision.remote.environment import Environment, environment_on
from monarch_nb.provision.remote.tunnels import address_of
from monarch_nb.trust.identity import Identity, load_identity
from monarch_nb.trust.pools import SshHost, change_hosts
from monarch_nb.trust.private_files import locked, read_private, write_private

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


END_S = patience(90.0)
"""So long preparing may take to end when it is told to: it ends what it has started."""
END_EVERY_S = cadence(0.1)


@dataclass(frozen=True)
class Preparation:
    """What a job's hosts are to be, and how far they are.

    Attributes:
        hosts: empty as long as they are not known.
        flags: of the allocators. gpus: on each host. directory, tunnel: as in `Wanted`.
        state: "preparing", "serving", or "failed" with `error`.
        said: by host, what is being done there.
        pid: of who prepares, 0 before it has begun. machine: where it runs.
    """

    hosts: tuple[str, ...]
    flags: tuple[str, ...]
    gpus: int
    directory: str
    tunnel: bool | None
    machine: str
    state: Literal["preparing", "serving", "failed"] = "preparing"
    error: str = ""
    said: dict[str, str] = field(default_factory=dict)
    pid: int = 0

    @classmethod
    def load(cls, paths: TrustPaths) -> Preparation:
        """Read what is remembered.

        Raises:
            OSError, ValueError, TypeError, KeyError: there is nothing that can be read.
        """
        facts: dict[str, Any] = json.loads(read_private(_note(paths)))
        return cls(**{**facts, "hosts": tuple(facts["hosts"]), "flags": tuple(facts["flags"])})

    def save(self, paths: TrustPaths) -> None:
        """Remember it."""
        write_private(_note(paths), json.dumps(asdict(self), indent=2).encode() + b"\n")


Hosts = Callable[[TrustPaths, Preparation], Sequence[str]]
"""Returns the hosts of a job when they are there; raises a MonarchNbError."""


def allocator_flags(ask: Ask) -> list[str]:
    """Return the flags of allocators on hosts, which have their own copy of the certificate."""
    flags = ask.allocator(publish=False)[3:]
    position = flags.index("--certificate")
    del flags[position : position + 2]
    return flags


def begin(module: str, ask: Ask, preparation: Preparation) -> None:
    """Start the process: a module whose arguments are the pool and its directory, and which calls `serve`."""
    preparation.save(ask.paths)
    with _lock(ask.paths).open("wb") as lock, ask.paths.log.open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # which the process inherits, and holds until it ends
        words = [sys.executable, "-m", module, ask.pool, str(ask.paths.directory)]
        detach(words, ask.paths.directory, daemon_environment(), log, [lock.fileno()])
        settle_others(ask.pool, log)


def preparation_of(job: Job) -> Preparation | None:
    """Return what is remembered of a job's hosts; None when there is nothing any more.

    Raises:
        PoolError: it can not be read.
    """
    try:
        return Preparation.load(job.paths)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PoolError(f"{_note(job.paths)} can not be read: {error}") from error


def is_preparing(paths: TrustPaths) -> bool:
    """Whether the process is still at it."""
    try:
        with _lock(paths).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def look_at(job: Job, hosts: Sequence[SshHost]) -> Look:
    """Ask hosts whether their allocators live.

    Raises:
        PoolError: none can be asked.
    """
    said = waited_for(_look_at_all(job.pool, hosts))
    away = {host: f"can not be asked: {text}" for host, text in said.items() if isinstance(text, MonarchNbError)}
    gone = {host: str(text) for host, text in said.items() if text and host not in away}
    if len(gone) == len(hosts):
        return Look("ended", f"the ssh job on {job.id} has ended: {_listed(gone)}", "it has ended")
    if len(away) == len(hosts):
        raise PoolError(_listed(away))
    return Look("running", f"allocators run on {job.id}", _listed(gone | away))


def _listed(said: Mapping[str, object]) -> str:
    return "; ".join(f"{host} {text}" for host, text in said.items())


async def _look_at_all(pool: str, hosts: Sequence[SshHost]) -> dict[str, str | MonarchNbError]:
    async def ask(host: SshHost) -> str | MonarchNbError:
        try:
            return await look(host, pool)
        except MonarchNbError as error:
            return error

    said = await asyncio.gather(*map(ask, hosts))
    return dict(zip((host.name for host in hosts), said, strict=True))


async def end_on_all(job: Job, preparation: Preparation) -> dict[str, MonarchNbError]:
    """End the allocators on all hosts of a job; return where that failed, and why."""
    identity = load_identity(job.paths.identity)

    async def end_one(host: str) -> MonarchNbError | None:
        try:
            await end(SshHost(host, "", directory=preparation.directory), job.pool, identity)
        except MonarchNbError as error:
            return error
        return None

    failures = await asyncio.gather(*map(end_one, preparation.hosts))
    return {host: error for host, error in zip(preparation.hosts, failures, strict=True) if error}


def end_preparing(paths: TrustPaths, preparation: Preparation) -> None:
    """End the process that prepares, which ends what it has started.

    Raises:
        PoolError: it runs elsewhere, or does not end.
    """
    if is_preparing(paths) and preparation.machine != os.uname().nodename:
        raise PoolError(f"it is being prepared by {preparation.machine}: release it there")
    told = False
    for _ in range(int(END_S / END_EVERY_S)):
        if not is_preparing(paths):
            return
        pid = Preparation.load(paths).pid
        if pid and not told:
            told = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        pause(END_EVERY_S)
    raise PoolError(f"process {preparation.pid}, which prepares the hosts, does not end")


def _note(paths: TrustPaths) -> Path:
    return paths.directory / "ssh.json"


def _lock(paths: TrustPaths) -> Path:
    return paths.directory / "ssh.lock"


# ---- the process that prepares ----


def serve(arguments: Sequence[str], find_hosts: Hosts) -> int:
    """Be the process: have the hosts of a job, and prepare them; return the exit status."""
    pool, directory = arguments
    paths = TrustPaths(Path(directory))
    preparation = replace(Preparation.load(paths), pid=os.getpid())
    preparation.save(paths)

    def say(host: str, text: str) -> None:
        put(f"{host}: {text}\n")
        preparation.said[host] = text
        preparation.save(paths)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        preparation = replace(preparation, hosts=tuple(find_hosts(paths, preparation)))
        preparation.save(paths)
        wanted = Wanted(
            pool,
            load_identity(paths.identity),
            read_private(paths.node).decode(),
            preparation.flags,
            preparation.gpus,
            directory=preparation.directory,
            tunnel=preparation.tunnel,
        )
        settle_on(preparation.hosts, pool)
        prepared = asyncio.run(prepare(preparation.hosts, wanted, say))
    except KeyboardInterrupt:
        replace(preparation, state="failed", error="it was told to end").save(paths)
        return 1
    except MonarchNbError as error:
        replace(preparation, state="failed", error=str(error)).save(paths)
        return 1
    change_hosts(paths, lambda hosts: replace(hosts, ssh=tuple(one.host for one in prepared)))
    replace(preparation, state="serving").save(paths)
    return 0


# ---- allocators that are still to be ended ----
#
# Their hosts could not be reached at the release. A process that the next job of ssh's starts ends them when it finds
# them. Whoever ends a job holds the lock of all pools, so this has another.

Owed = tuple[str, str, str]
"""The host as ssh knows it, our directory on it, and the pool whose node is to be ended there."""


def owe(owed: Iterable[Owed]) -> None:
    """Remember what is to be ended.

    Raises:
        PoolError: it can not be written.
    """
    with locked(config_directory()):
        _write({*_read(), *owed})


def settle_others(pool: str, log: IO[bytes]) -> None:
    """End what can be reached now, but for nodes of a pool, which may start anew there: in a process of its own, so
    that nobody waits for hosts that are away or allocators that take their time."""
    if any(owed[2] != pool for owed in _read()):
        words = [sys.executable, "-m", "monarch_nb.provision.remote.preparing", pool]
        detach(words, config_directory(), daemon_environment(), log)


def settle_on(hosts: Collection[str], pool: str) -> None:
    """End what is owed of a pool on some hosts, before its nodes start there anew."""

    def is_meant(owed: Owed) -> bool:
        return owed[0] in hosts and owed[2] == pool

    if any(map(is_meant, _read())):
        _settle(is_meant)


def _settle(is_meant: Callable[[Owed], bool]) -> None:
    """End what is owed. One process at a time does: else one that began earlier could end what has started since."""

    async def end_all() -> None:
        await asyncio.gather(*(_end(owed) for owed in sorted(_read()) if is_meant(owed)))

    with (config_directory() / "ssh-owed.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(end_all())


async def _end(owed: Owed) -> None:
    host, directory, pool = owed
    with contextlib.suppress(PoolError):
        await stop(host, directory, pool)
        with locked(config_directory()):
            _write(_read() - {owed})


def _path() -> Path:
    return config_directory() / "ssh-owed.json"


def _read() -> set[Owed]:
    try:
        return {(str(host), str(directory), str(pool)) for host, directory, pool in json.loads(read_private(_path()))}
    except (OSError, ValueError, TypeError):
        return set()


def _write(owed: set[Owed]) -> None:
    if owed:
        write_private(_path(), json.dumps(sorted(owed), indent=2).encode() + b"\n")
    else:
        _path().unlink(missing_ok=True)


if __name__ == "__main__":
    _settle(lambda owed: owed[2] != sys.argv[1])
