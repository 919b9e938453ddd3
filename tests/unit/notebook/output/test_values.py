"""What many ranks return becomes a few rows, whose numbers are right, and a grid that stays small."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.client.connections.events import Result
from monarch_nb.errors import RankFailure
from monarch_nb.notebook.output.fold import Fold
from monarch_nb.notebook.output.values.spread import Number, Spread
from monarch_nb.worker.shell.facts import facts_of
from unit.notebook.output.folds import rendered

NUMBERS = st.integers(-(10**30), 10**30) | st.floats(-1e300, 1e300)
HOSTS = 16


def _shown(values: Sequence[Any], hosts: int = HOSTS, **facts: Any) -> dict[str, str]:
    """What a run shows whose ranks return these values; a rank without one has failed."""
    fold = Fold(range(len(values)))
    for rank, value in enumerate(values):
        if value is None:
            fold.add(Result(rank, "ok", 0.1))
        else:
            fold.add(Result(rank, "ok", 0.1, {"text/plain": repr(value)}, facts=facts or facts_of(value) or {}))
    per_host = -(-len(values) // hosts)
    names = {f"node{host}": list(range(len(values)))[host * per_host :][:per_host] for host in range(hosts)}
    return rendered(fold, hosts=names)


def _spread(values: Sequence[float]) -> Spread:
    return Spread.of({rank: Number.read(repr(value)) for rank, value in enumerate(values)})


def _cells(markup: str) -> dict[int, str]:
    """What is under the mouse, by rank."""
    return {int(rank): text for rank, text in re.findall(r"title='(?:rank )?(\d+): ([^']*)'", html.unescape(markup))}


def _stored_bytes(bundle: Mapping[str, str]) -> int:
    return len(json.dumps(bundle))


# ---- numbers ----


@settings(max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=40))
def test_least_greatest_and_median(values: list[float]) -> None:
    spread = _spread(values)
    ordered = [spread.numbers[rank].value for rank in spread.finite]
    assert ordered == sorted(values)
    assert spread.odd == {}
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    assert low <= spread.median <= high
    if all(abs(value) < 1e15 for value in values):
        assert math.isclose(spread.median, statistics.median(values), rel_tol=1e-12, abs_tol=1e-300)
    pattern = r"[\d,]+ numbers from (\S+) \(ranks? (\S+).*\) to (\S+) \(ranks? (\S+).*\), median .*"
    found = re.fullmatch(pattern, spread.sentence())
    if not spread.is_equal:
        assert found is not None, spread.sentence()
        for text, ranks, end in ((found[1], found[2], min(values)), (found[3], found[4], max(values))):
            assert values[int(re.split("[,-]", ranks)[0])] == end, "a rank that has it"
            assert math.isclose(float(text), float(end), rel_tol=1e-4, abs_tol=1e-300)


@given(st.lists(st.floats(), min_size=1, max_size=40))
def test_what_is_no_number_is_named_by_rank(values: list[float]) -> None:
    spread = _spread(values)
    told = {kind: [int(rank) for rank in ranks] for kind, ranks in spread.odd.items()}
    expected = {
        "nan": [rank for rank, value in enumerate(values) if math.isnan(value)],
        "inf": [rank for rank, value in enumerate(values) if value == math.inf],
        "-inf": [rank for rank, value in enumerate(values) if value == -math.inf],
    }
    assert told == {kind: ranks for kind, ranks in expected.items() if ranks}
    assert sorted([*spread.finite, *itertools.chain(*told.values())]) == list(range(len(values)))
    for kind in told:
        assert f"{kind} on rank" in spread.sentence()


def test_far_from_the_others() -> None:
    for ranks, odd in ((8, 3), (16, 0), (128, 77)):
        values = [2 + rank / ranks for rank in range(ranks)]
        assert _spread(values).far == ()
        values[odd] = 9.5
        assert _spread(values).far == (odd,)
        assert _spread([5] * (ranks - 1) + [7]).far == (ranks - 1,)
        assert _spread([2, 2.1, 9.5]).far == (), "too few to say"


def test_a_number_of_128_ranks_is_a_row_and_a_grid() -> None:
    values = [round(2.3 + rank / 1_000, 3) for rank in range(128)]
    values[77], values[5], values[9] = 9.75, math.nan, -math.inf
    shown = _shown(values)
    assert shown["text/plain"] == (
        "Out[0-127]: 126 numbers from 2.3 (rank 0) to 9.75 (rank 77), median 2.3645 · nan on rank 5 · -inf on rank 9 "
        "· far from the others: rank 77"
    )
    cells = _cells(shown["text/html"])
    assert (cells[5], cells[9], cells[77], cells[127]) == ("nan", "-inf", "9.75", "2.427")
    assert len(cells) == 128
    assert re.search(r"title='rank 77: 9.75'> ○ </b>", shown["text/html"])
    assert shown["text/html"].count("○") == 2, "and the legend"
    table = shown["text/html"].partition("<details>")[2]
    assert re.search(r"node9 +72: 2\.372 .* 76: 2\.376 +77: <b>9\.75</b> +78: 2\.378", table)
    assert _stored_bytes(shown) < 15_000


def test_up_to_8_ranks_nothing_changes() -> None:
    for ranks in (1, 2, 8):
        values = [rank * 1.5 for rank in range(ranks)]
        lines = [f"Out[{rank}]: {value}" for rank, value in enumerate(values)]
        assert _shown(values)["text/plain"].splitlines() == lines
        assert "details" not in _shown(values)["text/html"]


def test_few_different_values_stay_as_they_are() -> None:
    assert _shown([rank == 77 for rank in range(128)])["text/plain"] == "Out[0-76,78-127]: False\nOut[77]: True"
    assert _shown([5] * 128)["text/plain"] == "Out[0-127]: 5"


def test_a_dict_is_a_row_for_each_number() -> None:
    shown = _shown([{"loss": 2.5 + rank, "step": 40} for rank in range(16)])
    assert shown["text/plain"].splitlines() == [
        "Out[0-15]: loss: 2.5 (rank 0) to 17.5 (rank 15), median 10.0",
        "           step: 40",
    ]
    assert shown["text/html"].count("<details>") == 1, "what is equal is not drawn"
    assert _shown([(rank, 2.0) for rank in range(16)])["text/plain"].startswith("Out[0-15]: [0]: 0 (rank 0) to 15")


def test_what_is_no_number_does_not_fold_as_one() -> None:
    for value in (1j, "2.5", [[1]], {1: 2}, {"a": "b"}, [True], b"1", 10**2_000, {str(n): n for n in range(17)}):
        assert facts_of(value) is None


def test_numbers_that_no_float_can_hold() -> None:
    values = [10**350 + rank for rank in range(8)] + [1e308, -1e308] + [0.5] * 6
    text = _shown(values)["text/plain"]
    assert text.startswith("Out[0-15]: 16 numbers from -1e+308 (rank 9) to 1.0000e+350 (rank 7), median ")
    assert len(_cells(_shown(values)["text/html"])) == 16


def test_mixed_kinds_have_rows_of_their_own() -> None:
    values: list[Any] = [rank * 0.5 for rank in range(16)]
    values[3], values[4], values[5] = None, "no data", True
    shown = _shown(values)
    assert shown["text/plain"].splitlines() == [
        "Out[0-2,6-15]: 13 numbers from 0.0 (rank 0) to 7.5 (rank 15), median 4.5",
        "Out[3]: None",
        "Out[4]: 'no data'",
        "Out[5]: True",
    ]
    assert {_cells(shown["text/html"])[rank] for rank in (3, 4, 5)} == {"no number"}


def test_none_is_named_beside_numbers_alone() -> None:
    fold = Fold(range(128))
    fold.unasked = 0b1000
    for rank in range(128):
        if rank == 5:
            fold.add(Result(rank, "error", 0.1, failure=RankFailure(rank, "h", "error", "E", "m")))
        elif rank > 1:
            facts = facts_of(rank * 0.5) if rank not in (3, 7) else None
            fold.add(Result(rank, "ok", 0.1, {"text/plain": repr(rank * 0.5)} if facts else {}, facts=facts or {}))
    shown = rendered(fold)["text/plain"]
    assert shown.splitlines()[1:] == ["Out[7]: None"], "3 is not asked for, 5 has failed, 0 and 1 compute"
    alone = [None if rank else "done" for rank in range(128)]
    assert _shown(alone)["text/plain"] == "Out[0]: 'done'", "who returns something on one rank alone knows it"


def test_other_values_show_the_first_few_and_open() -> None:
    words = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)][:128]
    shown = _shown([f"host {word} <b>" for word in words])
    lines = shown["text/plain"].splitlines()
    assert lines[0] == "Out[0]: 'host aaa <b>'"
    assert lines[-1] == "… 123 more different values on ranks 5-127 not shown: `-o NAME` keeps them"
    assert len(lines) == 6
    hidden = shown["text/html"].partition("<details")[2]
    assert f"Out[127]: 'host {words[127]} &lt;b&gt;'" in html.unescape(hidden).replace("<", "&lt;").replace(">", "&gt;")
    large = _shown(["x" * 5_000 + str(rank) for rank in range(128)])
    assert _stored_bytes(large) < 120_000
    assert re.search(r"… results of ranks [\d-]+ not shown", large["text/html"])


@settings(max_examples=15)
@given(st.integers(9, 1_024), st.integers(1, 200), st.data())
def test_whatever_ranks_return_what_is_stored_stays_small(ranks: int, hosts: int, data: st.DataObject) -> None:
    few = data.draw(st.lists(st.floats() | NUMBERS, min_size=4, max_size=20))
    values = [few[rank % len(few)] for rank in range(ranks)]
    assert _stored_bytes(_shown(values, hosts)) < 100_000


def test_1024_ranks_have_a_grid() -> None:
    values = [2.3 + math.sin(rank * 7) for rank in range(1_024)]
    shown = _shown(values, hosts=128)
    assert len(shown["text/plain"].splitlines()) == 1
    assert len(_cells(shown["text/html"])) == 1_024
    assert _stored_bytes(shown) < 80_000
    assert _stored_bytes(_shown([value / 3 for value in [*values] * 4], hosts=512)) < 100_000, "no grid, and no more"
    fields = [dict.fromkeys("abcdefgh", value * 1.1) for value in values]
    assert _stored_bytes(_shown(fields, hosts=128)) < 100_000


def test_facts_of_another_version_are_left_alone() -> None:
    for facts in ({"number": "x"}, {"number": None}, {"numbers": 3}, {"tensor": {}}, {"later": 1}):
        shown = _shown(list("abcdefghijklmnop"), **facts)
        assert shown["text/plain"].startswith("Out[0]: 'a'\n")


# ---- tensors ----


def _tensor(rank: int, **facts: Any) -> dict[str, Any]:
    about = {"type": "tensor", "shape": [4, 768], "dtype": "float32", "device": f"cuda:{rank % 8}", "step": 1}
    statistics = {"looked_at": 3_072, "nan": 0, "inf": 0, "min": str(-rank), "max": str(rank), "mean": str(rank / 8)}
    return {"tensor": about | statistics | facts}


def _tensors(facts: Sequence[dict[str, Any]]) -> str:
    fold = Fold(range(len(facts)))
    for rank, each in enumerate(facts):
        fold.add(Result(rank, "ok", 0.1, {"text/plain": f"tensor({rank})"}, facts=each))
    return rendered(fold)["text/plain"]


def test_tensors_are_a_row_for_each_shape_dtype_and_device() -> None:
    facts = [_tensor(rank, nan=2 * (rank == 5), inf=rank == 6) for rank in range(16)]
    assert _tensors(facts).splitlines() == [
        "Out[0-15]: tensor [4, 768] float32 cuda:0-7 on 16 ranks",
        "           min -15 (rank 15) to 0 (rank 0), max 0 (rank 0) to 15 (rank 15)",
        "           mean 0.0 (rank 0) to 1.875 (rank 15) · nan on rank 5 (2 elements) · inf on rank 6 (1 element)",
    ]
    two = [_tensor(rank, shape=[4, 768 - rank % 2], step=1 + rank % 2) for rank in range(16)]
    assert [line for line in _tensors(two).splitlines() if "tensor" in line] == [
        "Out[0,2,4,6,8,10,12,14]: tensor [4, 768] float32 cuda:0,2,4,6 on 8 ranks",
        "Out[1,3,5,7,9,11,13,15]: tensor [4, 767] float32 cuda:1,3,5,7 on 8 ranks, ≈ from one in 2 elements",
    ]
    uneven = [_tensor(rank, shape=[rank, 768]) for rank in range(16)]
    assert _tensors(uneven).startswith("Out[0-15]: tensor [0–15, 768] float32 cuda:0-7 on 16 ranks\n")
    for part in ({"dtype": "int64"}, {"device": "cpu"}, {"shape": [4]}):
        mixed = [_tensor(rank, **(part if rank % 2 else {})) for rank in range(16)]
        assert _tensors(mixed).count("on 8 ranks") == 2, part


# ---- strings ----


def test_strings_that_differ_only_in_numbers_fold_as_lines_do() -> None:
    assert _shown([f"shard {rank} of 16" for rank in range(16)])["text/plain"] == "Out[0-15]: 'shard 0–15 of 16'"
    shown = _shown(["loss nan" if rank == 3 else f"loss {rank / 4}" for rank in range(16)])["text/plain"]
    assert shown.splitlines() == ["Out[0-2,4-15]: 'loss 0.0–3.75'", "Out[3]: 'loss nan'"]
    few = _shown([f"shard {rank % 3}" for rank in range(16)])["text/plain"]
    assert len(few.splitlines()) == 3, "three different ones are shown as they are"
