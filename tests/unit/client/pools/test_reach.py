"""Which node is at fault when some do not reach each other."""

from __future__ import annotations

from monarch_nb.client.pools.answering import WHAT_HELPS, WHAT_PASSES, NotConnected, Way


def refused(start: str, end: str) -> Way:
    return Way(start, end, "10.0.0.1", refused="port 5000")


def test_the_node_that_most_ways_have_to_do_with() -> None:
    assert NotConnected([refused("a", "b")]).worst == "b", "it lets nobody in"
    assert NotConnected([refused("b", "a"), refused("b", "c")]).worst == "b", "it gets nowhere"
    assert NotConnected([refused("a", "c"), refused("b", "c"), refused("c", "a")]).worst == "c"


def test_a_node_that_stays_is_not_the_one_to_do_without() -> None:
    assert NotConnected([refused("b", "a"), refused("c", "a")], ["a"]).worst == "b"
    assert NotConnected([refused("a", "b"), refused("a", "c"), refused("b", "a")], ["a"]).worst == "b"
    assert NotConnected([refused("a", "b")], ["a", "b"]).worst == "", "no other helps"


def test_what_helps_is_about_what_is_wrong() -> None:
    assert str(NotConnected([refused("a", "b")])).endswith(WHAT_HELPS)
    assert str(NotConnected([Way("a", "b", unreachable="b does not answer")])).endswith(WHAT_PASSES)
