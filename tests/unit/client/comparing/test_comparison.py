"""Which ranks have what, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.client.comparing.compares import groups_of_device_meshes, groups_over
from monarch_nb.client.comparing.report import MOST_ROWS, DiffReport, compared
from monarch_nb.errors import TargetError
from monarch_nb.shape import Extent
from monarch_nb.worker.comparing import Leaf


def weight(contents: str, path: str = "w", facts: str = "[2] float32 cpu", part: str = "") -> Leaf:
    return Leaf(path, facts, contents, is_tensor=True, part=part)


def number(contents: str, path: str = "lr") -> Leaf:
    return Leaf(path, "float", contents)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=2, max_size=2), min_size=1, max_size=6))
def test_every_rank_is_in_one_version_of_each_difference(have: list[list[str]]) -> None:
    told = {(rank,): [weight(one, "x"), weight(two, "y")] for rank, (one, two) in enumerate(have)}
    found = compared(told)
    for difference in found.differences:
        ranks = [rank for version in difference.versions for rank in version.ranks]
        assert sorted(ranks) == list(range(len(have)))
        sizes = [len(version.ranks) for version in difference.versions]
        assert sizes == sorted(sizes, reverse=True)
    differing = {difference.path for difference in found.differences}
    assert differing == {name for place, name in enumerate("xy") if len({each[place] for each in have}) > 1}


def test_the_sentence_of_a_tensor() -> None:
    group = compared({(0, 1, 3): [weight("a")], (2,): [weight("b")]})
    (difference,) = group.differences
    one, other = difference.versions
    far = difference.with_versions([one, replace(other, distance="greatest |difference| 0.5 at [1]", nan=2)])
    assert str(DiffReport("model", (replace(group, differences=(far,)),))) == (
        "the tensor differs on ranks 0-3\n"
        "  w  [2] float32 cpu: ranks 0-1,3 equal; rank 2 differs: greatest |difference| 0.5 at [1] (2 nan)"
    )


def test_other_shapes_values_and_what_is_missing() -> None:
    told = {
        (0, 1): [weight("a"), number("0.1"), number("1", "only")],
        (2,): [weight("b", facts="[3] float32 cpu"), number("0.2")],
    }
    assert str(DiffReport("state", (compared(told),))) == (
        "the tensor differs and 0 of 2 values are equal on ranks 0-2\n"
        "  w     ranks 0-1: [2] float32 cpu; rank 2: [3] float32 cpu\n"
        "  lr    ranks 0-1: 0.1; rank 2: 0.2\n"
        "  only  ranks 0-1: 1; rank 2: not there"
    )


def test_equal_values_are_not_told_beside_tensors() -> None:
    assert str(DiffReport("model", (compared({(0, 1): [weight("a"), number("1")]}),))) == (
        "the tensor is equal on ranks 0-1"
    )


def test_shards_are_compared_with_the_same_shard() -> None:
    told = {
        (0,): [weight("a", part="0"), weight("x", "alone", part="0")],
        (1,): [weight("b", part="1"), weight("y", "alone", part="1")],
    }
    apart = DiffReport("model", (compared(told),))
    assert apart.equal
    assert apart.notes() == ["2 tensors in shards: each rank has its own, there is nothing to compare"]
    again = told | {(2,): [weight("a", part="0")], (3,): [weight("c", part="1")]}
    (difference,) = compared(again).differences
    assert [version.ranks for version in difference.versions] == [(1,), (3,)]


def test_groups_of_which_the_same_is_true_are_told_once() -> None:
    groups = (compared({(0, 1): [number("1")]}), compared({(2, 3): [number("2")]}))
    assert str(DiffReport("lr", groups)) == "the value is equal within each of 2 groups: 0-1 | 2-3"
    assert str(DiffReport("lr", (groups[0], compared({(2,): [number("1")], (3,): [number("2")]})))) == (
        "the value is equal on ranks 0-1\nthe value differs on ranks 2-3\n  lr  rank 2: 1; rank 3: 2"
    )


def test_modules_that_are_all_in_evaluation_are_one_row() -> None:
    def modes(value: str) -> list[Leaf]:
        return [Leaf(path, "bool", value) for path in ("training", "a.training", "b.training")]

    report = DiffReport("model", (compared({(0, 1): modes("True"), (2,): modes("False")}),))
    assert report.rows() == [("training of 3 modules", "ranks 0-1: True; rank 2: False")]
    assert len(report.differences) == 3


def test_many_differences() -> None:
    told = {(rank,): [number(str(rank), f"n{each}") for each in range(MOST_ROWS + 5)] for rank in range(9)}
    report = DiffReport("config", (compared(told),))
    assert len(report.rows()) == MOST_ROWS
    assert report.notes() == ["5 more names differ: mesh.diff('config').differences has all"]
    assert report.rows()[0][1] == "rank 0: 0; rank 1: 1; rank 2: 2; rank 3: 3; 5 versions more on ranks 4-8"


def test_groups_over_a_dimension() -> None:
    extent = Extent({"hosts": 2, "procs": 2})
    assert groups_over(extent, (0, 1, 3), "procs") == [(0, 1), (3,)]
    assert groups_over(extent, (0, 1, 3), "hosts") == [(0,), (1, 3)]


def test_groups_over_a_dimension_of_device_meshes() -> None:
    extent = Extent({"hosts": 2, "procs": 2})
    told = {0: {"dp": [(0, 2)], "tp": [(0, 1)]}, 1: {"dp": [(1, 3)]}, 2: {"dp": [(0, 2)]}}
    assert groups_of_device_meshes(told, "dp", extent) == [(0, 2), (1,)]
    with pytest.raises(
        TargetError, match=r"^ranks 1-2 are in no device mesh with a dimension 'tp': leave out with -t$"
    ):
        groups_of_device_meshes(told, "tp", extent)
    named = "^no dimension 'pp'; this mesh has hosts, procs, and the device meshes of its ranks have dp, tp$"
    with pytest.raises(TargetError, match=named):
        groups_of_device_meshes(told, "pp", extent)
    with pytest.raises(TargetError, match=r"this mesh has hosts, procs, and its ranks hold no device mesh$"):
        groups_of_device_meshes({0: {}}, "dp", extent)
    with pytest.raises(TargetError, match="rank 0 has device meshes with different ranks in 'dp': 0-1, 0,2; "):
        groups_of_device_meshes({0: {"dp": [(0, 1), (0, 2)]}}, "dp", extent)


def test_what_nobody_can_read_is_not_shown() -> None:
    told = {
        (0, 1): [number("3fa9", "python"), number("77", "torch"), number("1", "numpy")],
        (2,): [number("0bd1", "python"), number("78", "torch"), number("1", "numpy")],
        (3,): [number("aa01", "python"), number("78", "torch"), number("1", "numpy")],
    }
    assert str(DiffReport("the random states", (compared(told),), of_digests="random state")) == (
        "1 of 3 random states are equal on ranks 0-3\n"
        "  python  ranks 0-1 equal; ranks 2-3 differ, each has its own\n"
        "  torch   ranks 0-1 equal; ranks 2-3 equal"
    )


def test_what_was_set_too_late_is_set_in_time_by_a_line_that_can_be_typed() -> None:
    report = DiffReport("the environment", (compared({(0, 1): []}),), late={0: ["A", "B"], 1: ["A", "B"]})
    [note] = replace(report, reserving="%mesh reserve dev --nodes 1 --procs 2").notes()
    assert note == (
        "ranks 0-1: A, B changed too late to count, after Python or a module had read them: "
        "%mesh reserve dev --nodes 1 --procs 2 --env A=… --env B=… --replace (variables of the ranks are lost)"
    )
