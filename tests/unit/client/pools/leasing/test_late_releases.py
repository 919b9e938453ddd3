"""What was given back while no node answered: nodes are told when they do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.leasing import late_releases
from monarch_nb.client.pools.leasing.late_releases import LateReleases
from monarch_nb.client.pools.leasing.releasing import release
from monarch_nb.config import CONFIG_VARIABLE
from monarch_nb.errors import MonarchNbError, NodeUnreachable
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2
from monarch_nb.trust.pools import change_hosts, make_paths
from monarch_nb.trust.private_files import write_private

REQUEST = pb.StatusRequest()
BY = "in the panel"


class FakeNode:
    """A node of a pool of hosts that holds what the test says, for alice.

    Attributes:
        is_away: it does not answer. refuses: it does not release.
        told: what it was to release.
    """

    def __init__(self, name: str) -> None:
        self.name = self.node_address = self.address = name
        self.identity: Any = SimpleNamespace(pool="lab", name="alice")
        self.client_id, self.up, self.is_away, self.refuses = "client", True, False, False
        self.reply = pb.StatusReply(node=pb.DescribeReply(node_id=name, address=name))
        self.told: list[pb.ReleaseRequest] = []

    def holds(self, reservation_id: str, name: str = "dev", owner: str = "alice", created_at: float = 1.0) -> None:
        members = [files_pb2.Peer(node_id=each, address=each) for each in ("n1", "n2")]
        self.reply.reservations.add(
            reservation_id=reservation_id, name=name, owner=owner, created_at=created_at, members=members
        )

    def hold_session(self) -> None:
        """It has none."""

    def let_go(self) -> None:
        """As `hold_session`."""

    async def unary(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        if self.is_away:
            raise NodeUnreachable(f"{self.name} does not answer", self.name)
        if method == "Undertake":
            return pb.UndertakeReply()
        if method == "Status":
            return pb.StatusReply.FromString(self.reply.SerializeToString())
        if self.refuses:
            raise MonarchNbError("no")
        self.told.append(request)
        kept = [held for held in self.reply.reservations if held.reservation_id != request.reservation_id]
        del self.reply.reservations[:]
        self.reply.reservations.extend(kept)
        return pb.ReleaseReply()

    async def asked(self, late: LateReleases) -> list[str]:
        """Be asked by whoever knows what is to be released; return what is held then."""
        ((_, reply),) = await late.settle([(self, await self.unary("Status", REQUEST))], REQUEST)  # type: ignore[list-item]
        return [held.reservation_id for held in reply.reservations]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are remembered, in a pool of hosts."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path))
    paths = make_paths("lab")
    change_hosts(paths, lambda hosts: hosts)
    return paths.late_releases


@pytest.fixture
def late() -> LateReleases:
    return LateReleases("lab")


@pytest.fixture
def node() -> FakeNode:
    made = FakeNode("n1")
    made.holds("r")
    made.holds("other", name="other")
    return made


def remembered() -> object:
    return LateReleases("lab")._all()


async def released(*nodes: FakeNode) -> Any:
    return await release(nodes, "r", by=BY)  # type: ignore[arg-type]


class TestNoNodeAnswers:
    async def test_what_can_not_be_remembered_fails(self, node: FakeNode) -> None:
        node.is_away, node.identity = True, None  # on this machine
        done = await released(node)
        assert [str(one) for one in done.failed] == ["n1 does not answer"]
        assert not done.leftovers

    async def test_a_disk_that_refuses_fails_it(self, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(late_releases, "write_private", full)
        node.is_away = True
        assert (await released(node)).failed


class TestByName:
    async def test_it_is_what_we_held_under_it_until_then(self, late: LateReleases, node: FakeNode) -> None:
        assert await late.add(name="dev", by=BY)
        node.holds("bobs", owner="bob")
        node.holds("newer", created_at=late.time_of_new("dev"))
        assert await node.asked(late) == ["other", "bobs", "newer"]


class TestRemembering:
    async def test_one_that_a_node_does_not_take_is_tried_again(self, late: LateReleases, node: FakeNode) -> None:
        await late.add(reservation_id="r", by=BY)
        node.refuses = True
        assert await node.asked(late) == ["r", "other"]
        node.refuses = False
        assert await node.asked(late) == ["other"]

    async def test_a_file_that_somebody_has_spoilt_keeps_nobody(
        self, late: LateReleases, node: FakeNode, file: Path
    ) -> None:
        write_private(file, b'[{"what": 1}]')
        assert await node.asked(late) == ["r", "other"]
        assert await late.add(reservation_id="r", by=BY)
        assert await node.asked(late) == ["other"]

    async def test_what_a_node_said_before_it_was_away_is_shown_without_it(
        self, late: LateReleases, node: FakeNode
    ) -> None:
        await late.add(reservation_id="r", by=BY)
        left = late.without(node, node.reply)  # type: ignore[arg-type]
        assert [held.reservation_id for held in left.reservations] == ["other"]
        assert [(end.reservation_id, end.name, end.by) for end in left.ended] == [("r", "dev", BY)]
        assert len(node.reply.reservations) == 2, "what it said is as it was"

    async def test_whoever_holds_it_learns_where_it_was_released(self, late: LateReleases, node: FakeNode) -> None:
        await late.add(name="dev", by=BY)
        released, other = (late.end_of(held, node.identity) for held in node.reply.reservations)
        assert released is not None
        assert (released.reservation_id, released.name, released.by) == ("r", "dev", BY)
        assert other is None
