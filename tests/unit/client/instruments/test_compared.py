"""Which run a cell is compared with."""

from __future__ import annotations

import pytest

from monarch_nb.client.instruments.compared import run_to_compare
from monarch_nb.errors import UsageError


@pytest.mark.parametrize(
    ("records", "wanted", "said"),
    [
        ({0: [65, 67], 1: [65]}, "last", "rank 1 has no record of run 67: --compare-with 65 is the newest that all"),
        (
            {0: [65], 1: [], 2: []},
            65,
            "ranks 1-2 have no record of run 65: run a cell with --deterministic there first",
        ),
        ({0: [], 1: []}, 99, "ranks 0-1 have no record of run 99: run a cell"),
        ({0: [], 1: []}, "last", "ranks 0-1 have no record of a run: run a cell"),
    ],
)
def test_ranks_without_a_record_are_named(records: dict[int, list[int]], wanted: int | str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        run_to_compare(records, wanted)
    assert "\n" not in str(raised.value)


def test_one_run_on_all_ranks() -> None:
    records = {0: [65, 67], 1: [67, 65]}
    assert run_to_compare(records, "last") == 67
    assert run_to_compare(records, 65) == 65
