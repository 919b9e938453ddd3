"""notebooks/grpo.ipynb: the policy learns, on our ranks and on Monarch's own engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.night.torchmonarch import monarch_python
from integration.notebooks import Executed, execute
from integration.pools import release_all
from monarch_nb.provision import Node

pytestmark = pytest.mark.slow

RESERVE = "%load_ext monarch_nb\n%mesh reserve dev --nodes 2 --procs 2"
OURS, MONARCHS = (f'ENGINE = "{name}"  # or "{other}"' for name, other in (("monarch_nb", "monarch"), ("monarch", "…")))


def check(grpo: Executed) -> None:
    """The reward rises, and generators that never trained have what the trainer has learnt."""
    rewards = [float(reward) for reward in re.findall(r"mean reward (\S+)", grpo.text("for step in"))]
    assert rewards[0] < 0.25
    assert rewards[-1] > 0.9
    answers = grpo.text("generators.answer")
    assert re.findall(r"\[1, 2, 3, 4, 5\] -> \[5, 4, 3, 2, 1\] on host (\d)", answers) == ["0", "1"]
    assert "equal weights on all three: True" in answers
    assert grpo.images("plt.plot(rewards)") == 1
    assert "released" in grpo.text("%mesh release")


def test_a_policy_learns_on_our_ranks(shared_pool: list[Node], tmp_path: Path) -> None:
    try:
        check(execute("grpo", tmp_path))
    finally:
        release_all()  # nothing is held, unless the notebook failed half-way


def test_the_same_policy_learns_on_monarchs_own_engine(pool_home: Path, tmp_path: Path) -> None:
    instead = {OURS: MONARCHS, RESERVE: f"{RESERVE} --preload json"}  # no rank of ours needs torch there
    check(execute("grpo", tmp_path, instead=instead, python=monarch_python()))
