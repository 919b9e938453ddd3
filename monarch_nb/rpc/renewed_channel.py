"""A channel to a node that shows our newest certificate: gRPC's shows for ever what it was made with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import monarch_nb.rpc.channel  # isort: skip  # noqa: F401  (sets gRPC's environment before grpc is imported)
import grpc

from monarch_nb.proto.allocator_pb2_grpc import AllocatorStub


class RenewedChannel:
    """A channel that is made anew, when it is used next, after our certificate was replaced.

    Args:
        open_channel: opens one that shows our newest certificate.
        newest: that certificate, or whatever tells it from the one before.

    Attributes:
        stub: for calls, as it was when the channel was made.
    """

    def __init__(self, open_channel: Callable[[], grpc.aio.Channel], newest: Callable[[], object]) -> None:
        self._open_channel, self._newest = open_channel, newest
        self._before: list[grpc.aio.Channel] = []
        self._make()

    def _make(self) -> None:
        self._shown, self.channel = self._newest(), self._open_channel()
        self.stub: Any = AllocatorStub(self.channel)  # type: ignore[no-untyped-call, unused-ignore]

    def renew(self) -> RenewedChannel:
        """Show the newest certificate from now on, and return this. What is under way goes on with the one before."""
        if self._newest() != self._shown:
            self._before.append(self.channel)  # once a year; one on which nothing is under way holds no connection
            self._make()
        return self

    async def close(self) -> None:
        """Close it, with what is under way."""
        await asyncio.gather(*(channel.close() for channel in (*self._before, self.channel)))
