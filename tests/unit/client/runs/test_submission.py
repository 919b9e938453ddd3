"""How a run comes to its nodes: the first one gives it its number, or another, when that can not be asked."""

from __future__ import annotations

import pytest

from unit.client.runs.run_harness import Harness, several_turns


async def test_the_first_node_gives_the_number(harness: Harness) -> None:
    harness.start()
    [(_, submit)] = harness.session.sent
    assert (submit.give_number, list(submit.all_ranks), submit.title) == (True, [], "title"), "all"
    assert not submit.quiet, "somebody listens"
    harness.queued(number=5)
    assert (harness.run.number, harness.core.newest_number, harness.session.asked) == (5, 5, [0])


async def test_another_gives_it_when_the_first_is_lost_and_runs_nothing_of_it() -> None:
    harness = Harness([5])
    harness.start()
    harness.core.lost = 0
    harness.run.on_link(harness.nodes[0], up=False)
    await several_turns()
    assert harness.session.asked == [0, 1]


async def test_what_may_have_begun_there_waits_for_the_first(harness: Harness) -> None:
    harness.start()
    harness.core.lost = 0
    harness.run.on_link(harness.nodes[0], up=False)
    await several_turns()
    assert harness.session.asked == [0]


async def test_another_gives_it_when_the_chosen_one_can_not_be_asked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One above it is back. A node that also got the run by itself, without its ranks, would never run it."""
    harness = Harness(range(4, 8))
    monkeypatch.setattr(harness.session, "can_ask", lambda node: node == 0)
    harness.core.first_node = 1
    harness.start()
    await several_turns()
    assert harness.session.asked == [1, 0]
    harness.queued()
    assert harness.run.number == 5
