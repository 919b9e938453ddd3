"""What a rank knows of its groups without asking anybody, and what it says when it has lost one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from monarch_nb.errors import RankFailure, RunFailed
from monarch_nb.worker.groups import breaking, c10d
from monarch_nb.worker.groups.connections import GroupConnections
from unit.worker.groups.test_collectives import C10D, raised_in


def test_nccl_does_not_notice_that_a_peer_has_died_so_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not breaking.is_torn(peer_died=True), "Gloo has all its connections"
    monkeypatch.setattr(c10d, "uses_nccl", lambda: True)
    assert breaking.is_torn(peer_died=True)
    assert not breaking.is_torn()


class Connections(GroupConnections):
    """Of a group of Gloo, to peers of which one may be lost."""

    is_lost = False

    def lost_peers(self, wait_s: float = 0) -> bool:
        return self.is_lost


LOST = "Connection closed by peer"
TOLD = {"rank 0 lost the process group": False, "rank 1 died": True}
"""What a rank is told by the client, which may have heard of another one before it hears of the death."""


def failure_of_a_rank_that_waits(order: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the code of a rank raises in the end, after what it has heard in this order."""
    state = breaking._State()
    state.connections = connections = Connections()
    monkeypatch.setattr(breaking, "state", state)
    for event in order:
        if event == LOST:
            connections.is_lost = True
        elif breaking.is_torn(peer_died=TOLD[event]):  # as the control thread does
            breaking.break_groups(event, follows=not TOLD[event], threads=())
    raised = RuntimeError(f"[/third_party/gloo/gloo/transport/tcp/pair.cc:553] {LOST} [::1]:5")
    shown = breaking.readable(raised_in(C10D, "all_reduce", raised))
    if state.breaker is not None:
        state.breaker.join()
    state.hush.end()
    assert shown is not None, "torch's own words would pass for a cause"
    return str(shown)


def test_the_rank_that_died_is_named_first_and_who_lost_the_group_after_it_whoever_is_heard_of_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c10d, "default_group", object)
    texts = set()
    for number in range(len(TOLD) + 1):
        for told in itertools.permutations(TOLD, number):
            for place in range(number + 1):
                order = (*told[:place], LOST, *told[place:])
                text = failure_of_a_rank_that_waits(order, monkeypatch)
                causes = [reason for reason in order[place:] if TOLD.get(reason)]  # before, all its peers were there
                said = causes or [*order[place + 1 :], "a peer was interrupted or died"]
                assert text.startswith(f"interrupted in all_reduce ({said[0]}); process group aborted"), order
                texts.add(text)
    assert len(texts) == 3
    died = RankFailure(1, "node0", "died", "RankDied", "died: killed by signal 9")
    for others in itertools.product(sorted(texts), repeat=3):
        lost = [
            RankFailure(rank, "node0", "error", "ProcessGroupAborted", text, rendered="a traceback")
            for rank, text in zip((0, 2, 3), others, strict=True)
        ]
        for arrived in itertools.permutations([died, *lost]):
            error = RunFailed(failures=arrived)
            (first, cause), *consequences = error.groups()
            assert (first, cause.is_consequence) == ([1], False), arrived
            assert sorted(rank for ranks, _ in consequences for rank in ranks) == [0, 2, 3]
            assert all(each.is_consequence and not each.rendered for _, each in consequences)
            assert str(error).startswith("rank 1 (node0): RankDied: "), arrived
