"""Frames on blocking sockets: how tests speak with ranks and templates in the place of an allocator."""

from __future__ import annotations

import socket

from monarch_nb.ground.frames import encode_frame


def send_frame(connection: socket.socket, payload: bytes) -> None:
    connection.sendall(encode_frame(payload))


def receive_frame(connection: socket.socket) -> bytes | None:
    """Return the next frame; None when the peer has hung up before it."""
    header = _receive(connection, 4)
    return _receive(connection, int.from_bytes(header)) if header else None


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes and (more := connection.recv(size_bytes - len(data))):
        data += more
    return bytes(data)
