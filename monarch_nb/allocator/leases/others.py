"""The other nodes of the pool, as far as this one knows where they are: asked who holds what there."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from monarch_nb.allocator.files.relay import Relay
from monarch_nb.config import NodePaths, TrustPaths, cadence, patience
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.rpc.channel import is_local
from monarch_nb.trust.pools import Hosts, read_all_hosts
from monarch_nb.trust.published import published

_log = logging.getLogger(__name__)

ANSWER_S = patience(3.0)
"""So long a node may take to say who holds what: somebody waits for it."""
QUIET_S = cadence(10.0)
"""One that did not answer is not asked again for so long."""


class Others:
    """Knows the other nodes.

    Args:
        address: of this node.
        paths: its own. trust: those of its pool, where these lie on this host; None for a local pool.
        words: returns where nodes are besides, in words of `monarch-nb pool add`.
        publish: where nodes publish themselves, if this one does.
    """

    def __init__(
        self,
        address: str,
        token: str,
        paths: NodePaths,
        relay: Relay,
        words: Callable[[], Sequence[str]],
        trust: TrustPaths | None = None,
        publish: Path | None = None,
    ) -> None:
        self._address, self._token, self._paths, self._relay = address, token, paths, relay
        self._words, self._trust, self._publish = words, trust, publish
        self._quiet_until_s: dict[str, float] = {}
        self._known = False

    @property
    def are_known(self) -> bool:
        """Whether there were any when they were asked last."""
        return self._known

    async def ask(self) -> tuple[list[pb.UsageReply], list[str]]:
        """Return what the other nodes say of who holds what, each once, and the addresses of those that do not
        answer."""
        addresses = await asyncio.to_thread(self._addresses)
        self._known = bool(addresses)
        now_s = time.monotonic()
        asked = [one for one in addresses if self._quiet_until_s.get(one, 0.0) <= now_s]
        replies = await asyncio.gather(*map(self._told_by, asked))
        told = dict(zip(asked, replies, strict=True))
        answers = {reply.token: reply for reply in replies if reply is not None and reply.token != self._token}
        return list(answers.values()), [one for one in addresses if told.get(one) is None]

    async def _told_by(self, address: str) -> pb.UsageReply | None:
        peer = files_pb2.Peer(node_id=address, address=address)
        try:
            reply: pb.UsageReply = await self._relay.call(peer, "Usage", pb.UsageRequest(), ANSWER_S, as_node=True)
        except MonarchNbError as error:
            _log.info("%s does not say who holds what there: %s", address, error)
            self._quiet_until_s[address] = time.monotonic() + QUIET_S
            return None
        return reply

    def _addresses(self) -> list[str]:
        if is_local(self._address):
            found = _of_this_machine(self._paths.directory.parent)
        else:
            found = _of_network(self._words(), self._trust, self._publish)
        return [address for address in dict.fromkeys(found) if address != self._address]


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
