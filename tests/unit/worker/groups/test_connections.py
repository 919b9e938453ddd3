"""A group whose ranks do not all answer any more is known by its connections."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from monarch_nb.worker.groups.connections import GroupConnections

Connect = Callable[[int], list[socket.socket]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that makes a loop as Gloo does, and returns its peers' ends of so many connections."""
    with ExitStack() as opened:

        def made(peers: int) -> list[socket.socket]:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
            epoll = opened.enter_context(closing(select.epoll()))
            os.set_inheritable(epoll.fileno(), True)
            epoll.register(listener, select.EPOLLIN)
            ends = []
            for _ in range(peers):
                opened.enter_context(socket.create_connection(listener.getsockname()))
                opened.enter_context(accepted := listener.accept()[0])
                epoll.register(accepted, select.EPOLLIN)
                ends.append(accepted)
            return ends

        yield made


def make(connections: GroupConnections, connect: Connect, ranks: int, connected: int) -> list[socket.socket]:
    with connections.making_default(), connections.making(ranks):
        return connect(connected)


def test_a_peer_that_leaves_is_missed(connect: Connect) -> None:
    connections, before = GroupConnections(), GroupConnections()
    ends = make(connections, connect, ranks=3, connected=2)
    assert not connections.lost_peers()
    ends[0].close()  # Gloo closes its own end when it reads that the other is gone
    assert connections.lost_peers()
    connections.forget_default()
    assert not connections.lost_peers()
    make(before, connect, ranks=3, connected=1)
    assert before.lost_peers(), "one that left before all was counted, too"


def test_nobody_is_missed_where_connections_are_made_when_they_are_needed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    connections = GroupConnections()
    make(connections, connect, ranks=3, connected=0)
    assert not connections.lost_peers()
