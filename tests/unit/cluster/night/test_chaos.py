"""A thousand random lives of a pool in one process: `$MONARCH_NB_CHAOS_SEEDS` says how many, or which ("17-19")."""

from __future__ import annotations

import os

import pytest

from unit.cluster.chaos import play

EACH = 50
"""Seeds of one test."""


def _seeds() -> range:
    first, dash, last = os.environ.get("MONARCH_NB_CHAOS_SEEDS", "1000").rpartition("-")
    return range(int(first), int(last) + 1) if dash else range(int(last))


@pytest.mark.parametrize("start", [_seeds()[at] for at in range(0, len(_seeds()), EACH)])
def test_what_is_promised_holds_in_any_order(start: int) -> None:
    failed: dict[int, str] = {}
    for seed in range(start, min(start + EACH, _seeds().stop)):
        try:
            play(seed)
        except AssertionError as error:
            failed[seed] = str(error)
    assert not failed, "\n\n".join(f"seed {seed}:\n{said}" for seed, said in failed.items())
