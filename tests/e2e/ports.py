"""Ports for tests whose servers must be told where to listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of this machine that the system gives to nobody else meanwhile. Connections to it are refused until
    somebody listens there, which any server can that reuses addresses, as all do; also where another listened before.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))  # and it never listens
        port: int = holder.getsockname()[1]
        yield port
