"""The service behind its rules: each request is looked at and let in before the service sees it, whatever the method.

Whatever the service raises becomes an answer: what no client of ours would send is no reason for a call that nobody
understands.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from monarch_nb.allocator.serving import wellformed
from monarch_nb.allocator.serving.access import Access
from monarch_nb.errors import MonarchNbError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import allocator_pb2_grpc as grpc_stubs
from monarch_nb.rpc.callers import Caller, caller_of
from monarch_nb.rpc.status import hear_out, refuse

SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"]
_log = logging.getLogger(__name__)


class Guard:
    """Stands in front of a service, with all methods that its description names.

    Args:
        service: does what is let in.
        access: says what is.
    """

    def __init__(self, service: grpc_stubs.AllocatorServicer, access: Access) -> None:
        self._service, self._access = service, access

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Answer what a server is asked."""
        methods = {method.name: self._handler(method) for method in SERVICE.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, methods),))

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        make, wrap = grpc.unary_unary_rpc_method_handler, self._unary
        if method.client_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if method.server_streaming
                else grpc.stream_unary_rpc_method_handler
            )
            wrap = self._stream
        elif method.server_streaming:
            make, wrap = grpc.unary_stream_rpc_method_handler, self._answering_stream
        return make(
            wrap(method.name, getattr(self._service, method.name)),
            wellformed.reading(GetMessageClass(method.input_type)),
            GetMessageClass(method.output_type).SerializeToString,
        )

    def _unary(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> Any:
            async with self._refusing(name, context):
                self._admit(name, request, context)
                return await method(request, context)

        return guarded

    def _answering_stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._refusing(name, context):
                caller = self._admit(name, request, context)
                with self._access.watched(name, caller, request):
                    async with contextlib.aclosing(method(request, context)) as answers:
                        async for answer in answers:
                            yield answer

        return guarded

    def _stream(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(requests: Any, context: Any) -> Any:
            async with self._refusing(name, context):
                try:
                    caller = self._admit(name, None, context)
                except MonarchNbError:
                    await hear_out(requests)
                    raise
                with self._access.watched(name, caller, None):
                    return await method(self._checked(name, requests, context), context)

        return guarded

    async def _checked(self, name: str, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        is_first = True
        async for request in requests:
            try:
                wellformed.check(request)
                if is_first:
                    is_first = False
                    self._admit(name, request, context)
            except MonarchNbError:
                await hear_out(requests)
                raise
            yield request

    def _admit(self, name: str, request: Any, context: Any) -> Caller:
        if request is not None:
            wellformed.check(request)
        caller = caller_of(context)
        self._access.admit(name, caller, request)
        return caller

    @contextlib.asynccontextmanager
    async def _refusing(self, name: str, context: Any) -> AsyncIterator[None]:
        """Answer what is raised."""
        try:
            yield
        except grpc.aio.AbortError:  # it was answered
            raise
        except MonarchNbError as error:
            await refuse(context, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            _log.exception("%s failed", name)
            what = f"{type(error).__name__}: {error}"
            await refuse(
                context, MonarchNbError(f"{self._access.node_id} failed to answer {name} ({what}); its log says more")
            )
