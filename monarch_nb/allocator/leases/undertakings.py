"""What clients have begun on several nodes, and who ends it when such a client is gone before it is whole.

Each node does its own part whole. But a client that is killed after it has told some nodes and not the others would
leave half a reservation, or half a mesh. So it says to one node first what it is about to do and where, and at the end
that it is done. When that client is gone before, the node has all of them end it: at once where it sees that the
process has ended, else when the client's session has been away for 20 s.

A client that uses a mesh which is to end with its users says so in the same way. When it and all others who have said
so are gone for as long as they wanted, the node has all nodes end the mesh.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Iterable

from monarch_nb import config
from monarch_nb.allocator.leases.expiry import Expiry
from monarch_nb.allocator.leases.owed import Owed
from monarch_nb.allocator.recovery.records import Records
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.allocator.supervision import processes
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto.state_pb2 import ProcessIdentity

_log = logging.getLogger(__name__)

MOST = 1000
"""Of undertakings at a time: more is no client of ours."""


class Undertakings:
    """Looks after clients that make or end something on several nodes.

    Args:
        sessions: the clients, as they come and go.
        expiry: told when a client is gone that has not confirmed what it leased.
        owed: tells nodes what they are to end.
    """

    def __init__(self, records: Records, sessions: Iterable[Session], expiry: Expiry, owed: Owed) -> None:
        self._records, self._sessions, self._expiry, self._owed = records, sessions, expiry, owed
        self._begun: dict[str, pb.UndertakeRequest] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one was told: its clients may come back."""
        self._begun = self._records.undertakings()
        for request in self._begun.values():
            self._wait_for(request.client_id)

    def take(self, request: pb.UndertakeRequest) -> None:
        """A client is about to make or end something on several nodes, or has done so.

        Raises:
            UsageError: nobody knows whose it is, or too much is under way.
        """
        if not request.owner:
            raise UsageError("say whose reservation it is: this node does not know it")
        key = f"{request.client_id}/{request.reservation_id}/{request.mesh_id}"
        if request.done:
            if self._begun.pop(key, None):
                self._records.end_undertaking(key)
            return
        if len(self._begun) >= MOST:
            raise UsageError(f"this node is making or ending {MOST} reservations and meshes already: try again later")
        self._begun[key] = request
        self._records.save_undertaking(key, request)
        if not self._is_here(request.client_id):
            self._wait_for(request.client_id)

    def mesh_is_whole(self, mesh_id: str) -> None:
        """What was undertaken to make a mesh is done."""
        making = (key for key, one in self._begun.items() if one.mesh_id == mesh_id and not one.linger_s)
        for key in list(making):
            del self._begun[key]
            self._records.end_undertaking(key)

    def session_left(self, session: Session) -> None:
        """A client is gone, or its connection broke."""
        client_id = session.client_id
        if self._expiry.leases_of(client_id) or any(one.client_id == client_id for one in self._begun.values()):
            self._wait_for(client_id, session.process)

    def close(self) -> None:
        """Look after nobody any more; the next allocator does."""
        for task in self._waiting.values():
            task.cancel()

    def _is_here(self, client_id: str) -> bool:
        return any(session.client_id == client_id for session in self._sessions)

    def _wait_for(self, client_id: str, process: ProcessIdentity | None = None) -> None:
        if earlier := self._waiting.get(client_id):
            earlier.cancel()
        task = self._waiting[client_id] = asyncio.create_task(self._wait(client_id, process))
        task.add_done_callback(functools.partial(self._waited, client_id))

    def _waited(self, client_id: str, task: asyncio.Task[None]) -> None:
        if self._waiting.get(client_id) is task:
            del self._waiting[client_id]

    async def _wait(self, client_id: str, process: ProcessIdentity | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.PROVISIONAL_LEASE_S):
                await _end_of(process)
        if not self._is_here(client_id):
            self._end_all(client_id)
        waited_s = 0.0
        while lingers := sorted(one.linger_s for one in self._of(client_id) if one.linger_s):
            await asyncio.sleep(lingers[0] - waited_s)
            waited_s = lingers[0]
            if self._is_here(client_id):
                return
            self._leave_used(client_id, waited_s)

    def _of(self, client_id: str) -> list[pb.UndertakeRequest]:
        return [request for request in self._begun.values() if request.client_id == client_id]

    def _leave_used(self, client_id: str, gone_s: float) -> None:
        """A client is gone for so long: meshes that it has used end, unless another client uses them."""
        for key, request in list(self._begun.items()):
            if request.client_id == client_id and 0 < request.linger_s <= gone_s:
                del self._begun[key]
                self._records.end_undertaking(key)
                if not any(one.mesh_id == request.mesh_id and one.linger_s for one in self._begun.values()):
                    _log.info("nobody uses mesh %s: this node ends it on all its nodes", request.mesh_id)
                    self._owed.take(request)

    def _end_all(self, client_id: str) -> None:
        self._expiry.client_is_gone(client_id)
        for key, request in list(self._begun.items()):
            if request.client_id == client_id and not request.linger_s:
                what = f"mesh {request.mesh_id}" if request.mesh_id else f"reservation {request.reservation_id}"
                _log.warning("a client died while it made or ended %s: this node ends it on all its nodes", what)
                self._owed.take(request)
                del self._begun[key]
                self._records.end_undertaking(key)


async def _end_of(process: ProcessIdentity | None) -> None:
    """Wait for the end of a process; for ever, when it is not known which one it is."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(process.pid) if process else -1
    except ProcessLookupError:
        return
    except OSError:  # no descriptors
        pidfd = -1
    try:
        if process is not None and pidfd >= 0:
            if not processes.is_alive(process):
                return
            loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        if pidfd >= 0:
            loop.remove_reader(pidfd)
            os.close(pidfd)
