"""What people hold of the pool, counted over all of its nodes, and the limits of that.

A node leases first and counts then: what it has leased is there for the other nodes to see before it asks them. So of
two nodes that lease at the same time to one person, at least one sees both leases, and no limit is passed; both may
refuse. What is refused is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import hashlib
import json
import logging
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.allocator.state import quotas
from monarch_nb.allocator.state.quotas import Holdings, Quotas, read_quotas
from monarch_nb.allocator.state.state import Lease
from monarch_nb.config import NodePaths, TrustPaths, cadence, patience
from monarch_nb.errors import MonarchNbError, UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.rpc.channel import is_local
from monarch_nb.trust.pools import Hosts, read_all_hosts
from monarch_nb.trust.published import published

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node

_log = logging.getLogger(__name__)

ANSWER_S = patience(3.0)
"""So long a node may take to say who holds what: somebody waits for it."""
QUIET_S = cadence(10.0)
"""One that did not answer is not asked again for so long."""


def _of_this_machine(pool: Path) -> Iterable[str]:
    for path in sorted(pool.glob(f"*/{NodePaths(pool).facts.name}")):
        try:
            yield str(json.loads(path.read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # it is ending


def _of_network(words: Sequence[str], trust: TrustPaths | None, publish: Path | None) -> Iterable[str]:
    known = [Hosts(directory=str(publish or ""))]
    try:
        own = Hosts()
        for word in words:
            own = own.added(word)
        known += [own, *([read_all_hosts(trust)] if trust else [])]
    except MonarchNbError as error:
        _log.warning("other nodes of the pool are not known: %s", error)
    for hosts in known:
        yield from hosts.nodes
        yield from (host.address for host in hosts.ssh)
        if hosts.directory:
            yield from (node.address for node in published(Path(hosts.directory)) if not node.is_stale)
        if hosts.dns:
            yield from _behind(hosts.dns)


def _behind(name: str) -> list[str]:
    host, _, port = name.rpartition(":")
    try:
        found = {str(answer[4][0]) for answer in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)}
    except OSError:
        return []
    return [f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in sorted(found)]


GROUPS_KEPT_S = cadence(60.0)
_DIGITS = 16
"""Of a digest."""


class LimitsFile:
    """The file of a node's limits, read again when it has changed.

    Args:
        path: where it is, or may come to be; None: nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read: tuple[object, Quotas | None] = (None, None)
        self.digest = ""
        """Of the text that the limits are from."""
        self.problems: list[str] = []
        """Of what the file says now."""

    def newest(self) -> Quotas | None:
        """Return the limits; None where there is no file. While the file is spoilt they are what they were before."""
        if self.path is None:
            return None
        try:
            facts = self.path.stat()
        except FileNotFoundError:
            self._read, self.problems, self.digest = (None, None), [], ""
            return None
        except OSError as error:
            self._is_wrong([f"it can not be read: {error.strerror}"])
            return self._read[1]
        state = facts.st_mtime_ns, facts.st_ino, facts.st_size, facts.st_mode
        if self._read[0] != state:
            self._read = state, self._take_in(facts)
        return self._read[1]

    def _take_in(self, facts: os.stat_result) -> Quotas | None:
        before = self._read[1]
        assert self.path is not None
        if facts.st_uid not in (os.getuid(), 0) or stat.S_IMODE(facts.st_mode) & 0o022:
            self._is_wrong(["others can change it: it must be root's or yours, with mode 644 or 600"])
            return before
        try:
            text = self.path.read_text()
            read, problems = read_quotas(text)
        except (OSError, UnicodeDecodeError) as error:
            read, problems = Quotas(), [f"it can not be read: {error}"]
        if problems:
            self._is_wrong(problems)
            return before
        self.problems, self.digest = [], hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        _log.info("the limits are those of %s", self.path)
        return read

    def check(self) -> None:
        """Raise UsageError when the file can not be used: a node does not start without the limits that it has."""
        if self.newest() is None and self.problems:
            raise UsageError(f"{self.path}: {'; '.join(self.problems)} (monarch-nb pool limits shows it)")

    def _is_wrong(self, problems: list[str]) -> None:
        if problems != self.problems:
            _log.warning("%s: %s; the limits stay as they were", self.path, "; ".join(problems))
        self.problems = problems


