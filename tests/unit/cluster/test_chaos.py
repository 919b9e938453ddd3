"""Eight random lives of a pool; `night/test_chaos.py` plays a thousand."""

from __future__ import annotations

import pytest

from unit.cluster.chaos import play


@pytest.mark.parametrize("seed", range(8))
def test_what_is_promised_holds_in_any_order(seed: int) -> None:
    play(seed)
