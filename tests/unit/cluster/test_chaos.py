"""Twenty random lives of a pool; `tests/integration/night/test_chaos.py` plays a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.cluster.chaos import play


@pytest.mark.parametrize("seeds", [range(10), range(10, 20)], ids=str)
def test_what_is_promised_holds_in_any_order(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        play(tmp_path / str(seed), seed)
