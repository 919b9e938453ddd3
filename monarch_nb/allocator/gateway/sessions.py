"""One client's session, carried on in the rooms that it is about: what the client says goes to the room concerned, and
what rooms say goes to the client. When a room is lost, so is the session: the client opens another one and goes on
from where it was, as after any break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from monarch_nb.allocator.gateway.rooms import Room, Rooms
from monarch_nb.allocator.sessions.sessions import Session
from monarch_nb.errors import MonarchNbError, ReservationNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.rpc.callers import Caller, told_to_room
from monarch_nb.rpc.status import error_to_json

MAX_RUNS = 10_000
"""Of one session, whose rooms are remembered."""
OF_RUNS = frozenset({"queued", "started", "output", "finished", "refused"})


class Carried:
    """One session.

    Args:
        session: the client's.
        caller: whose it is.
        opening: what the client said first.
        lost: called when a room is lost.

    Attributes:
        is_lost: whether one is.
        refusal: why this session has no runs; None: it may have some.
    """

    def __init__(
        self, rooms: Rooms, session: Session, caller: Caller, opening: pb.Open, lost: Callable[[], object]
    ) -> None:
        self._rooms, self._session, self._caller, self._lost = rooms, session, caller, lost
        self._opening, self.is_lost, self._is_closed = opening, False, False
        self.refusal: MonarchNbError | None = None
        self._said: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self._to: dict[str, asyncio.Queue[pb.SessionRequest]] = {}
        self._runs: dict[str, str] = {}
        """By run, the account of its room."""
        self._tasks = [asyncio.create_task(self._carry())]

    def say(self, request: pb.SessionRequest) -> None:
        """Pass a message on, in its turn."""
        self._said.put_nowait(request)

    def open_again(self, opening: pb.Open) -> None:
        """The client says of itself what it did not say before: that it takes mail."""
        self._opening = opening
        self.say(pb.SessionRequest(open=opening))

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    async def _carry(self) -> None:
        while True:
            request = await self._said.get()
            try:
                room = await self._room_for(request)
            except MonarchNbError as error:
                kind = request.WhichOneof("message") or ""
                message: Any = getattr(request, kind or "open")
                run_id = message.run.run_id if kind == "submit" else getattr(message, "run_id", "")
                if kind not in ("attach", "detach") or not isinstance(error, ReservationNotFound):
                    self._session.send(refused=pb.Refused(run_id=run_id, error_json=error_to_json(error)))
                continue
            if room is None:
                for queue in self._to.values():
                    queue.put_nowait(request)
                continue
            if room.account not in self._to:
                queue = self._to[room.account] = asyncio.Queue()
                self._tasks.append(asyncio.create_task(self._in(room, queue)))
            self._to[room.account].put_nowait(request)

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
            if run_id := message.run.run_id if kind == "submit" else getattr(message, "run_id", ""):
                self._runs[run_id] = room.account
                if len(self._runs) > MAX_RUNS:
                    del self._runs[next(iter(self._runs))]
            return room
        if account := self._runs.get(getattr(message, "run_id", "")):
            return await self._rooms.room(account)
        return None

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

    async def _in(self, room: Room, queue: asyncio.Queue[pb.SessionRequest]) -> None:
        """Carry the session on in one room, until that is lost."""

        async def said() -> AsyncIterator[pb.SessionRequest]:
            yield pb.SessionRequest(open=self._opening)
            while True:
                yield await queue.get()

        stream = room.stub.Session(said(), metadata=told_to_room(self._caller))
        try:
            with contextlib.suppress(Exception):  # however it ends, it is lost
                async for batch in stream:
                    for event in batch.events:
                        if self._is_its(event, room):
                            self._session.pass_on(event)
                    await self._session.room()
        finally:
            stream.cancel()
            if not self._is_closed:
                self.is_lost = True
                self._lost()
