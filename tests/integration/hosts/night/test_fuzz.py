"""Messages that no client of ours sends, to every method of a real allocator: each is answered, and harms nobody.

$MONARCH_NB_FUZZ is how many messages each kind of caller sends, others in each run. Without it they are few and always
the same: a suite is no place to find out something new.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import MethodDescriptor
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from integration.hosts.lab import Allocator, Lab
from integration.hosts.night.fuzzing import Fuzz
from monarch_nb import reserve
from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.provision.daemons import describe
from monarch_nb.rpc.channel import open_blocking_channel
from monarch_nb.rpc.status import METADATA_KEY
from monarch_nb.trust.authority import Authority
from monarch_nb.trust.identity import NODE, USER, Identity
from monarch_nb.trust.pools import make_paths

pytestmark = pytest.mark.slow
ASKED_FOR = os.environ.get("MONARCH_NB_FUZZ", "")
MESSAGES = int(ASKED_FOR or 1000)
AT_ONCE = 5
"""Messages of an example: one after the other, or on one stream."""
ANSWER_S = 60.0
FOLLOWED = ("ReadLogs", "WatchLog", "Wait", "Claim")
FOLLOWED_S = 0.1
"""How long the calls are looked at that may go on until their client leaves."""
MOST_ANSWERS = 50
GROWTH_BYTES = 100 << 20
MINE = "0123456789abcdef0123456789abcdef"
"""The reservation, mesh and run of who fuzzes."""
GRPCS_OWN = {
    grpc.StatusCode.INTERNAL: "Exception deserializing request!",  # no message at all
    grpc.StatusCode.CANCELLED: "",
}
PREFIX = "/monarch_nb.v1.Allocator/"


@dataclass
class Caller:
    """Sends what is wrong, and notes what comes of it.

    Attributes:
        ids: that exist.
        known: names and paths that exist.
        without: methods that it leaves alone.
    """

    channel: grpc.Channel
    ids: list[str]
    known: list[str]
    without: tuple[str, ...] = ()
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    sent: int = 0

    def talk(self, random: Random) -> None:
        """Send a few messages to one method."""
        fuzz = Fuzz(random, self.ids, self.known)
        method = fuzz.method(self.without)
        messages = [fuzz.sent(method) for _ in range(AT_ONCE)]
        self.sent += len(messages)
        if method.client_streaming:
            self._call(method, iter(messages))
        else:
            for message in messages:
                self._call(method, message)

    def _call(self, method: MethodDescriptor, request: Any) -> None:
        kind = "_".join("stream" if streams else "unary" for streams in _streams(method))
        call = getattr(self.channel, kind)(PREFIX + method.name)
        follows = method.name in FOLLOWED
        try:
            answer = call(request, timeout=FOLLOWED_S if follows else ANSWER_S)
            if method.server_streaming:
                for _ in zip(range(MOST_ANSWERS), answer, strict=False):
                    pass
                answer.cancel()
            self.codes["OK"] += 1
        except grpc.RpcError as error:
            self.codes[error.code().name] += 1
            if not (follows and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                self._judge(method, request, error)

    def _judge(self, method: MethodDescriptor, request: Any, error: Any) -> None:
        is_ours = any(key == METADATA_KEY for key, _ in error.trailing_metadata() or ())
        details = error.details() or ""
        if is_ours and "Traceback" not in details:
            return
        if not is_ours and details == GRPCS_OWN.get(error.code()):
            return
        shown = request[:300] if isinstance(request, bytes) else "a stream"
        self.wrong.append(f"{method.name}: {error.code().name}: {details[:500]} ({shown!r})")


def _streams(method: MethodDescriptor) -> tuple[bool, bool]:
    return method.client_streaming, method.server_streaming


@dataclass
class Target:
    """A node on which alice holds a reservation.

    Attributes:
        outside: a directory into which nothing may be written.
    """

    node: Allocator
    dev: Reservation
    outside: Path

    @property
    def ids(self) -> list[str]:
        """What alice's is called."""
        return [self.dev.id, self.dev.mesh.id]

    @property
    def known(self) -> list[str]:
        """Names and paths."""
        return ["main", "dev", "alice", "bob", "/tmp", *_paths(self.outside)]

    @property
    def allocator(self) -> psutil.Process:
        return psutil.Process(self.node.process.pid)

    def check(self, pids: list[int]) -> None:
        """Alice's ranks, their variables and her outlook are as they were."""
        assert self.node.process.poll() is None, self.node.log.read_text()[-5000:]
        assert [info.pid for info in self.dev.mesh.status()] == pids
        assert self.dev.mesh.run("treasure").values == [42, 42]
        assert list(self.outside.iterdir()) == [self.outside / "canary"]
        assert (self.outside / "canary").read_text() == "alive"
        said = self.node.log.read_text()
        traces = [said[max(0, found.start() - 500) : found.end() + 2500] for found in re.finditer("Traceback", said)]
        assert not traces, "\n".join(traces)


