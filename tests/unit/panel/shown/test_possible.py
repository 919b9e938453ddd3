"""What can not be done with a reservation as it is now."""

from __future__ import annotations

from typing import Any

from monarch_nb.panel.shown.possible import only_its_holder, refusals

AWAY = "no node of dev answers: this can be done again as soon as one does"


def held(**facts: object) -> dict[str, Any]:
    return {"id": "r", "name": "dev", "owner": "alice", "mine": True, "nodes_answering": 1, **facts}


def test_without_any_node_nothing_starts_there_and_nobody_attaches() -> None:
    assert refusals(held()) == {}, "one is enough"
    assert refusals(held(nodes_answering=0)) == {"attach": AWAY, "restart": AWAY, "resize": AWAY}
    over = "dev is being released"
    for answering in (0, 1):
        said = refusals(held(nodes_answering=answering), {"r", "other"})
        assert said == {"attach": over, "restart": over, "resize": over}


def test_what_others_share_can_be_attached_to_and_is_theirs_to_change() -> None:
    theirs = held(mine=False)
    assert refusals(theirs) == {"restart": only_its_holder(theirs), "resize": only_its_holder(theirs)}
    assert "held by alice" in only_its_holder(theirs)
    assert refusals(held(mine=False, nodes_answering=0)) == {**refusals(theirs), "attach": AWAY}
