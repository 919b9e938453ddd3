"""Results are kept until the allocator has them, and told without waiting for it."""

from __future__ import annotations

import fcntl
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.ground import frames
from monarch_nb.ground.frames import FrameError
from monarch_nb.proto.run_pb2 import RankResult
from monarch_nb.worker.runs import results
from monarch_nb.worker.runs.results import Results, send_all

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_peer_that_reads_slowly_gets_everything(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader gets in the time that it has is a matter of the frame, and of the machine."""
    ours, theirs = pair
    theirs.setblocking(False)
    now_s, read = [0.0], bytearray()

    class Ours(socket.socket):
        def send(self, data: Any, flags: int = 0, /) -> int:
            now_s[0] += 0.6
            try:
                return super().send(data, flags)
            except BlockingIOError:
                read.extend(theirs.recv(1 << 20))
                raise

    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    sent = bytes(range(250)) * 10_000
    with Ours(fileno=os.dup(ours.fileno())) as connection:
        send_all(connection, sent, timeout_s=1.0)
    while len(read) < len(sent):
        read.extend(theirs.recv(1 << 20))
    assert read == sent


def test_a_peer_that_does_not_read_is_hung_up_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the allocator would wait for the rest of the message, and the rank for somebody who connects again. Also
    above descriptor 1023, which `select` does not know: user code may have opened as many files."""
    monkeypatch.setattr(results, "_SEND_TIMEOUT_S", 0.05)
    kept = Results(rank=0)
    with socket.socket(fileno=fcntl.fcntl(pair[0], fcntl.F_DUPFD, 1024)) as high:
        kept.attach(high)
        kept.finish(RankResult(run_id="a", bundle_json="x" * 10_000_000))
        pair[1].settimeout(10)
        while pair[1].recv(1 << 20):
            pass
    assert kept.knows("a")


def test_a_result_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    kept = Results(rank=0)
    with pytest.raises(FrameError, match="too long"):
        kept.finish(RankResult(run_id="a", bundle_json="x" * 1000))
    assert not kept.knows("a")
