"""Gloo's loops are told from all others, and connections are found by where they lead."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from monarch_nb.worker.groups import connections

Pair = tuple[socket.socket, socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with make_pair() as made:
        yield made


@contextmanager
def make_pair() -> Iterator[Pair]:
    """Have a listening socket, and both ends of a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted,
    ):
        yield listener, client, accepted


def identify(connection: socket.socket) -> connections.Connection:
    return connection.fileno(), os.fstat(connection.fileno()).st_ino


def test_a_loop_like_gloos_is_found(pair: Pair) -> None:
    listener, _, accepted = pair
    with closing(select.epoll()) as epoll:
        os.set_inheritable(epoll.fileno(), True)
        for each in (listener, accepted):
            epoll.register(each, select.EPOLLIN)
        inode = os.fstat(listener.fileno()).st_ino
        assert connections.gloo_loops() == [connections.GlooLoop(inode, listener.getsockname(), (identify(accepted),))]
        os.set_inheritable(epoll.fileno(), False)
        assert connections.gloo_loops() == []


def test_an_asyncio_server_is_not_taken_for_gloo() -> None:
    async def look() -> list[connections.GlooLoop]:
        async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0):
            return connections.gloo_loops()

    assert asyncio.run(look()) == []


def test_connections_are_found_by_their_remote_address_and_only_they_are_shut_down(pair: Pair) -> None:
    listener, client, accepted = pair
    with make_pair() as (_, another, other), socket.socket(socket.AF_INET6) as mapped:
        mapped.connect((f"::ffff:{listener.getsockname()[0]}", listener.getsockname()[1]))
        found = connections.connections_to({listener.getsockname()})
        assert sorted(found) == sorted([identify(client), identify(mapped)])
        connections.shut_down(found)
        assert accepted.recv(1) == b""
        descriptor, inode = identify(another)
        connections.shut_down([(descriptor, inode + 1), (10_000, 5), (0, os.fstat(0).st_ino)])  # other files by now
        another.sendall(b"x")
        assert other.recv(1) == b"x"


def test_traffic_is_equal_when_nothing_moves(pair: Pair) -> None:
    _, client, accepted = pair
    both = [identify(client), identify(accepted)]
    before = connections.traffic(both)
    assert before == connections.traffic(both)
    client.sendall(b"abc")
    during = connections.traffic(both)
    accepted.recv(3)
    after = connections.traffic(both)
    assert [seen.queued_bytes for seen in (before, during, after)] == [0, 3, 0]
    assert before not in (during, after)


def test_knocking_stands_in_for_every_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections.knock(connections.GlooLoop(1, listener.getsockname(), ()), 3)
        said = []
        for _ in range(3):
            with listener.accept()[0] as connection:
                said.append(struct.unpack("=q", connection.recv(8))[0])
                assert connection.recv(1) == b""
    assert said == [0, 1, 2]


def test_addresses_are_resolved() -> None:
    assert ("127.0.0.1", 80) in connections.resolve("localhost", 80)
    assert connections.resolve("127.0.0.1", 5) == {("127.0.0.1", 5)}
    assert connections.resolve("no-such-host.invalid", 5) == set()


def test_a_thread_of_gloos_that_runs() -> None:
    stop = threading.Event()

    def spin() -> None:
        ctypes.CDLL(None).prctl(15, b"gloo_tcp_loop", 0, 0, 0)  # PR_SET_NAME
        while not stop.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)  # without the interpreter's lock

    assert not connections.gloo_runs()
    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert any(connections.gloo_runs() for _ in range(10_000))
    finally:
        stop.set()
        thread.join()
