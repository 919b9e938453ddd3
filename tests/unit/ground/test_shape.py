"""Extents and targets: what people type as ranks, and what is printed of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch_nb.errors import TargetError
from monarch_nb.ground.rank_sets import format_ranks, name_ranks
from monarch_nb.shape import Extent, parse_targets

EXTENT = Extent({"hosts": 2, "procs": 4})

extents = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(
    lambda sizes: Extent({f"dim{i}": size for i, size in enumerate(sizes)})
)


class TestExtent:
    @given(extents)
    def test_points_count_in_row_major_order(self, extent: Extent) -> None:
        points = [extent.point(rank) for rank in range(extent.size)]
        assert [tuple(point.values()) for point in points] == sorted({tuple(point.values()) for point in points})
        assert all(list(point) == list(extent) for point in points)
        assert [extent.ranks(**point) for point in points] == [(rank,) for rank in range(extent.size)]

    @given(extents, st.data())
    def test_slices_select_what_python_would(self, extent: Extent, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(extent)))
        chosen = data.draw(st.slices(extent[name]))
        expected = {rank for rank in range(extent.size) if extent.point(rank)[name] in range(extent[name])[chosen]}
        assert set(extent.ranks(**{name: chosen})) == expected

    def test_ranks_are_chosen_by_names_of_dimensions(self) -> None:
        assert EXTENT.ranks(hosts=-1, procs=-1) == (7,), "counted from the end"
        for name, place in (("gpus", 0), ("hosts", 2), ("hosts", -3), ("procs", 4)):
            with pytest.raises(TargetError, match=name):
                EXTENT.ranks(**{name: place})

    def test_it_reads_as_people_write_it(self) -> None:
        assert str(EXTENT) == "2 hosts × 4 procs"
        assert len({EXTENT, Extent({"hosts": 2, "procs": 4})}) == 1


class TestFormat:
    @given(st.lists(st.integers(0, 63), min_size=1))
    def test_what_is_printed_can_be_typed(self, ranks: list[int]) -> None:
        assert parse_targets(format_ranks(ranks), Extent({"procs": 64})) == tuple(sorted(set(ranks)))
        assert format_ranks(ranks) == format_ranks(sorted(set(ranks), reverse=True))

    def test_sentences(self) -> None:
        assert [name_ranks([3]), name_ranks([5, 0, 1, 2])] == ["rank 3", "ranks 0-2,5"]


class TestTargets:
    def test_forms(self) -> None:
        forms: dict[str, list[int]] = {
            "0": [0], "0,2-3": [0, 2, 3], "3,0,3": [0, 3], "-1": [7], "[0, 2 - 3]": [0, 2, 3],
            "2-3": [2, 3],  # as in Slurm
            "2:3": [2], "::2": [0, 2, 4, 6], "4:": [4, 5, 6, 7], ":-6": [0, 1], "6:100": [6, 7],  # as in Python
            "::-1": [*range(8)], "all": [*range(8)], " all ": [*range(8)],
            "hosts=0": [0, 1, 2, 3], "hosts=0,procs=0:2": [0, 1], "hosts = -1, procs = ::3": [4, 7], "procs=1": [1, 5],
            "hosts=0, procs=(1, 3)": [1, 3], "hosts=(-1,1),procs=1::2": [5, 7], "procs=(2)": [2, 6],  # as in Monarch
        }  # fmt: skip
        assert {text: list(parse_targets(text, EXTENT)) for text in forms} == forms

    def test_what_is_none(self) -> None:
        malformed = [
            *("", "   ", "[]", ",", "0,", ",0", "0,,1", "0-", "--1", "0--1", "1-2-3", "3-2", "x", "0x1", "1.0", "1e0"),
            *("0;1", "0 1", "1 2", "0:1:2:3", "::0", ":x", "rank 0", "all,0", "[0", "0]", "(0]", "(1,)", "None", "½"),
            *("hosts", "hosts=", "=0", "hosts=x", "hosts=0,", "hosts=0,1", "0,hosts=0", "hosts==0", "hosts=0=0"),
            *("+1", "gpus=0", "hosts=0,hosts=1", "HOSTS=0", "hosts=::0", "hosts=(0,1", "hosts=()"),
        ]
        out_of_range = ["8", "-9", "0-8", "7,8", "8:", "0,8:", "5:5", "hosts=2", "procs=-5", "hosts=2:", "hosts=(0,2)"]
        malformed += ["hosts=0 1", "hosts=(0:1)"]
        for text in (*malformed, *out_of_range):
            with pytest.raises(TargetError):
                parse_targets(text, EXTENT)

    @given(st.text(max_size=12) | st.text("0123456789-:,=[]() hostspc", max_size=12))
    @example(":-")
    def test_any_text_gives_ranks_of_the_mesh_or_one_clear_error(self, text: str) -> None:
        try:
            ranks = parse_targets(text, EXTENT)
        except TargetError:
            pass
        else:
            assert ranks
            assert list(ranks) == sorted(set(ranks))
            assert set(ranks) <= set(range(8))

    def test_a_message_shows_what_was_typed_and_how_to_write_it(self) -> None:
        with pytest.raises(TargetError, match=r"'0;1'.*0,2-3"):
            parse_targets("0;1", EXTENT)
        with pytest.raises(TargetError, match=r"no rank 9.*0 to 7"):
            parse_targets("3-9", EXTENT)
        with pytest.raises(TargetError, match=r"no rank 1: the only rank of this mesh is 0$"):
            parse_targets("1", Extent({"hosts": 1, "procs": 1}))
        with pytest.raises(TargetError, match=r"'gpus'.*hosts, procs"):
            parse_targets("gpus=0", EXTENT)
