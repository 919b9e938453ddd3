"""Which run a cell is compared with."""

from __future__ import annotations

import pytest

from monarch_nb.client.instruments.compared import run_to_compare, with_run
from monarch_nb.errors import UsageError


@pytest.mark.parametrize(
    ("records", "wanted", "said"),
    [
        ({0: [65, 67], 1: [65]}, "last", "rank 1 has no record of run 67: run 65 is the newest that all"),
        (
            {0: [65], 1: [], 2: []},
            65,
            "ranks 1-2 have no record of run 65: run a cell with --deterministic there first",
        ),
        ({0: [], 1: []}, "last", "ranks 0-1 have no record of a run: run a cell"),
    ],
)
def test_ranks_without_a_record_are_named(records: dict[int, list[int]], wanted: int | str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        run_to_compare(records, wanted)
    assert "\n" not in str(raised.value)


def test_last_is_one_run_on_all_ranks_from_python_too() -> None:
    class Mesh:
        ranks = (0, 1)

        def pull(self, expression: str) -> list[list[int]]:
            assert expression.endswith(".recorded()")
            return [[5, 9, 7], [7, 9]]

    asked = {"deterministic": {"compare_with": "last", "seed": 3}, "watch": {}}
    assert with_run(asked, Mesh()) == {"deterministic": {"compare_with": 9, "seed": 3}, "watch": {}}
    assert with_run({"deterministic": {"compare_with": 7}}, Mesh()) == {"deterministic": {"compare_with": 7}}
    with pytest.raises(UsageError, match="rank 1 has no record of run 5: run 9 is the newest that all ranks here have"):
        with_run({"deterministic": {"compare_with": 5}}, Mesh())
    for unchanged in (None, {}, {"deterministic": {}}, {"deterministic": {"compare_with": 0}}, {"watch": {}}):
        assert with_run(unchanged, Mesh()) is unchanged
