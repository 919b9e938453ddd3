"""The service behind its rules: each request is let in before the service sees it, whatever the method."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from monarch_nb.allocator.serving.access import Access
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as grpc_stubs
from monarch_nb.rpc.callers import Caller, caller_of
from monarch_nb.rpc.status import refuse

SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"]


class Guard:
    """Stands in front of a service: has all of its methods, as its description names them.

    Args:
        service: does what is let in.
        access: says what is.
    """

    def __init__(self, service: grpc_stubs.AllocatorServicer, access: Access) -> None:
        self._access = access
        for method in SERVICE.methods:
            wrap = self._stream if method.client_streaming else self._unary
            if method.server_streaming and not method.client_streaming:
                wrap = self._answering_stream
            setattr(self, method.name, wrap(method.name, getattr(service, method.name)))

    def _unary(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> Any:
            await self._admit(name, request, context)
            return await method(request, context)

        return guarded

    def _answering_stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            caller = await self._admit(name, request, context)
            with self._access.watched(name, caller, request) as stream:
                try:
                    async with contextlib.aclosing(method(request, context)) as answers:
                        async for answer in answers:
                            yield answer
                except asyncio.CancelledError:
                    if stream.refused is None:
                        raise
                    stream.task.uncancel()
                    await refuse(context, stream.refused)

        return guarded

    def _stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(requests: Any, context: Any) -> Any:
            caller = await self._admit(name, None, context)
            with self._access.watched(name, caller, None) as stream:
                try:
                    return await method(self._from_first(name, requests, context), context)
                except asyncio.CancelledError:
                    if stream.refused is None:
                        raise
                    stream.task.uncancel()
                    await refuse(context, stream.refused)

        return guarded

    async def _from_first(self, name: str, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        is_first = True
        async for request in requests:
            if is_first:
                is_first = False
                await self._admit(name, request, context)
            yield request

    async def _admit(self, name: str, request: Any, context: Any) -> Caller:
        try:
            caller = caller_of(context)
            self._access.admit(name, caller, request)
        except MonarchNbError as error:
            await refuse(context, error)
            raise
        return caller
