"""Reservations that end by themselves: unconfirmed, out of time, or used by nobody.

Each node keeps the time limit by itself: all nodes count from the same confirmation. That nobody uses a reservation
is decided by its first node, to which every client is attached and where every run gets its number. It asks the other
nodes, which may run what a client has left, and tells them when it is so. A node that does not answer may run
something: then nothing is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from monarch_nb import config
from monarch_nb.allocator.processes.processes import seconds_since_boot
from monarch_nb.allocator.state.lease import Limits, how_it_ended
from monarch_nb.config import patience
from monarch_nb.errors import MonarchNbError, ReservationNotFound
from monarch_nb.ground.rank_sets import counted
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.times import duration

if TYPE_CHECKING:
    from monarch_nb.allocator.node import Node
    from monarch_nb.allocator.runs.sessions import Session

_log = logging.getLogger(__name__)

PEER_TIMEOUT_S = patience(10.0)
_SAVE, _SIGNAL = "ranks save", "scripts get SIGTERM"


class Expiry:
    """Looks after the ends of a node's reservations: one timer each."""

    def __init__(self, node: Node) -> None:
        self._node, self._state, self._sessions = node, node.state, node.sessions
        self._done: dict[str, set[str]] = {}
        """What was done before the end of reservations."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._saved_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Go on with what the allocator before this one held, now that its processes are known."""
        for reservation_id in list(self._state.leases):
            self.watch(reservation_id)

    def close(self) -> None:
        """Look no more."""
        for timer in self._timers.values():
            timer.cancel()
        for asking in self._asking.values():
            asking.cancel()

    def forget(self, reservation_id: str) -> None:
        """The reservation is being released."""
        if timer := self._timers.pop(reservation_id, None):
            timer.cancel()
        self._saved_s.pop(reservation_id, None)
        self._done.pop(reservation_id, None)

    def watch(self, reservation_id: str) -> None:
        """Look at a reservation when it may have to end."""
        if timer := self._timers.pop(reservation_id, None):
            timer.cancel()
        lease = self._state.leases.get(reservation_id)
        if lease is None or reservation_id in self._node.leases.releases:
            return
        in_s: float | None = config.PROVISIONAL_LEASE_S
        if lease.confirmed:
            in_s = lease.limits.look_in_s(seconds_since_boot(), busy=self.is_busy(reservation_id))
            for due_s in self._before_end(reservation_id, lease.limits).values():
                in_s = min(due_s, in_s or due_s)
        if in_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[reservation_id] = loop.call_later(in_s, self._look, reservation_id)

    def _before_end(self, reservation_id: str, limits: Limits) -> dict[str, float]:
        """Return what is to be done before the time is up, and in how many seconds; not what was done already."""
        left_s = limits.time_left_s(seconds_since_boot())
        if left_s is None:
            return {}
        done, due_s = self._done.setdefault(reservation_id, set()), {}
        for what, before_s in ((_SAVE, self._node.grace.before_s(reservation_id)), (_SIGNAL, self._node.grace.seconds)):
            before_s = min(before_s, limits.time_s / 2)
            if left_s > before_s:
                done.discard(what)
            if before_s and what not in done:
                due_s[what] = max(0.0, left_s - before_s)
        return due_s

    @contextlib.contextmanager
    def held_up(self, reservation_id: str) -> Iterator[None]:
        """A provisional lease does not expire while its ranks are being started: preloads may need minutes."""
        lease = self._state.leases.get(reservation_id)
        if lease is not None and not lease.confirmed:
            self.forget(reservation_id)
        try:
            yield
        finally:
            self.watch(reservation_id)

    def leases_of(self, client_id: str) -> list[str]:
        """Return the reservations that a client is just making."""
        leases = self._state.leases.items()
        return [key for key, lease in leases if not lease.confirmed and lease.request.client_id == client_id != ""]

    def client_is_gone(self, client_id: str) -> None:
        """What a client was making is given back."""
        for reservation_id in self.leases_of(client_id):
            self._node.leases.start_release(reservation_id)

    # ---- who uses it ----

    def is_busy(self, reservation_id: str) -> bool:
        """Whether a client of this node is attached, or a cell runs here."""
        attached = any(reservation_id in session.attached for session in self._sessions)
        return attached or self._state.is_running(reservation_id)

    def used(self, reservation_id: str) -> None:
        """The reservation is used just now."""
        if lease := self._state.leases.get(reservation_id):
            lease.limits.used_s = seconds_since_boot()

    def idle_for_s(self, reservation_id: str) -> float:
        """Return how long nobody has used a reservation here.

        Raises:
            ReservationNotFound: it is not held here.
        """
        lease = self._state.lease(reservation_id)
        return 0.0 if self.is_busy(reservation_id) else seconds_since_boot() - lease.limits.used_s

    def attach(self, session: Session, reservation_id: str) -> None:
        """A client uses a reservation; it is told what others say of its files, whether nodes of it were replaced, and
        when the time is nearly up."""
        self.used(reservation_id)
        session.attached.add(reservation_id)
        if lease := self._state.leases.get(reservation_id):
            if lease.files.revision:
                session.send(files_changed=pb.FilesChanged(reservation_id=reservation_id, files=lease.files))
            if lease.revision:
                changed = pb.MembersChanged(reservation_id=reservation_id, revision=lease.revision)
                session.send(members_changed=changed)
            if lease.limits.is_nearly_up(seconds_since_boot()):
                session.send(time_left=self._time_left(reservation_id))
        elif ended := self._state.ended.get(reservation_id):
            session.send(time_left=pb.TimeLeft(reservation_id=reservation_id, ended=ended))

    def detach(self, session: Session, reservation_id: str) -> None:
        """A client uses a reservation no longer."""
        session.attached.discard(reservation_id)
        self.used(reservation_id)

    # ---- the end ----

    def extend(self, reservation_id: str, time_s: float) -> None:
        """Set the time limit; clients that were warned are told.

        Raises:
            ReservationNotFound: it is not held here, or its time was up: then it ends, although nobody looked yet.
        """
        limits, now_s = self._state.lease(reservation_id).limits, seconds_since_boot()
        if limits.time_left_s(now_s) == 0:
            self._node.leases.start_release(reservation_id, limits.time_is_up)
        if reservation_id in self._node.leases.releases:
            raise self._state.gone(reservation_id)
        was_warned = limits.warned
        limits.extend(time_s, now_s)
        self._node.records.save_lease(reservation_id)
        self.watch(reservation_id)
        if was_warned:
            self._tell(reservation_id, self._time_left(reservation_id))

    def end(self, reservation_id: str, *, why: str = "", by: str = "", asked_at: float = 0.0) -> pb.Ended:
        """A reservation ends: clients learn it before their runs are refused.

        Args:
            why: by itself. by, asked_at: a person released it; see ReleaseRequest.
        """
        request = self._state.leases[reservation_id].request
        ended = self._state.end(reservation_id, asked_at or time.time(), why=why, by=by)
        slots = counted(request.gpus or request.procs, "gpu" if request.gpus else "proc")
        _log.log(
            logging.INFO if by else logging.WARNING, "%s (%s, held by %s)", how_it_ended(ended), slots, ended.owner
        )
        self._tell(reservation_id, pb.TimeLeft(reservation_id=reservation_id, ended=ended))
        return ended

    def _look(self, reservation_id: str) -> None:
        del self._timers[reservation_id]
        lease, now_s = self._state.leases[reservation_id], seconds_since_boot()
        if not lease.confirmed:
            if any(session.client_id and session.client_id == lease.request.client_id for session in self._sessions):
                self.watch(reservation_id)
            else:
                self._node.leases.start_release(reservation_id)
            return
        limits, busy = lease.limits, self.is_busy(reservation_id)
        if limits.time_left_s(now_s) == 0:
            self._node.leases.start_release(reservation_id, limits.time_is_up)
            return
        if limits.is_nearly_up(now_s) and not limits.warned:
            limits.warned = True
            self._tell(reservation_id, self._time_left(reservation_id))
        left_s = limits.time_left_s(now_s) or 0.0
        for what, due_s in self._before_end(reservation_id, limits).items():
            if due_s:
                continue
            self._done[reservation_id].add(what)
            if what == _SAVE:
                self._node.grace.ask_soon(reservation_id, f"the time is up in {duration(left_s)}", left_s)
            else:
                self._node.grace.warn_of_end(reservation_id, left_s)
        if busy:
            limits.used_s = now_s
        if limits.used_s != self._saved_s.get(reservation_id):
            self._saved_s[reservation_id] = limits.used_s
            self._node.records.save_lease(reservation_id)
        is_idle = limits.idle_left_s(now_s, busy=busy) == 0 and lease.request.node_rank == 0
        if is_idle and reservation_id not in self._asking:
            task = self._asking[reservation_id] = asyncio.create_task(self._end_idle(reservation_id))
            task.add_done_callback(lambda _: self._asking.pop(reservation_id))
        self.watch(reservation_id)

    async def _end_idle(self, reservation_id: str) -> None:
        """Release a reservation on all its nodes, if nobody uses it there either."""
        lease = self._state.leases[reservation_id]
        others = lease.nodes[1:]
        request = pb.IdleRequest(reservation_id=reservation_id)
        replies = await asyncio.gather(*(self._idle_for_s(peer, request) for peer in others))
        if silent := [peer.node_id for peer, idle_for_s in zip(others, replies, strict=True) if idle_for_s is None]:
            away = ", ".join(silent)
            _log.info("%s is idle here, but %s may run a cell and does not answer", lease.request.name, away)
            return
        now_s, limits = seconds_since_boot(), lease.limits
        limits.used_s = max([limits.used_s, *(now_s - idle_for_s for idle_for_s in replies if idle_for_s is not None)])
        busy = self.is_busy(reservation_id)  # somebody may have come meanwhile
        if reservation_id not in self._state.leases or limits.idle_left_s(now_s, busy=busy) != 0:
            return
        why = limits.was_idle
        self._node.leases.start_release(reservation_id, why)  # before the others: from now on no run gets a number
        release = pb.ReleaseRequest(reservation_id=reservation_id, why=why)
        calls = (self._node.files.relay.call(peer, "Release", release, PEER_TIMEOUT_S) for peer in others)
        for peer, reply in zip(others, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(reply, BaseException):
                _log.warning("%s could not be released on %s: %s", lease.request.name, peer.node_id, reply)

    async def _idle_for_s(self, peer: files_pb2.Peer, request: pb.IdleRequest) -> float | None:
        """Return how long nobody has used it there, None when that is not known."""
        try:
            reply: pb.IdleReply = await self._node.files.relay.call(peer, "Idle", request, PEER_TIMEOUT_S)
        except ReservationNotFound:
            return float("inf")
        except MonarchNbError:
            return None
        return reply.idle_for_s

    def _time_left(self, reservation_id: str) -> pb.TimeLeft:
        limits, now_s = self._state.leases[reservation_id].limits, seconds_since_boot()
        return pb.TimeLeft(
            reservation_id=reservation_id,
            time_s=limits.time_s,
            left_s=limits.time_left_s(now_s) or 0.0,
            nearly_up=limits.is_nearly_up(now_s),
        )

    def _tell(self, reservation_id: str, message: pb.TimeLeft) -> None:
        for session in self._sessions:
            if reservation_id in session.attached:
                session.send(time_left=message)
