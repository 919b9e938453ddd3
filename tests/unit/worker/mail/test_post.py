"""A rank's mail connection, without a rank: the other end is the test's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from framing import receive_frame
from monarch_nb.config import INLINE_VALUE_BYTES
from monarch_nb.proto.mail_pb2 import Envelope
from monarch_nb.worker.mail import MailBlobs, Post

TIMEOUT_S = 20.0


class Rank:
    """What a post has around it; connections are watched by the test, as by the control thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.post = Post("here", "m/0", MailBlobs(directory, 0), Mock, lambda connection: None)
        self._connections: list[tuple[socket.socket, socket.socket]] = []

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection: the allocator's, which has read that the rank is ready, and ours."""
        theirs, ours = socket.socketpair()
        self._connections.append((theirs, ours))
        theirs.settimeout(TIMEOUT_S)
        ours.setblocking(False)
        self.post.take(ours)
        assert receive_frame(theirs) == b""
        return theirs, ours

    def close(self) -> None:
        for theirs, ours in self._connections:
            theirs.close()
            if ours.fileno() != -1:
                self.post.first_mail(ours)  # the post closes it


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path / "mail")
    yield made
    made.close()


def received(connection: socket.socket) -> Envelope:
    frame = receive_frame(connection)
    assert frame is not None
    return Envelope.FromString(frame)


def test_what_is_sent_before_there_is_a_connection_waits(rank: Rank) -> None:
    for body in (b"1", b"2"):
        rank.post.send("there", ["n/1"], [body])
    theirs, _ = rank.connect()
    assert [received(theirs).body for _ in range(2)] == [b"1", b"2"]


def test_files_that_an_allocator_left_are_removed_by_the_time_the_next_one_is_told_that_the_rank_is_ready(
    rank: Rank,
) -> None:
    rank.directory.mkdir()
    for name in ("0-received-left", "0-sent-left", "1-received-of-another"):
        (rank.directory / name).touch()
    rank.post.send("there", ["n/1"], [b"x" * (INLINE_VALUE_BYTES + 1)])
    theirs, _ = rank.connect()
    waiting = received(theirs).blob
    assert {path.name for path in rank.directory.iterdir()} == {"1-received-of-another", waiting}