class Fairness:
    """Counts for one node what people hold of its pool, and refuses what would be too much.

    Args:
        trust: of the pool, where its files lie on this host; None for a local pool.
        publish: where nodes publish themselves, if this one does.
    """

    def __init__(self, node: Node, trust: TrustPaths | None, publish: Path | None) -> None:
        self._identity, self._state, self._file = node.identity, node.state, node.limits
        self._pool, self._relay = node.paths.directory.parent, node.files.relay
        self._trust, self._publish = trust, publish
        self._groups: dict[str, tuple[float, frozenset[str]]] = {}
        self._quiet_until_s: dict[str, float] = {}

    # ---- limits ----

    async def check(self, reservation_id: str) -> None:
        """Let a lease stay that was just taken, or raise: then it is to be given back.

        Raises:
            LimitReached: somebody would have more than they may.
        """
        limits = self._file.newest()
        if limits is None or reservation_id not in self._state.leases:
            return
        holdings, *_ = await self._ask()
        await self._learn_groups(limits, holdings.people)
        if reservation_id in holdings.reserved:
            where, node = str(self._file.path), self._identity.node_id
            quotas.check(limits, holdings, reservation_id, self._groups_of, where, node)

    async def _ask(self) -> tuple[Holdings, list[str], list[str]]:
        """Return what people hold of the pool, the addresses of all other nodes, and of those that do not answer."""
        addresses = await asyncio.to_thread(self._addresses)
        now_s = time.monotonic()
        asked = [one for one in addresses if self._quiet_until_s.get(one, 0.0) <= now_s]
        replies = dict(zip(asked, await asyncio.gather(*map(self._usage_of, asked)), strict=True))
        answers = {reply.token: reply for reply in replies.values() if reply is not None}  # each node once
        answers[self._identity.token] = self.usage()
        return Holdings.told(answers.values()), addresses, [one for one in addresses if replies.get(one) is None]

    async def _usage_of(self, address: str) -> pb.UsageReply | None:
        peer = files_pb2.Peer(node_id=address, address=address)
        try:
            reply: pb.UsageReply = await self._relay.call(peer, "Usage", pb.UsageRequest(), ANSWER_S, as_node=True)
        except MonarchNbError as error:
            _log.info("%s does not say who holds what there: %s", address, error)
            self._quiet_until_s[address] = time.monotonic() + QUIET_S
            return None
        return reply

    def _addresses(self) -> list[str]:
        """Return where other nodes are, as far as this one knows."""
        if is_local(self._identity.address):
            found = _of_this_machine(self._pool)
        else:
            limits = self._file.newest()
            found = _of_network(limits.nodes if limits else (), self._trust, self._publish)
        return [address for address in dict.fromkeys(found) if address != self._identity.address]

    async def _learn_groups(self, limits: Quotas, people: set[str]) -> None:
        now_s = time.monotonic()
        unix = [entry.name for entry in limits.groups if entry.members is None and "*" not in entry.name]
        stale = [one for one in people if now_s - self._groups.get(one, (-GROUPS_KEPT_S, None))[0] >= GROUPS_KEPT_S]
        if stale:
            found = await asyncio.to_thread(_unix_groups, stale, unix)
            self._groups |= {person: (now_s, found[person]) for person in stale}

    def _groups_of(self, person: str) -> set[str]:
        limits = self._file.newest()
        if limits is None:
            return set()
        _, of_unix = self._groups.get(person, (0.0, frozenset()))
        return limits.listed_groups(person) | (of_unix & set(limits.group_names))

    # ---- what is told ----

    def usage(self) -> pb.UsageReply:
        """Return who holds what here."""
        limits = self._file.newest()
        return pb.UsageReply(
            node_id=self._identity.node_id,
            token=self._identity.token,
            held=[_held(reservation_id, lease) for reservation_id, lease in self._state.leases.items()],
            limits_file=str(self._file.path) if limits is not None or self._file.problems else "",
            limits_digest=self._file.digest,
            problems=self._file.problems,
        )

    async def usage_with_standings(self, asker: str) -> tuple[pb.UsageReply, set[str]]:
        """Return the same, and who is how near to which limit in the pool; and the groups of who asks."""
        limits = self._file.newest()
        holdings, others, silent = await self._ask()
        reply = self.usage()
        reply.silent.extend(silent)
        reply.asks_others = bool(others)
        if limits is not None:
            await self._learn_groups(limits, holdings.people | {asker, *(entry.name for entry in limits.people)})
            reply.standings.extend(quotas.standings(limits, holdings, self._groups_of, [asker]))
        return reply, self._groups_of(asker)


def _held(reservation_id: str, lease: Lease) -> pb.Held:
    request = lease.request
    return pb.Held(
        reservation_id=reservation_id,
        name=request.name,
        owner=request.owner,
        node_rank=request.node_rank,
        nodes=request.nodes,
        gpus=request.gpus,
        confirmed=lease.confirmed,
    )


def _unix_groups(people: list[str], groups: list[str]) -> dict[str, frozenset[str]]:
    """Return which of some groups of this machine people are in. It may ask a server."""
    found: dict[str, set[str]] = {person: set() for person in people}
    for name in groups:
        with contextlib.suppress(KeyError, OSError):
            group = grp.getgrnam(name)
            for person in people:
                with contextlib.suppress(KeyError, OSError, ValueError):
                    if person in group.gr_mem or pwd.getpwnam(person).pw_gid == group.gr_gid:
                        found[person].add(name)
    return {person: frozenset(names) for person, names in found.items()}
