"""An allocator whose part a test plays, and a run that notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from monarch_nb.client.connections.connection import Connection
from monarch_nb.errors import MonarchNbError, RunNotFound
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as service
from monarch_nb.rpc.channel import make_server
from monarch_nb.rpc.status import hear_out, refuse


class Scripted(service.AllocatorServicer):
    """An allocator whose sessions the test plays: `requests` is what came, `replies` what is sent; None breaks. When
    mute it opens none."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()
        self.replies: asyncio.Queue[pb.SessionEvent | None] = asyncio.Queue()
        self.mailboxes: asyncio.Queue[str] = asyncio.Queue()
        self.sessions = 0
        self.is_mute = False
        self.left = asyncio.Event()
        self.error: MonarchNbError | None = None
        self.refusal: MonarchNbError | None = None
        self.blob = b""

    async def Session(self, request_iterator: Any, context: Any) -> Any:
        self.sessions += 1
        if self.refusal is not None:
            await hear_out(request_iterator)  # as nodes do
            await refuse(context, self.refusal)
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while (reply := await self.replies.get()) is not None:
                await context.write(pb.SessionEvents(events=[reply]))
            if self.refusal is not None:
                await refuse(context, self.refusal)
        finally:
            reader.cancel()
            self.left.set()

    async def _read(self, request_iterator: Any) -> None:
        async for request in request_iterator:
            if request.HasField("open") and self.is_mute:
                continue
            if request.HasField("open"):
                self.replies.put_nowait(pb.SessionEvent(opened=pb.Opened()))
                self.mailboxes.put_nowait(request.open.mailbox)
            else:
                self.requests.put_nowait(request)

    async def next(self, kind: str) -> Any:
        request = await asyncio.wait_for(self.requests.get(), 20)
        assert request.WhichOneof("message") == kind, request
        return getattr(request, kind)

    def say(self, **event: Any) -> None:
        self.replies.put_nowait(pb.SessionEvent(**event))

    def hang_up(self) -> None:
        self.replies.put_nowait(None)

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        if self.error is not None:
            await refuse(context, self.error)
        return pb.DescribeReply(node_id="node0")

    async def PutBlob(self, request_iterator: Any, context: Any) -> pb.PutBlobReply:
        self.blob = b"".join([chunk.data async for chunk in request_iterator])
        return pb.PutBlobReply(size_bytes=len(self.blob))

    async def ReadBlob(self, request: pb.ReadBlobRequest, context: Any) -> AsyncIterator[pb.BlobChunk]:
        if not self.blob:
            await refuse(context, RunNotFound("not kept"))
        for start in range(0, len(self.blob), 1000):
            yield pb.BlobChunk(data=self.blob[start : start + 1000])


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Scripted]:
    """A node that is reached in a directory."""
    scripted = Scripted()
    server = make_server()
    service.add_AllocatorServicer_to_server(scripted, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{directory}/s")
    await server.start()
    yield scripted
    await server.stop(None)


class Listener:
    """A run that notes what it is told."""

    def __init__(self, run_id: str = "a", *, done: bool = False) -> None:
        self.run_id, self.done, self.shows, self.ranks = run_id, done, True, (0, 1)
        self.told: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    def on_queued(self, queued: pb.Queued) -> None:
        self.told.put_nowait(("queued", queued.number))

    def on_started(self, _: Iterable[int]) -> None:
        self.told.put_nowait(("started", None))

    def on_output(self, output: pb.Output) -> None:
        self.told.put_nowait(("output", b"".join(i.stdout for rank in output.ranks for i in rank.items)))

    def on_finished(self, finished: pb.Finished) -> None:
        self.told.put_nowait(("finished", len(finished.results)))

    def on_refused(self, error: MonarchNbError) -> None:
        self.told.put_nowait(("refused", type(error)))

    def on_link(self, _: Connection, up: bool) -> None:
        self.told.put_nowait(("up" if up else "down", None))

    async def next(self) -> tuple[str, Any]:
        return await asyncio.wait_for(self.told.get(), 20)

    async def until(self, kind: str) -> Any:
        while (told := await self.next())[0] != kind:
            pass
        return told[1]
