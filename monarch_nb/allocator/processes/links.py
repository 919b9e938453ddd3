"""Connections to the node's own processes: the template (forks), and each rank (work, control and mail)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

from monarch_nb.config import cadence
from monarch_nb.errors import PreloadError, SpawnError
from monarch_nb.proto import worker_pb2 as wire
from monarch_nb.rpc.frame_connection import FrameConnection, connect, may_listen

RECONNECT_DELAY_S = cadence(0.5)


class TemplateLink:
    """The connection to one template process.

    Args:
        on_exit: called with (pid, wait status) when a child of the template has ended.
    """

    def __init__(self, path: Path, on_exit: Callable[[int, int], None]) -> None:
        self._path, self._on_exit = path, on_exit
        self._connection: FrameConnection | None = None
        self._requests = itertools.count(1)
        self._replies: dict[int, asyncio.Future[wire.Forked]] = {}
        self.ready: asyncio.Future[wire.TemplateReady] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def connect(self) -> wire.TemplateReady:
        """Connect and wait until the preloads are imported.

        Raises:
            PreloadError: one of them failed.
            SpawnError: the template ended.
        """
        self._connection = await connect(self._path, self._on_frame, self._on_lost)
        return await asyncio.shield(self.ready)

    def _on_frame(self, frame: bytes) -> None:
        message = wire.FromTemplate.FromString(frame)
        kind = message.WhichOneof("message")
        if kind == "ready":
            for ended in message.ready.exits:
                self._on_exit(ended.pid, ended.wait_status)
            if not self.ready.done():
                self.ready.set_result(message.ready)
        elif kind == "exit":
            self._on_exit(message.exit.pid, message.exit.wait_status)
        elif kind == "forked":
            if (reply := self._replies.pop(message.forked.request, None)) and not reply.done():
                reply.set_result(message.forked)
        elif kind == "preload_failed" and not self.ready.done():
            failed = message.preload_failed
            self.ready.set_exception(
                PreloadError(f"preloading {failed.module} failed:\n{failed.traceback}", failed.module, failed.traceback)
            )

    def _on_lost(self) -> None:
        self._connection = None
        lost = SpawnError("the template process ended")
        if not self.ready.done():
            self.ready.set_exception(lost)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(lost)
        self._replies.clear()

    @property
    def alive(self) -> bool:
        return self._connection is not None

    async def fork_ranks(self, ranks: list[wire.RankSpec]) -> list[int]:
        """Fork ranks; return their pids in order, or raise SpawnError."""
        return list((await self._fork(wire.ToTemplate(fork_ranks=wire.ForkRanks(ranks=ranks)))).pids)

    async def fork_store(self, host: str, port: int, environment: dict[str, str]) -> tuple[int, int]:
        """Fork a store that listens on `host`; return its pid and port (any free one for 0), or raise SpawnError."""
        message = wire.ToTemplate(fork_store=wire.ForkStore(host=host, port=port, environment=environment))
        forked = await self._fork(message)
        return forked.pids[0], forked.store_port

    async def _fork(self, message: wire.ToTemplate) -> wire.Forked:
        request = next(self._requests)
        getattr(message, message.WhichOneof("message") or "").request = request
        reply: asyncio.Future[wire.Forked] = asyncio.get_running_loop().create_future()
        self._replies[request] = reply
        self._send(message)
        forked = await reply
        if forked.error:
            raise SpawnError(f"ranks could not be started: {forked.error}")
        return forked

    def forget(self, pids: list[int]) -> None:
        """The exits of these pids are stored."""
        if self._connection is not None:
            self._send(wire.ToTemplate(forget_exits=wire.ForgetExits(pids=pids)))

    def exit(self) -> None:
        """Tell the template to end; its ranks go on."""
        if self._connection is not None:
            self._send(wire.ToTemplate(exit=wire.ExitTemplate()))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _send(self, message: wire.ToTemplate) -> None:
        if self._connection is None or not self._connection.send(message.SerializeToString()):
            raise SpawnError("the template process ended")


class RankLink:
    """The connections to one rank. When one is lost although the rank lives, it is made again: a rank hangs up on
    whoever does not read for seconds, as an allocator that was stopped, and then says again what it knows.

    Args:
        path: where it listens.
        on_message: called with what it says of its work; of itself first.
        on_mail: called with what it sends to other processes, as it comes.

    Attributes:
        mail: the connection for that, apart from the others.
    """

    def __init__(
        self, path: Path, on_message: Callable[[wire.FromRank], None], on_mail: Callable[[bytes], None]
    ) -> None:
        self._path, self._on_message = path, on_message
        self.mail = MailLink(path, on_mail)
        self._work: FrameConnection | None = None
        self._control: FrameConnection | None = None
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hello.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._requests = itertools.count(1)
        self._replies: dict[int, asyncio.Future[wire.ControlReply | None]] = {}
        self._to_forget: list[str] = []
        self._forget_timer: asyncio.TimerHandle | None = None
        self._connected = 0
        self._reconnecting: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Open all channels and wait for the rank's hello. Raises SpawnError when it ends first."""
        try:
            await self._open()
            await self.mail.open()
        except OSError as error:
            raise SpawnError(f"the rank does not listen: {error}") from error
        await asyncio.shield(self._hello)

    async def _open(self) -> None:
        self._connected += 1
        on_lost = functools.partial(self._on_lost, self._connected)
        self._work = await connect(self._path, self._on_work, on_lost)
        self._control = await connect(self._path, self._on_control, on_lost)
        for connection, channel in ((self._work, wire.Hello.CHANNEL_WORK), (self._control, wire.Hello.CHANNEL_CONTROL)):
            connection.send(wire.ToRank(hello=wire.Hello(channel=channel)).SerializeToString())

    async def _reconnect(self) -> None:
        while not self.is_open:
            await asyncio.sleep(RECONNECT_DELAY_S)  # it may hang up again at once
            self._hang_up()
            try:
                await self._open()
            except OSError as error:
                if may_listen(error):
                    continue
                if not self._hello.done():
                    self._hello.set_exception(SpawnError("the rank ended before it was ready"))
                return

    def _on_work(self, frame: bytes) -> None:
        message = wire.FromRank.FromString(frame)
        if message.HasField("hello") and not self._hello.done():
            self._hello.set_result(None)
        self._on_message(message)

    def _on_control(self, frame: bytes) -> None:
        reply = wire.FromRank.FromString(frame).control
        if (future := self._replies.pop(reply.request, None)) and not future.done():
            future.set_result(reply)

    def _on_lost(self, connected: int) -> None:
        """The rank's end is learnt from its pidfd, not here: a forked child can hold the socket open."""
        if connected != self._connected:  # that was one before
            return
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())
        for future in self._replies.values():
            if not future.done():
                future.set_result(None)
        self._replies.clear()

    def start(self, encoded_run: bytes) -> None:
        """Send an encoded ToRank with a run, and with it what is to be forgotten: one wake-up for both."""
        if self._work is not None:
            self._work.send(*self._forgetting(), encoded_run)

    def forget_results(self, run_ids: list[str]) -> None:
        """The results of these runs are stored. The rank is told soon, or with its next run."""
        self._to_forget += run_ids
        if self._forget_timer is None:
            self._forget_timer = asyncio.get_running_loop().call_later(cadence(1.0), self._send_forgetting)

    def _send_forgetting(self) -> None:
        if self._work is not None:
            self._work.send(*self._forgetting())

    def _forgetting(self) -> list[bytes]:
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None
        if not self._to_forget:
            return []
        message = wire.ToRank(forget_results=wire.ForgetResults(run_ids=self._to_forget))
        self._to_forget = []
        return [message.SerializeToString()]

    def tell(self, request: wire.ControlRequest) -> bool:
        """Send a request to the control thread; return False when the connection is lost."""
        return self._control is not None and self._control.send(wire.ToRank(control=request).SerializeToString())

    async def control(self, request: wire.ControlRequest, timeout_s: float) -> wire.ControlReply | None:
        """Ask the control thread; None when it does not answer in time (C code holds the GIL, or it ended)."""
        request.request = next(self._requests)
        future: asyncio.Future[wire.ControlReply | None] = asyncio.get_running_loop().create_future()
        self._replies[request.request] = future
        if not self.tell(request):
            return None
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return None
        finally:
            self._replies.pop(request.request, None)

    def close(self) -> None:
        self._connected += 1  # what is lost from here on is not missed
        if not self._hello.done():
            self._hello.set_exception(SpawnError("the rank ended before it was ready"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._forget_timer is not None:
            self._forget_timer.cancel()
        self.mail.close()
        self._hang_up()

    @property
    def is_open(self) -> bool:
        """Whether the connections for work and control are there."""
        return all(connection is not None and connection.is_open for connection in (self._work, self._control))

    def _hang_up(self) -> None:
        for connection in (self._work, self._control):
            if connection is not None:
                connection.close()


RECONNECT_DELAY_S = cadence(0.5)


class MailLink:
    """Frames to a rank wait, in their order, until it has said that it is ready for them: it may be busy, or have the
    mail of an allocator before this one to read.

    Args:
        path: where it listens.
        on_mail: called with frames that it sends.

    Attributes:
        sent_s: when a frame was sent last, on the monotonic clock.
    """

    def __init__(self, path: Path, on_mail: Callable[[bytes], None]) -> None:
        self._path, self._on_mail = path, on_mail
        self.sent_s = -math.inf
        self._loop = asyncio.get_running_loop()
        self._connection: FrameConnection | None = None
        self._is_ready = self._is_closed = self._writes_soon = False
        self._waiting: list[bytes] = []
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            OSError: nobody listens there, or it can not be found out (`may_listen`).
        """
        connection = await connect(self._path, self._on_frame, self._on_lost)
        if self._is_closed:
            connection.close()
            return
        self._connection = connection
        hello = wire.ToRank(hello=wire.Hello(channel=wire.Hello.CHANNEL_MAIL))
        connection.send(hello.SerializeToString())

    def _on_frame(self, frame: bytes) -> None:
        if frame:
            self._on_mail(frame)
        else:
            self._is_ready = True
            self._write()

    def _on_lost(self) -> None:
        """The rank's end is learnt from its pidfd, not here. One that lives has read what it was sent."""
        self._connection, self._is_ready = None, False
        if not self._is_closed:
            self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while self._connection is None:
            await asyncio.sleep(RECONNECT_DELAY_S)  # it may hang up again at once
            try:
                await self.open()
            except OSError as error:
                if not may_listen(error):
                    return

    def send(self, frame: bytes) -> None:
        """Send a frame soon, with what else is sent in this turn of the loop."""
        self._waiting.append(frame)
        self.sent_s = time.monotonic()
        if self._is_ready and not self._writes_soon:
            self._writes_soon = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes_soon = False
        if self._is_ready and self._waiting and self._connection is not None:
            self._connection.send(*self._waiting)
            self._waiting = []

    def close(self) -> None:
        """Send nothing any more, and do not connect again."""
        self._is_closed = True
        self._waiting = []
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._connection is not None:
            self._connection.close()
