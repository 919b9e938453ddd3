"""Pools of hosts: allocators that run on other machines, started there by people, systemd or a scheduler. They are
found by a list, in a directory of a shared file system, or by DNS; reserving starts and ends nothing."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.config import DEFAULT_POOL, cadence
from monarch_nb.errors import AccessDenied, PoolError, UsageError
from monarch_nb.ground.rank_sets import counted
from monarch_nb.provision import Node, Progress, Provisioner
from monarch_nb.provision.remote.tunnels import address_of
from monarch_nb.trust.heard import read_heard
from monarch_nb.trust.identity import ADMIN
from monarch_nb.trust.identity_file import IdentityFile
from monarch_nb.trust.pools import paths_of, read_all_hosts
from monarch_nb.trust.published import published

if TYPE_CHECKING:
    pass

DNS_KEPT_S = cadence(5.0)
"""So long an answer of the name server is good."""


class HostsProvisioner(Provisioner):
    """The nodes of pools that `monarch-nb pool init` made or `monarch-nb pool join` took in.

    Example:
        >>> HostsProvisioner().nodes(pool="lab")  # doctest: +SKIP
    """

    title = "pool of hosts"

    def __init__(self) -> None:
        self._identities: dict[Path, IdentityFile] = {}
        self._resolved: dict[str, tuple[float, list[str]]] = {}

    def up(self, *_: object, pool: str = DEFAULT_POOL, **__: object) -> list[Node]:
        """Refuse: nobody starts processes on other people's machines.

        Raises:
            UsageError: always; the message says what starts a node.
        """
        raise UsageError(
            f"{pool} is a pool of hosts: on each, run monarch-nb allocator --pool {pool} --listen HOST:7878, and tell "
            f"this computer with monarch-nb pool add {pool} HOST:7878"
        )

    def down(self, force: bool = False, *, pool: str = DEFAULT_POOL, progress: Progress | None = None) -> int:
        """End every allocator that answers, with its ranks; return how many there were.

        Raises:
            PoolError: reservations are held and `force` is false, or nodes did not answer.
            AccessDenied: only who made the pool may.
        """
        from monarch_nb.provision.daemons import describe, shut_down

        nodes = self.nodes(pool=pool)
        if nodes and nodes[0].identity and nodes[0].identity.role != ADMIN:
            raise AccessDenied(
                f"only the person who made the pool {pool} can end its nodes; %mesh release gives back what you hold"
            )
        with ThreadPoolExecutor(max_workers=16) as threads:
            if not force:
                replies = threads.map(lambda node: describe(node.address, identity=node.identity), nodes)
                holders = {f"{each.reservation} ({each.owner})": None for reply in replies for each in reply.holders}
                if holders:
                    raise PoolError(f"held by {', '.join(holders)}: release first, or end everything with --force")
            if progress:
                progress(f"ending {counted(len(nodes), 'node')}")
            answered = list(threads.map(lambda node: shut_down(node.address, identity=node.identity), nodes))
        if silent := [node.node_id for node, has in zip(nodes, answered, strict=True) if not has]:
            raise PoolError(f"{', '.join(silent)} did not answer: their ranks go on; run this again when they are back")
        return len(nodes)

    def nodes(self, *, pool: str = DEFAULT_POOL) -> list[Node]:
        """Return the nodes that the pool is said to have, called as they call themselves, where that is known; whether
        they live is to be asked of them.

        Raises:
            PoolError: the pool has no certificate for us, or its directory or name can not be read.
        """
        paths = paths_of(pool)
        identity = self._identities.setdefault(paths.identity, IdentityFile(paths.identity)).newest()
        known = read_all_hosts(paths)
        places = [Path(known.directory)] if known.directory else []
        places += sorted(paths.jobs.glob(f"*/{paths.published.name}"))
        told = [each for place in places for each in published(place) if not each.is_stale]
        called = [each.node_id for each in told]
        heard = read_heard(paths)
        names = {address: one.name for address, one in heard.items()}
        names |= {each.address: each.node_id for each in told if called.count(each.node_id) == 1}
        addresses = [*known.nodes, *(each.address for each in told)]
        if known.dns:
            try:
                addresses += self._resolve(known.dns)
            except PoolError:
                if not addresses:
                    raise
                addresses.append(known.dns)  # a node that does not answer: the others are there all the same
        addresses = list(dict.fromkeys(addresses))
        hosts = [address.rpartition(":")[0] for address in addresses]
        by_ssh = [Node(host.name, Path(), address_of(host), 0, identity, host.address) for host in known.ssh]
        own = [names.get(address, "") for address in addresses]
        found = [
            name if name and own.count(name) == 1 else host if hosts.count(host) == 1 else address
            for name, host, address in zip(own, hosts, addresses, strict=True)
        ]
        reached = [heard[address].node_address if address in heard else "" for address in addresses]
        return [
            Node(name, Path(), address, 0, identity, node_address)
            for name, address, node_address in zip(found, addresses, reached, strict=True)
        ] + by_ssh

    def _resolve(self, name: str) -> list[str]:
        """Return the addresses behind a name, as of a headless Service."""
        asked_s, found = self._resolved.get(name, (0.0, []))
        if asked_s and time.monotonic() - asked_s < DNS_KEPT_S:
            return found
        host, _, port = name.rpartition(":")
        try:
            answers = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            raise PoolError(
                f"no node is found: the name {host} has no address ({error}); is it right, and known here? "
                f"monarch-nb pool remove POOL dns:{name} forgets it"
            ) from error
        found = sorted({_joined(str(answer[4][0]), port) for answer in answers})
        self._resolved[name] = time.monotonic(), found
        return found


def _joined(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
