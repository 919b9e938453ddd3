"""The network of a cluster: what gRPC does, between stubs and services of one process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import math
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc

from cluster.clock import Life, VirtualLoop, running
from monarch_nb.trust.identity import Identity

UNHEARD_S = 5.0
"""So long it takes until gRPC notices that a network swallows everything."""


class Wire:
    """The network between all processes: an ordered way for each call's messages, each way of a call for itself.

    Args:
        delay_s: the most that a message takes; how long each does the seed says.
    """

    def __init__(self, loop: VirtualLoop, seed: int, delay_s: float) -> None:
        self._loop, self._random, self._delay_s = loop, random.Random(seed), delay_s
        self.servers: dict[str, Server] = {}
        self.calls: set[Call] = set()
        self.changed = asyncio.Event()
        self.fates: dict[tuple[Life | None, str], Callable[[], object]] = {}
        """What happens when a process calls a method, and when it is answered ("Spawn is done")."""

    def delay(self) -> float:
        return self._random.uniform(0.0, self._delay_s) if self._delay_s else 0.0

    def deliver(self, before_s: float, take: Callable[[], object]) -> float:
        """Have a message arrive that is sent now, after the one before it; return when it does. Who sends it may be
        dead by then."""
        at_s = max(self._loop.time() + self.delay(), math.nextafter(before_s, math.inf))
        self._loop.call_at(at_s, take, context=contextvars.Context())
        return at_s

    def tell_changed(self) -> None:
        """Somebody can be reached again."""
        self.changed.set()
        self.changed = asyncio.Event()

    def reaches(self, life: Life | None, address: str) -> bool:
        machine = life.machine if life else None
        server = self.servers.get(address)
        there = server.life.machine if server else None
        return there is not None and (machine is there or not (there.is_cut or getattr(machine, "is_cut", False)))

    async def server(self, call: Call, waits: bool) -> Server:
        """Return who listens there.

        Raises:
            ConnectionError: nobody does.
        """
        while not self.reaches(call.life, call.address):
            if waits:
                await self.changed.wait()
                continue
            if call.address in self.servers:  # what is sent there is swallowed
                await asyncio.sleep(UNHEARD_S)
            raise ConnectionError(f"nobody listens at {call.address}")
        return self.servers[call.address]

    def break_off(self, concerns: Callable[[Call], bool], after_s: float = 0.0) -> None:
        """Have both ends of calls notice that they are broken."""
        for call in [call for call in self.calls if concerns(call)]:
            self._loop.call_later(after_s, call.break_off, context=contextvars.Context())


class Channel:
    """What gRPC calls a channel: the same methods, as far as stubs and monarch_nb call them."""

    def __init__(self, wire: Wire, address: str, identity: Identity | None) -> None:
        self.wire, self.address, self.identity, self.life = wire, address, identity, running.get()

    def _method(self, path: str, *, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return functools.partial(Call, self, path, request_serializer, response_deserializer)

    unary_unary = unary_stream = stream_unary = stream_stream = _method

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def channel_ready(self) -> None:
        while not self.wire.reaches(self.life, self.address):
            await self.wire.changed.wait()

    async def close(self, grace: float | None = None) -> None:
        for call in [call for call in self.wire.calls if call.channel is self]:
            call.cancel()


_CANCEL, _END = object(), object()


class Call:
    """One call of a method, seen from the client: what gRPC returns for any kind of method."""

    def __init__(
        self,
        channel: Channel,
        path: str,
        serialize: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = (),
        wait_for_ready: bool = False,
    ) -> None:
        self.channel, self.address, self.life, self.path = channel, channel.address, channel.life, path
        self.metadata = tuple(metadata or ())
        self._serialize, self._parse, self._wire = serialize, parse, channel.wire
        self._loop = asyncio.get_running_loop()
        self._status: asyncio.Future[tuple[grpc.StatusCode, str, Any]] = self._loop.create_future()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()  # at the server
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self._sent_s = self._replied_s = 0.0
        self.serving: asyncio.Task[None] | None = None
        self._wire.calls.add(self)
        self._meet("")
        self._timer = None
        if timeout is not None:
            late = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"
            self._timer = self._loop.call_later(max(0.0, timeout), self._end_here, *late)
        self._connecting = self._loop.create_task(self._connect(wait_for_ready))
        self._feeding = None
        if hasattr(request, "__aiter__"):
            self._feeding = self._loop.create_task(self._feed(request))
        elif request is not None:
            self._send(serialize(request))
            self._send(_END)

    # ---- what the client does ----

    async def write(self, request: Any) -> None:
        if self._status.done():
            raise asyncio.InvalidStateError("the call is over")
        self._send(self._serialize(request))

    async def done_writing(self) -> None:
        self._send(_END)

    async def read(self) -> Any:
        """Return what comes next, or EOF. Whoever is cancelled meanwhile cancels the call, as gRPC has it."""
        if not (self._replies.empty() and self._status.done()):
            try:
                reply = await self._replies.get()
            except asyncio.CancelledError:
                self.cancel()
                raise
            if reply is not _END:
                return self._parse(reply)
        code, details, trailing = self._status.result()
        if code is grpc.StatusCode.OK:
            return grpc.aio.EOF
        if code is grpc.StatusCode.CANCELLED and not details:
            raise asyncio.CancelledError
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)

    def __await__(self) -> Any:
        return self._only_reply().__await__()

    async def _only_reply(self) -> Any:
        reply = await self.read()
        await self.read()  # of its status
        return reply

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (reply := await self.read()) is not grpc.aio.EOF:
            yield reply

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._status))[0]

    def done(self) -> bool:
        return self._status.done()

    def cancel(self) -> bool:
        return self._end_here(grpc.StatusCode.CANCELLED, "")

    def _end_here(self, code: grpc.StatusCode, details: str) -> bool:
        """End it from the client's side; the server hears of it."""
        if self._status.done():
            return False
        self._send(_CANCEL)
        while not self._replies.empty():
            self._replies.get_nowait()
        self._end(code, details)
        return True

    def _end(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        if self._status.done():
            return
        self._status.set_result((code, details, trailing))
        self._replies.put_nowait(_END)
        for work in (self._timer, self._feeding, self._connecting):
            if work is not None:
                work.cancel()
        self.forget_if_over()

    def forget_if_over(self) -> None:
        if self._status.done() and (self.serving is None or self.serving.done()):
            self._wire.calls.discard(self)

    async def _feed(self, requests: Any) -> None:
        try:
            async for request in requests:
                self._send(self._serialize(request))
        except Exception:  # noqa: BLE001 (gRPC only cancels the call)
            self.cancel()
        self._send(_END)

    async def _connect(self, waits: bool) -> None:
        try:
            server = await self._wire.server(self, waits)
        except ConnectionError as error:
            self._end(grpc.StatusCode.UNAVAILABLE, str(error))
        else:
            server.take(self)

    # ---- what is on its way ----

    def _meet(self, when: str) -> None:
        if fate := self._wire.fates.pop((self.life, self.path.rpartition("/")[2] + when), None):
            fate()

    def _send(self, message: Any) -> None:
        if self.life is not None and self.life.is_over:
            return
        self._sent_s = self._wire.deliver(self._sent_s, functools.partial(self._arrive, message))

    def _arrive(self, message: Any) -> None:
        if self._wire.reaches(self.life, self.address):
            self.inbox.put_nowait(message)
            if message is _CANCEL and self.serving is not None:
                self.serving.cancel()

    def reply(self, message: bytes) -> None:
        """The server says something."""
        self._answer(lambda: self._replies.put_nowait(message))

    def finish(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        """The server has nothing more to say."""
        self._answer(lambda: self._end(code, details, trailing))

    def _answer(self, take: Callable[[], object]) -> None:
        def arrive() -> None:
            if not self._status.done() and self._wire.reaches(self.life, self.address):
                self._meet(" is done")
                take()

        self._replied_s = self._wire.deliver(self._replied_s, arrive)

    def break_off(self) -> None:
        """The server or the client is gone, or the network between them."""
        if self.serving is not None:
            self.serving.cancel()
        self._end(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        self._wire.calls.discard(self)


class Server:
    """What a node listens with: gRPC's server as far as a Guard needs it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._handler: Any = None

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        (self._handler,) = handlers

    def take(self, call: Call) -> None:
        """Answer a call."""
        call.serving = self.life.call(asyncio.get_running_loop().create_task, self._serve(call))
        call.serving.add_done_callback(lambda _: call.forget_if_over(), context=contextvars.Context())

    async def _serve(self, call: Call) -> None:
        method = self._handler.service(SimpleNamespace(method=call.path, invocation_metadata=call.metadata))
        context = _Context(call, method.response_serializer)
        requests = self._requests(call, method.request_deserializer)
        try:
            answer = (method.unary_unary or method.unary_stream or method.stream_unary or method.stream_stream)(
                requests if method.request_streaming else await anext(requests), context
            )
            if inspect.isasyncgen(answer):
                async with contextlib.aclosing(answer):
                    async for reply in answer:
                        await context.write(reply)
            elif (reply := await answer) is not None:
                await context.write(reply)
            call.finish(grpc.StatusCode.OK)
        except grpc.aio.AbortError:
            call.finish(*context.aborted)

    @staticmethod
    async def _requests(call: Call, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        while (message := await call.inbox.get()) not in (_END, _CANCEL):
            yield parse(message)
        if message is _CANCEL:
            raise asyncio.CancelledError


class _Context:
    """What a service knows of a call."""

    def __init__(self, call: Call, serialize: Callable[[Any], bytes]) -> None:
        self._call, self._serialize = call, serialize
        self.aborted: tuple[grpc.StatusCode, str, Any] = grpc.StatusCode.OK, "", ()

    def peer(self) -> str:
        return f"ipv4:{self._call.life.name if self._call.life else 'test'}"

    def auth_context(self) -> dict[str, Any]:
        identity = self._call.channel.identity
        return {"x509_pem_cert": [identity.certificate]} if identity else {}

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    async def write(self, reply: Any) -> None:
        if self._call.done():
            raise asyncio.InvalidStateError("nobody reads")
        self._call.reply(self._serialize(reply))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        self.aborted = code, details, trailing
        raise grpc.aio.AbortError