def _paths(outside: Path) -> list[str]:
    up = "../" * 30
    return [f"{up}{str(outside / name)[1:]}" for name in ("canary", "made")]


@pytest.fixture
def target(lab: Lab, tmp_path: Path) -> Iterator[Target]:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("alive")
    node = lab.start(procs=4)
    dev = reserve("dev", procs=2, preload=[])
    dev.mesh.run("treasure = 42")
    yield Target(node, dev, outside)
    dev.release()


def test_who_holds_something_too(target: Target) -> None:
    """Bob has a reservation and a mesh of his own beside alice's, and knows what hers are called."""
    bob = _issued("bob", USER)
    with open_blocking_channel(target.node.address, bob) as channel:
        _fuzz(target, Caller(channel, [MINE, *target.ids], target.known))


def test_who_holds_nothing(target: Target) -> None:
    with open_blocking_channel(target.node.address, _issued("carol", USER)) as channel:
        _fuzz(target, Caller(channel, target.ids, target.known), reserves=False)


def test_a_node_that_has_gone_mad(target: Target) -> None:
    with open_blocking_channel(target.node.address, _issued("host9", NODE)) as channel:
        _fuzz(target, Caller(channel, target.ids, target.known), reserves=False)


def test_the_nodes_own_user(target: Target) -> None:
    """On the Unix socket, where everything may be asked for; so alice's names are not, and nobody ends the node."""
    with open_blocking_channel(target.node.paths.address) as channel:
        _fuzz(target, Caller(channel, [MINE], target.known, ("Shutdown",)))


def _fuzz(target: Target, caller: Caller, reserves: bool = True) -> None:
    pids = [info.pid for info in target.dev.mesh.status()]
    memory: list[int] = []

    @settings(
        max_examples=MESSAGES // AT_ONCE,
        deadline=None,
        database=None,
        derandomize=not ASKED_FOR,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def talk(random: Random) -> None:
        if reserves:
            _hold(caller.channel)
        caller.talk(random)
        if caller.sent % (MESSAGES // 4) < AT_ONCE:
            memory.append(target.allocator.memory_info().rss)

    talk()
    if reserves:
        caller.channel.unary_unary(PREFIX + "Release")(pb.ReleaseRequest(reservation_id=MINE).SerializeToString())
    print(f"{caller.sent} messages: {dict(caller.codes)}; memory {[size >> 20 for size in memory]} MB")
    assert not caller.wrong, "\n".join(caller.wrong[:50])
    target.check(pids)
    assert memory[-1] - memory[0] < GROWTH_BYTES, memory
    assert describe(target.node.address, identity=_issued("bob", USER)).node_id == target.node.node_id


def _hold(channel: grpc.Channel) -> None:
    """Reserve, and start a mesh, unless they are there."""
    wanted = pb.ReserveRequest(reservation_id=MINE, name="mine", owner="bob", procs=1, nodes=1)
    mesh = pb.SpawnRequest(reservation_id=MINE, mesh_id=MINE, name="main", ranks=1, world_size=1, directory="/")
    for method, request in (("Reserve", wanted), ("Spawn", mesh)):
        with contextlib.suppress(grpc.RpcError):  # it is there
            channel.unary_unary(PREFIX + method)(request.SerializeToString(), timeout=ANSWER_S)


def _issued(name: str, role: str) -> Identity:
    return Authority.load("lab", make_paths("lab")).issue(name, role)
