"""`monarch-nb pool init --ssh` and what ends such hosts: nodes of a pool on hosts that ssh reaches."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from monarch_nb.config import patience
from monarch_nb.errors import NodeUnreachable, PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision.daemons import describe
from monarch_nb.provision.remote.command import checked_hosts
from monarch_nb.provision.remote.preparing import Prepared, Wanted, end, prepare
from monarch_nb.provision.remote.tunnels import address_of, forget
from monarch_nb.provision.ssh import check_directory
from monarch_nb.trust.identity import load_identity
from monarch_nb.trust.pools import Hosts, SshHost, change_hosts, paths_of, read_hosts
from monarch_nb.trust.private_files import read_private

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity

ANSWER_S = patience(20.0)


def set_up(pool: str, options: argparse.Namespace) -> int:
    """Make nodes of a pool on hosts, all or none; return the exit status."""
    paths = paths_of(pool)
    known = read_hosts(paths)
    hosts = checked_hosts(options.ssh or [host.destination for host in known.ssh])
    if not hosts:
        raise UsageError(f"which hosts? monarch-nb pool init {pool} --ssh host1 host2")
    check_directory(options.directory)
    flags = ("--pool", pool, "--port", str(options.port))
    wanted = Wanted(
        pool,
        load_identity(paths.identity),
        read_private(paths.node).decode(),
        (*flags, "--interface", known.interface) if known.interface else flags,
        lasting=True,
        directory=options.directory or next((host.directory for host in known.ssh), ""),
        tunnel=options.tunnel,
    )
    prepared = asyncio.run(prepare(hosts, wanted, lambda host, text: print(f"{host}: {text}", flush=True)))
    made = {one.host.destination: one.host for one in prepared}

    def add(hosts: Hosts) -> Hosts:
        return replace(hosts, ssh=tuple({**{host.destination: host for host in hosts.ssh}, **made}.values()))

    change_hosts(paths, add)
    for one in prepared:
        print(f"{one.host.destination}: {_described(one)}")
    if all(one.was_there for one in prepared):
        print("there was nothing to do")
        return 0
    return _examined(pool)


def _described(one: Prepared) -> str:
    way = "through ssh" if one.host.tunnel else "directly"
    runs = "had its allocator already" if one.was_there else "has an allocator"
    kept = f", kept by systemd as {one.unit}" if one.unit else ""
    return f"{runs} at {one.host.address}, reached {way}{kept}"


def _examined(pool: str) -> int:
    from monarch_nb.client.doctor.doctor import examine_pool

    diagnosis = examine_pool(pool)
    print(f"\n{diagnosis}")
    return 0 if diagnosis.healthy else 1


def take_down(pool: str, hosts: Sequence[SshHost], *, force: bool) -> None:
    """End the allocators on hosts, and leave nothing there but what is for next time; the pool forgets them.

    Raises:
        PoolError: reservations are held there and `force` is false, or a host is not reached.
    """
    paths = paths_of(pool)
    identity = load_identity(paths.identity)
    with ThreadPoolExecutor(max_workers=16) as threads:
        if not force and (held := sorted(set().union(*threads.map(lambda host: _holders(host, identity), hosts)))):
            raise PoolError(f"held by {', '.join(held)}: release first, or end everything with --force")
    ended = asyncio.run(_end_all(pool, hosts, identity))
    gone = [host for host, error in zip(hosts, ended, strict=True) if error is None]
    change_hosts(paths, lambda known: replace(known, ssh=tuple(host for host in known.ssh if host not in gone)))
    forget(gone)
    for host in gone:
        print(f"{host.destination}: ended; what was installed stays for next time")
    if failures := [f"{host.name}: {error}" for host, error in zip(hosts, ended, strict=True) if error]:
        raise PoolError(f"{counted(len(failures), 'host')} could not be cleaned up: {'; '.join(failures)}")


def _holders(host: SshHost, identity: Identity) -> set[str]:
    try:
        return {f"{each.reservation} ({each.owner})" for each in describe(address_of(host), ANSWER_S, identity).holders}
    except NodeUnreachable:  # it has ended already, or is told of below
        return set()


async def _end_all(pool: str, hosts: Sequence[SshHost], identity: Identity) -> list[PoolError | None]:
    async def end_one(host: SshHost) -> PoolError | None:
        try:
            await end(host, pool, identity)
        except PoolError as error:
            return error
        return None

    return list(await asyncio.gather(*map(end_one, hosts)))
