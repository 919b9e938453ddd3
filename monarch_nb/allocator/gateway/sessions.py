"""One client's session, carried on in the rooms that it is about: what the client says goes to the room concerned, and
what rooms say goes to the client. When a room is lost, so is the session: the client opens another one and goes on
from where it was, as after any break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch_nb.allocator.gateway.frames import Frames
from monarch_nb.allocator.gateway.rooms import Room, Rooms
from monarch_nb.allocator.sessions.sessions import MAX_UNSENT_BYTES, Session
from monarch_nb.errors import MonarchNbError, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.callers import Caller
from monarch_nb.rpc.status import error_to_json

MOST_OF_PERSON_BYTES, LEAST_OF_SESSION_BYTES = 64 << 20, 256 << 10
"""So much may wait, in each direction, for the clients of one person and for the rooms that they talk to: an equal
share for each session. Then the other side is not read."""
_UNANSWERED = 4
"""Shares that wait for a client which does not read: then it is not heard. Rooms are not heard after one."""
_COUNTED_BYTES = 100
"""A message takes some memory, whatever is in it."""
MAX_RUNS = 10_000
"""Of one session, whose rooms are remembered."""
OF_RUNS = frozenset({"queued", "started", "output", "finished", "refused"})


class _InRoom(NamedTuple):
    room: Room
    frames: Frames


class Carried:
    """One session.

    Args:
        session: the client's.
        caller: whose it is.
        opening: what the client said first.
        lost: called when a room is lost.

    Attributes:
        person: whose it is.
        is_lost: whether one is.
        refusal: why this session has no runs; None: it may have some.
    """

    def __init__(
        self, rooms: Rooms, session: Session, caller: Caller, opening: pb.Open, lost: Callable[[], object]
    ) -> None:
        self._rooms, self._session, self._caller, self._lost = rooms, session, caller, lost
        self._opening, self.is_lost, self._is_closed = opening, False, False
        self.person, self._most_bytes = caller.name, session.most_unsent_bytes
        self.refusal: MonarchNbError | None = None
        self._said: asyncio.Queue[tuple[pb.SessionRequest, bytes]] = asyncio.Queue()
        self._waiting_bytes, self._has_room = 0, asyncio.Event()
        """Of messages that are not passed on yet."""
        self._in_rooms: dict[str, _InRoom] = {}
        self._runs: dict[str, str] = {}
        """By run, the account of its room."""
        self._tasks = [asyncio.create_task(self._carry())]

    def say(self, request: pb.SessionRequest) -> None:
        """Pass a message on, in its turn: at once, if none waits and its room is known."""
        data = request.SerializeToString()
        if not self._waiting_bytes and (inside := self._inside(request)):
            inside.frames.send(data)
            return
        self._waiting_bytes += _COUNTED_BYTES + len(data)
        self._said.put_nowait((request, data))

    def open_again(self, opening: pb.Open) -> None:
        """The client says of itself what it did not say before: that it takes mail."""
        self._opening = opening
        self.say(pb.SessionRequest(open=opening))

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def share(self, sessions: int) -> None:
        """Their person has so many sessions now."""
        most_bytes = min(MAX_UNSENT_BYTES, max(LEAST_OF_SESSION_BYTES, MOST_OF_PERSON_BYTES // sessions))
        self._most_bytes = self._session.most_unsent_bytes = most_bytes
        for inside in self._in_rooms.values():
            inside.frames.limit(most_bytes)

    async def room(self) -> None:
        """Wait until rooms, and the client, have read what waits for them, if that is much."""
        while self._waiting_bytes > self._most_bytes:
            self._has_room.clear()
            await self._has_room.wait()
        for inside in list(self._in_rooms.values()):
            await inside.frames.room()
        if self._session.unsent_bytes > _UNANSWERED * self._most_bytes:
            await self._session.room()

    async def _carry(self) -> None:
        while True:
            request, data = await self._said.get()
            try:
                for inside in await self._insides(request):
                    inside.frames.send(data)
            except MonarchNbError as error:
                kind = request.WhichOneof("message") or ""
                message: Any = getattr(request, kind or "open")
                run_id = message.run.run_id if kind == "submit" else getattr(message, "run_id", "")
                if kind not in ("attach", "detach") or not isinstance(error, ReservationNotFound):
                    self._session.send(refused=pb.Refused(run_id=run_id, error_json=error_to_json(error)))
            finally:
                self._waiting_bytes -= _COUNTED_BYTES + len(data)
                self._has_room.set()

    async def _insides(self, request: pb.SessionRequest) -> list[_InRoom]:
        """Return where a message goes. A room that it is the first message for is opened, if it does not run."""
        room = await self._room_for(request)
        if room is None:
            return list(self._in_rooms.values())
        if room.account not in self._in_rooms:
            inside = self._in_rooms[room.account] = _InRoom(room, Frames(self._most_bytes))
            self._tasks.append(asyncio.create_task(self._in(inside)))
        return [self._in_rooms[room.account]]

    def _inside(self, request: pb.SessionRequest) -> _InRoom | None:
        """Return where a message for a mesh goes, if this session is there already."""
        kind = request.WhichOneof("message")
        message: Any = getattr(request, kind or "open")
        account = self._rooms.account_of_mesh(getattr(message, "mesh_id", ""))
        if inside := self._in_rooms.get(account):
            self._note_run(kind, message, account)
        return inside

    async def _room_for(self, request: pb.SessionRequest) -> Room | None:
        """Return the room that a message is for; None: all that there are."""
        kind = request.WhichOneof("message")
        message: Any = getattr(request, kind or "open")
        if kind in ("attach", "detach"):
            return await self._rooms.of_reservation(message.reservation_id)
        if kind == "mail":
            to = (process for envelope in message.envelopes for process in envelope.processes)
            for mesh_id in (process.rpartition("/")[0] for process in to):
                if mesh_id in self._rooms.meshes:
                    return await self._rooms.of_mesh(mesh_id)
            return None
        if mesh_id := getattr(message, "mesh_id", ""):
            room = await self._rooms.of_mesh(mesh_id)
            self._note_run(kind, message, room.account)
            return room
        if account := self._runs.get(getattr(message, "run_id", "")):
            return await self._rooms.room(account)
        return None

    def _note_run(self, kind: str | None, message: Any, account: str) -> None:
        if run_id := message.run.run_id if kind == "submit" else getattr(message, "run_id", ""):
            self._runs[run_id] = account
            if len(self._runs) > MAX_RUNS:
                del self._runs[next(iter(self._runs))]

    def _is_its(self, event: pb.SessionEvent, room: Room) -> bool:
        """Whether a room may say that: its owner can make it say anything, also of what others hold."""
        kind = event.WhichOneof("message") or ""
        message: Any = getattr(event, kind, None)
        if kind in OF_RUNS:
            return self._runs.get(message.run_id) == room.account or (kind == "refused" and not message.run_id)
        if kind in ("rank_died", "links"):
            return self._rooms.is_in(room, self._rooms.meshes.get(message.mesh_id, ""))
        if kind == "files_changed":
            return self._rooms.is_in(room, message.reservation_id)
        return kind in ("mail", "seen")

    async def _in(self, inside: _InRoom) -> None:
        """Carry the session on in one room, until that is lost."""
        try:
            with contextlib.suppress(Exception):  # however it ends, it is lost
                await inside.room.open_session(inside.frames, self._caller, self._opening)
                async for told in inside.frames:
                    for event in pb.SessionEvents.FromString(told).events:
                        if self._is_its(event, inside.room):
                            self._session.pass_on(event)
                    await self._session.room()
        finally:
            inside.frames.close()
            if not self._is_closed:
                self.is_lost = True
                self._lost()
