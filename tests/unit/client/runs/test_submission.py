"""How a run comes to its nodes: one gives it its number, and with that the others get it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from monarch_nb.client.runs.run import Run
from monarch_nb.proto import allocator_pb2 as pb
from unit.client.runs.run_harness import Harness, several_turns


async def test_a_node_that_comes_back_does_not_wait_for_ever_for_a_run_that_it_forgot(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its allocator was killed before it wrote down the run before this one, and missed the first word of that."""
    harness.start()
    harness.queued()
    harness.run.on_link(harness.nodes[1], up=False)
    monkeypatch.setattr("monarch_nb.client.runs.submission.PROCEED_AFTER_S", 0.0)
    harness.run.on_link(harness.nodes[1], up=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert "proceed" in dict(harness.nodes[1].sent)


async def test_the_first_node_gives_the_number_the_others_learn_it(harness: Harness) -> None:
    harness.start()
    assert [kind for kind, _ in harness.nodes[1].sent] == []
    [(_, first)] = harness.nodes[0].sent
    assert (first.give_number, list(first.ranks), list(first.all_ranks)) == (True, [0, 1, 2, 3], []), "all"
    assert not first.quiet, "somebody listens"
    for _ in range(2):
        harness.queued(number=5, previous={0: 4, 1: 3})
    [(_, second)] = harness.nodes[1].sent
    assert (second.give_number, second.run.number, second.after, list(second.ranks)) == (False, 5, 3, [4, 5, 6, 7])
    assert (harness.run.number, second.title) == (5, "title")


async def test_another_gives_it_when_the_first_is_lost_and_runs_nothing_of_it() -> None:
    harness = Harness([5])
    harness.core.newest_number = 1004
    harness.start()
    harness.core.lost = 0
    harness.run.on_link(harness.nodes[0], up=False)
    await several_turns()
    [(_, second)] = harness.nodes[1].sent
    assert (second.give_number, second.newest, list(second.ranks)) == (True, 1004, [5])
    assert harness.nodes[0].forgotten == ["run-id"], "or it would get it again when it is back"
    harness.queued(node=1, number=1005)
    assert harness.run.number == harness.core.newest_number == 1005
    assert len(harness.nodes[1].sent) == 1


async def test_what_may_have_begun_there_waits_for_the_first(harness: Harness) -> None:
    harness.start()
    harness.core.lost = 0
    harness.run.on_link(harness.nodes[0], up=False)
    await several_turns()
    assert harness.nodes[1].sent == []


async def test_in_a_tree_another_gives_it_when_the_chosen_one_can_not_be_asked_any_more() -> None:
    """One above it is back. A node that also got the run by itself, without its ranks, would never run it."""
    harness = Harness(range(4, 8))
    asked: list[int] = []

    class Tree(SimpleNamespace):
        def submit(self, _: Run, submit: pb.Submit, numbered_by: int) -> None: ...
        def send(self, **_: object) -> None: ...
        def can_ask(self, node: int) -> bool:
            return node == 0

        def number_by(self, run_id: str, node: int, newest: int) -> None:
            asked.append(node)

    async def number_of(_: str) -> int:
        return 0

    harness.core.tree, harness.core.first_node = Tree(), 1
    harness.core.number_of, harness.core.is_node_up = number_of, lambda _: True
    harness.start()
    await several_turns()
    assert asked == [0]
    harness.queued()
    assert harness.run.number == 5
    assert not [sent for node in harness.nodes for sent in node.sent]
