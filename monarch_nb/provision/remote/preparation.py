"""A process of this machine that prepares the hosts of a job, so that a kernel can go meanwhile; it holds a lock as
long as it is at it, and what it does stands in a file beside."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from monarch_nb.config import TrustPaths, cadence, patience
from monarch_nb.errors import MonarchNbError, PoolError
from monarch_nb.ground.interrupting import pause
from monarch_nb.ground.printing import put
from monarch_nb.provision.daemons import daemon_environment, detach
from monarch_nb.provision.launchers import Ask, Job, Look
from monarch_nb.provision.remote.command import waited_for
from monarch_nb.provision.remote.owed import settle_on, settle_others
from monarch_nb.provision.remote.preparing import Wanted, end, look, prepare
from monarch_nb.trust.identity import load_identity
from monarch_nb.trust.pools import SshHost, change_hosts
from monarch_nb.trust.private_files import read_private, write_private

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
