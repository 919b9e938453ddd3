"""Who was revoked, brought to nodes that do not know it: one that was away when somebody was shut out learns it from
whoever of the pool comes next."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from monarch_nb.client.connections.connection import Connection
from monarch_nb.errors import MonarchNbError, TrustError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.trust.pools import paths_of
from monarch_nb.trust.revocation import Revocations

if TYPE_CHECKING:
    from monarch_nb.trust.identity import Identity


class Messenger:
    """Knows the newest list of a pool that lies on this computer.

    Args:
        pool: its name.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._read: tuple[int, Revocations] = (0, Revocations())

    async def bring(self, connection: Connection, number: int) -> None:
        """Bring a node the list if it has an older one, numbered `number`. One that does not take it is asked again."""
        if connection.identity is None:
            return
        newest = self._newest(connection.identity)
        if newest.number > number:
            with contextlib.suppress(MonarchNbError):
                await connection.unary("Revoke", pb.RevokeRequest(revocations=newest.pem))

    def _newest(self, identity: Identity) -> Revocations:
        with contextlib.suppress(OSError, TrustError):
            path = paths_of(self._pool).revoked
            changed_ns = path.stat().st_mtime_ns
            if changed_ns != self._read[0]:
                self._read = changed_ns, Revocations.load(path, identity.authority)
        return self._read[1]
