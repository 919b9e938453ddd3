"""What others share, and what is shared with others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.client.pools.held import HeldReservation, current_owner
from monarch_nb.client.pools.infos import reservation_info, run_infos, shared_no_longer, shares_of
from monarch_nb.client.reservations.sharing import checked_grant, share, shared, unshare
from monarch_nb.errors import AccessDenied, NodeUnreachable, ReservationNotFound, UsageError
from monarch_nb.ground.code_names import run_names
from monarch_nb.proto import allocator_pb2 as pb


class FakeNode:
    name = "host1"

    def __init__(self, fails: Exception | None = None, identity: object = "lab") -> None:
        self.identity = identity and SimpleNamespace(name=current_owner())
        self.fails, self.told = fails, list[pb.ShareRequest]()

    async def unary(self, method: str, request: pb.ShareRequest) -> pb.ShareReply:
        assert method == "Share"
        if self.fails:
            raise self.fails
        self.told.append(request)
        return pb.ShareReply()


class FakePool:
    def __init__(self, held: HeldReservation) -> None:
        self._held = held

    async def held(self, *_: object) -> HeldReservation:
        return self._held


def held_by(
    owner: str, right: pb.Right.ValueType = pb.RIGHT_UNSPECIFIED, name: str = "dev", **more: Any
) -> HeldReservation:
    nodes: list[Any] = more.pop("nodes", [FakeNode()])
    status = pb.ReservationStatus(name=name, owner=owner, right=right, nodes=len(nodes), procs=1, **more)
    return HeldReservation(f"{owner}-{name}", {rank: (node, status) for rank, node in enumerate(nodes)})


class TestFinding:
    def test_what_is_shared_is_found_by_its_name(self) -> None:
        alices, other = held_by("alice", pb.RIGHT_READ), held_by("alice", pb.RIGHT_RUN, "other")
        assert shared("dev", [held_by("carol"), alices, other]) == [alices]
        assert shared("alice/dev", [alices, held_by("carol", pb.RIGHT_RUN)]) == [alices]
        assert shared("dev", [other]) == []
        with pytest.raises(ReservationNotFound, match="alice/dev, carol/dev"):
            shared("dev", [alices, held_by("carol", pb.RIGHT_RUN)])

    def test_what_is_not_shared_says_whose_it_is(self) -> None:
        with pytest.raises(
            AccessDenied,
            match=rf"^dev is alice's: alice can let you see .*%mesh share dev --to {current_owner()} --read",
        ) as caught:
            shared("dev", [held_by("alice")])
        assert caught.value.owner == "alice"


class TestGranting:
    async def test_what_ends_ends_on_all_nodes_that_answer_and_the_others_are_told(self) -> None:
        nodes = [FakeNode(NodeUnreachable("away")), FakeNode()]
        pool: Any = FakePool(held_by("me", pb.RIGHT_OWN, nodes=nodes))
        with pytest.raises(
            NodeUnreachable, match="a node does not answer: bob may use dev there until you run this again"
        ):
            await unshare(pool, "r", "dev", "bob")
        assert [request.right for request in nodes[1].told] == [pb.RIGHT_UNSPECIFIED]

    async def test_nothing_is_granted_while_a_node_is_away(self) -> None:
        held = held_by("me", pb.RIGHT_OWN, nodes=[FakeNode(), FakeNode()])
        node: Any = held.nodes[0][0]
        del held.nodes[1]
        pool: Any = FakePool(held)
        with pytest.raises(NodeUnreachable):
            await share(pool, "r", "dev", {"bob": "run"})
        assert node.told == []

    async def test_what_a_node_does_not_take_the_others_take_back(self) -> None:
        nodes = [FakeNode(), FakeNode(NodeUnreachable("went away"))]
        held = held_by("me", pb.RIGHT_OWN, nodes=nodes, shares={"carol": pb.RIGHT_READ})
        pool: Any = FakePool(held)
        with pytest.raises(NodeUnreachable, match="went away"):
            await share(pool, "r", "dev", {"bob": "run", "carol": "run"})
        rights = {request.to: request.right for request in nodes[0].told}
        assert rights == {"bob": pb.RIGHT_UNSPECIFIED, "carol": pb.RIGHT_READ}, "as before"

    async def test_nobody_else_reaches_a_local_pool_or_is_made_an_owner(self) -> None:
        pool: Any = FakePool(held_by("me", pb.RIGHT_OWN, nodes=[FakeNode(identity=None)]))
        with pytest.raises(UsageError, match="nobody else reaches a local pool"):
            await share(pool, "r", "dev", {"bob": "run"})
        with pytest.raises(UsageError, match="or run"):
            checked_grant("own")


class TestShowing:
    def test_lists_say_whose_it_is(self) -> None:
        me, run, read = current_owner(), pb.RIGHT_RUN, pb.RIGHT_READ
        for held, shown in (
            (held_by("alice"), "alice"),
            (held_by("alice", read, shares={"bob": read}), "alice, shared with you to read"),
            (held_by(me, pb.RIGHT_OWN), "you"),
            (held_by(me, pb.RIGHT_OWN, shares={"bob": run, "al": read}), "you, shared with al, bob"),
        ):
            assert reservation_info(held).holder == shown
        assert shares_of(held.facts) == {"al": "read", "bob": "run"}

    def test_what_is_not_ours_to_see_is_not_counted(self) -> None:
        assert reservation_info(held_by("alice")).alive_of_all == ""
        assert reservation_info(held_by("alice", pb.RIGHT_READ)).alive_of_all == "0 of 1"

    def test_who_waits_is_told_once_although_he_stands_in_every_nodes_line(self) -> None:
        waiting = [pb.WaitRequest(owner=name, wait_id=name, nodes=1, procs=2) for name in ("zoe", "bob")]
        held = held_by("me", pb.RIGHT_OWN, nodes=[FakeNode(), FakeNode()], waiting=waiting)
        assert reservation_info(held).waiting == ("zoe (1 node × 2 procs)", "bob (1 node × 2 procs)")

    def test_a_grant_that_ended_is_none_and_is_said_to_have_ended(self) -> None:
        ended = held_by("alice", shares={"bob": pb.RIGHT_UNSPECIFIED})
        assert shares_of(ended.facts) == {}
        assert str(shared_no_longer(ended.facts)).startswith("alice no longer shares dev with you")
        assert shared_no_longer(held_by("alice").facts) is None, "it never was"
        assert shared_no_longer(held_by("alice", pb.RIGHT_READ, shares={"bob": pb.RIGHT_READ}).facts) is None

    @pytest.mark.parametrize(
        ("reader", "names"), [("alice", ["run 1", "bob's run 1"]), ("bob", ["alice's run 1", "run 1"])]
    )
    def test_each_reads_whose_the_others_runs_are(self, reader: str, names: list[str]) -> None:
        runs = [pb.RunStatus(run_id=name, number=1, owner=name, ranks=[0], all_ranks=[0]) for name in ("alice", "bob")]
        infos = run_infos([("host1", pb.MeshStatus(runs=runs))], reader)
        assert [str(info) for info in infos] == names
        assert list(run_names(infos).values()) == names
