"""How long stacks were there: a tree of bounded size."""

from __future__ import annotations

import doctest

import pytest

from monarch_nb.worker.instruments import python_profile
from monarch_nb.worker.instruments.python_profile import MOST_DEPTH, Frame, StackCounts


def frame(name: str) -> Frame:
    return Frame(name, "train.py", 1)


def test_docstring_examples() -> None:
    assert doctest.testmod(python_profile).failed == 0


def test_too_deep_stacks_count_for_the_deepest_frame_that_is_kept() -> None:
    counts = StackCounts()
    counts.add([frame("recursion")] * (MOST_DEPTH + 50), 1.0)
    told = counts.told()
    assert (len(told["parents"]), told["own_s"][-1], told["is_cut"]) == (MOST_DEPTH, 1.0, True)


def test_a_full_tree_loses_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_profile, "MOST_NODES", 3)
    counts = StackCounts()
    for name in "abcdef":
        counts.add([frame("main"), frame(name)], 1.0)
    told = counts.told()
    assert (told["own_s"], told["looks"], told["is_cut"]) == ([4.0, 1.0, 1.0], 6, True)
